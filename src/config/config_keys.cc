#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "config/family.h"

namespace cadre {
namespace {

using NameSet = std::unordered_set<std::string_view>;

void add_words(NameSet& set, std::string_view words) {
  while (!words.empty()) {
    const size_t end = words.find(' ');
    if (end != 0) set.insert(words.substr(0, end));
    words.remove_prefix(end == std::string_view::npos ? words.size() : end + 1);
  }
}

// Read for every family, or checked against what the family makes of the other keys.
constexpr std::string_view kCommonKeys =
    "model_type architectures vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps tie_word_embeddings rope_theta "
    "rope_scaling rope_parameters original_max_position_embeddings partial_rotary_factor torch_dtype dtype "
    "bos_token_id eos_token_id quantization_config layer_types mlp_layer_types";

// Training, defaults of generation, how a framework runs the model, bookkeeping: nothing of it reaches the logits.
constexpr std::string_view kHarmlessKeys =
    "transformers_version use_cache pad_token_id sep_token_id decoder_start_token_id mask_token_id auto_map "
    "tokenizer_class prefix id2label label2id num_labels problem_type finetuning_task task_specific_params is_decoder "
    "tie_encoder_decoder cross_attention_hidden_size return_dict torchscript use_bfloat16 tf_legacy_loss "
    "chunk_size_feed_forward output_attentions output_hidden_states output_router_logits attn_implementation "
    "use_flash_attn use_flash_attention pretraining_tp ep_size seq_aux aux_loss_alpha router_jitter_noise "
    "input_jitter_noise initial_context_length model_max_length max_sequence_length seq_length max_length min_length "
    "do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p "
    "repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
    "num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id "
    "remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens use_mtp";

// A word of a key's name that makes the key one of training only.
constexpr std::string_view kTrainingWords = "loss dropout pdrop init initializer jitter";

// Words by which architectures name their arithmetic: an unknown key made of one of these may change the result.
constexpr std::string_view kArithmeticWords =
    "act activation alibi alpha attn attention beta bias block bits cap capping causal clip compress compression conv "
    "cross decay decoder depth dim dims dsa embedding embeddings emb encoder expert experts factor ffn freq frequency "
    "gate gated gating group groups head heads hidden hybrid index indexer inner interleave kernel lambda latent layer "
    "layers length limit linear local logit logits lora mamba mask memory mla mlp moe mrope multiplier mup ngram nope "
    "norm num parallel pattern position positional positions proj projection qk qkv kv quant quantization quantize "
    "quantized rank ratio recurrent residual rms rope rotary router routing scalar scale scales scaling score scoring "
    "shared sink sinks size skip sliding soft softcap softcapping softmax sparse sparsity ssm state step stride text "
    "theta tie tied topk value vision visual audio width window yarn";

// Switches whose published value is on in every served family, so that off is the value that changes the result.
constexpr std::string_view kSwitchesThatAreOn = "is_causal use_causal_mask use_rope use_rms_norm";

bool is_off(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null: return true;
    case json::kind::bool_: return !value.get_bool();
    case json::kind::int64: return value.get_int64() == 0;
    case json::kind::uint64: return value.get_uint64() == 0;
    case json::kind::double_: return value.get_double() == 0;
    case json::kind::string: return value.get_string().empty();
    case json::kind::array: return value.get_array().empty();
    case json::kind::object: return value.get_object().empty();
  }
  return false;
}

// True when a part of the name between underscores, dots or dashes is in words.
bool has_word(std::string_view name, const NameSet& words) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  std::string_view rest = lower;
  while (!rest.empty()) {
    const size_t end = rest.find_first_of("_.-");
    if (words.count(rest.substr(0, end))) return true;
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return false;
}

}  // namespace

void refuse_unserved_keys(const JsonObject& config, const FamilyTraits& traits) {
  NameSet served, training, arithmetic, on;
  add_words(on, kSwitchesThatAreOn);
  add_words(served, kCommonKeys);
  add_words(served, kHarmlessKeys);
  add_words(served, traits.keys);
  if (traits.family == Family::kDeepseekV2) add_words(on, "rope_interleave rope_interleaved");
  add_words(training, kTrainingWords);
  add_words(arithmetic, kArithmeticWords);
  for (const auto& [raw_key, value] : config.raw()) {
    const std::string_view key(raw_key);
    const bool off = is_off(value) && !(on.count(key) && value.is_bool());
    if (served.count(key) || off || key.empty() || key.front() == '_' || has_word(key, training)) continue;
    if (!has_word(key, arithmetic) && !on.count(key)) continue;
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: expected only keys that {} is served with, found {} = {}, which may change the "
                            "result; choose another checkpoint, or remove the key if it does not matter",
                            config.name(), traits.architecture, cadre::quoted(key), describe(value)),
                std::string(key));
  }
}

}  // namespace cadre
