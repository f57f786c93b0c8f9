#include "tests/support/scripted_model.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "config/bytes.h"

namespace cadre::testing {
namespace {

uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

uint64_t extend(uint64_t hash, int32_t token) { return mix(hash + 0x9E3779B97F4A7C15ull * (static_cast<uint64_t>(token) + 1)); }

// What a script says next.
enum class Action { kNone, kToken, kEnd, kNan, kFail, kThrow };
struct Next {
  Action action = Action::kNone;
  int32_t token = 0;
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  throw std::logic_error("a script has a bad \\x escape");
}

std::vector<Next> parse_text(std::string_view text) {
  std::vector<Next> out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out.push_back({Action::kToken, static_cast<unsigned char>(text[i])});
      continue;
    }
    const std::string_view rest = text.substr(i + 1);
    if (rest.starts_with('n')) {
      out.push_back({Action::kToken, '\n'});
      i += 1;
    } else if (rest.starts_with('\\')) {
      out.push_back({Action::kToken, '\\'});
      i += 1;
    } else if (rest.starts_with('x') && rest.size() >= 3) {
      out.push_back({Action::kToken, hex_digit(rest[1]) * 16 + hex_digit(rest[2])});
      i += 3;
    } else if (rest.starts_with("!nan")) {
      out.push_back({Action::kNan});
      i += 4;
    } else if (rest.starts_with("!fail")) {
      out.push_back({Action::kFail});
      i += 5;
    } else if (rest.starts_with("!throw")) {
      out.push_back({Action::kThrow});
      i += 6;
    } else {
      throw std::logic_error("a script has an unknown escape");
    }
  }
  return out;
}

Next next_of_script(std::span<const int32_t> prefix, const std::string& marker) {
  // Bytes only: special tokens become a byte no script has.
  std::string text;
  text.reserve(prefix.size());
  for (const int32_t id : prefix) text += id < 256 ? static_cast<char>(id) : '\0';
  // The last script counts; an answer is no script as long as scripts do not say "<<".
  const size_t begin = text.rfind("<<");
  if (begin == std::string::npos) return {};
  const size_t close = text.find(">>", begin);
  if (close == std::string::npos) return {};
  const std::string_view script = std::string_view(text).substr(begin + 2, close - begin - 2);
  if (script == "nan") return {Action::kNan};
  if (script == "fail") return {Action::kFail};
  if (script == "throw") return {Action::kThrow};
  const bool loops = script.starts_with("loop ");
  if (!loops && !script.starts_with("say ")) return {};
  std::string_view answered = std::string_view(text).substr(close + 2);
  if (!marker.empty() && answered.starts_with(marker)) answered.remove_prefix(marker.size());
  const std::vector<Next> answer = parse_text(script.substr(loops ? 5 : 4));
  if (answer.empty()) return {Action::kEnd};
  if (loops) return answer[answered.size() % answer.size()];
  return answered.size() < answer.size() ? answer[answered.size()] : Next{Action::kEnd};
}

}  // namespace

ScriptedModel::ScriptedModel(ScriptedModelOptions options, std::shared_ptr<ScriptedModelLog> log)
    : options_(std::move(options)), log_(std::move(log)) {
  prefix_.reserve(static_cast<size_t>(options_.max_position));
}

KvLayout ScriptedModel::kv_layout() const {
  return {options_.num_layers, kKvBlockTokens * static_cast<int64_t>(sizeof(Slot))};
}

ScriptedModel::Slot& ScriptedModel::slot_at(KvStore& kv, int64_t layer, const SequenceRows& rows, int64_t position) {
  const auto block_idx = static_cast<size_t>(position / kKvBlockTokens);
  if (block_idx >= rows.blocks.size())
    throw std::logic_error(fmt::format("position {} is beyond the {} blocks of its sequence", position, rows.blocks.size()));
  return reinterpret_cast<Slot*>(kv.block(layer, rows.blocks[block_idx]))[position % kKvBlockTokens];
}

void ScriptedModel::write_row(const SequenceRows& rows, int64_t position, KvStore& kv) const {
  const int32_t token = rows.tokens[static_cast<size_t>(position - rows.start_position)];
  if (token < 0 || token >= options_.vocab_size) throw std::logic_error(fmt::format("token {} is no token", token));
  for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
    uint64_t before = 1;
    if (position > 0) {
      const Slot& last = slot_at(kv, layer, rows, position - 1);
      if (last.position_plus_1 != position)
        throw std::logic_error(fmt::format("the cache has position {} where {} was expected", last.position_plus_1 - 1, position - 1));
      before = last.hash;
    }
    slot_at(kv, layer, rows, position) = {token, static_cast<int32_t>(position + 1), extend(before, token)};
  }
}

// Reads the prefix up to position back into prefix_, and checks it in all layers.
void ScriptedModel::check_cache(const SequenceRows& rows, int64_t position, KvStore& kv) {
  prefix_.clear();
  for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
    uint64_t hash = 1;
    for (int64_t p = 0; p <= position; ++p) {
      const Slot& slot = slot_at(kv, layer, rows, p);
      hash = extend(hash, slot.token);
      if (slot.position_plus_1 != p + 1 || slot.hash != hash)
        throw std::logic_error(fmt::format("the cache of layer {} is not the sequence's own at position {} of {}", layer, p, position));
      if (layer == 0) prefix_.push_back(slot.token);
      else if (prefix_[static_cast<size_t>(p)] != slot.token) throw std::logic_error("layers differ");
    }
  }
}

void ScriptedModel::forward(const StepInput& input, KvStore& kv, const StepOutput& output) {
  if (options_.before_forward) options_.before_forward(input);
  if (log_) {
    ++log_->num_steps;
    if (log_->records_steps) log_->steps.emplace_back();
  }
  int64_t num_rows = 0;
  size_t logit_row = 0;
  for (size_t i = 0; i < input.sequences.size(); ++i) {
    const SequenceRows& rows = input.sequences[i];
    const int64_t end = rows.start_position + static_cast<int64_t>(rows.tokens.size());
    num_rows += static_cast<int64_t>(rows.tokens.size());
    if (rows.num_prompt_tokens < 1 || rows.num_logit_rows > static_cast<int64_t>(rows.tokens.size()))
      throw std::logic_error("rows without a prompt, or more logits than rows");
    if (end > options_.max_position || rows.tokens.empty()) throw std::logic_error("rows beyond the context, or none");
    for (int64_t p = rows.start_position; p < end; ++p) write_row(rows, p, kv);
    for (int64_t p = end - rows.num_logit_rows; p < end; ++p, ++logit_row) {
      const auto logits = output.logits.subspan(logit_row * static_cast<size_t>(options_.vocab_size),
                                                static_cast<size_t>(options_.vocab_size));
      check_cache(rows, p, kv);
      if (!logits_after(prefix_, logits)) output.sequence_failed[i] = 1;
    }
    if (log_) log_->num_rows += static_cast<int64_t>(rows.tokens.size());
    if (log_ && log_->records_steps)
      log_->steps.back().push_back({rows.start_position, static_cast<int64_t>(rows.tokens.size()), rows.num_logit_rows,
                                    slot_at(kv, 0, rows, end - 1).hash});
  }
  if (num_rows > options_.max_batched_tokens) throw std::logic_error(fmt::format("{} rows in one step", num_rows));
  if (logit_row * static_cast<size_t>(options_.vocab_size) != output.logits.size())
    throw std::logic_error("logits for another number of rows");
}

bool ScriptedModel::logits_after(std::span<const int32_t> prefix, std::span<float> logits) const {
  uint64_t hash = 1;
  for (const int32_t token : prefix) hash = extend(hash, token);
  for (size_t v = 0; v < logits.size(); ++v)
    logits[v] = static_cast<float>(mix(hash + v * 0xD1B54A32D192ED03ull) >> 40) * 0x1p-21f - 4.0f;
  const auto end_id = static_cast<size_t>(options_.end_id);
  const Next next = next_of_script(prefix, options_.answer_marker);
  switch (next.action) {
    case Action::kNone:
      // In [0, 4) the end id would win by chance; it wins when the hash says so.
      logits[end_id] = options_.mean_answer_tokens > 0 && mix(hash) % static_cast<uint64_t>(options_.mean_answer_tokens) == 0
                           ? options_.scripted_logit : -4.0f;
      return true;
    case Action::kToken: logits[static_cast<size_t>(next.token)] = options_.scripted_logit; return true;
    case Action::kEnd: logits[end_id] = options_.scripted_logit; return true;
    case Action::kNan: logits[0] = std::numeric_limits<float>::quiet_NaN(); return true;
    case Action::kFail: return false;
    case Action::kThrow: throw std::runtime_error("the script says so");
  }
  return true;
}

}  // namespace cadre::testing
