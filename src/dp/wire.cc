#include "dp/wire.h"

#include <cstring>

#include "base/error.h"

namespace cadre {
namespace {

template <typename T>
void put_optional(WireWriter& out, const std::optional<T>& value) {
  out.put<uint8_t>(value.has_value());
  if (value) out.put(*value);
}

template <typename T>
std::optional<T> get_optional(WireReader& in) {
  if (in.get<uint8_t>() == 0) return std::nullopt;
  return in.get<T>();
}

void put_tokens(WireWriter& out, const std::vector<OutputToken>& tokens) {
  out.put<uint64_t>(tokens.size());
  for (const OutputToken& t : tokens) {
    out.put(t.token);
    out.put(t.logprob);
    out.put<uint8_t>(t.in_text);
    out.put_values(std::span(t.top));
  }
}

std::vector<OutputToken> get_tokens(WireReader& in) {
  std::vector<OutputToken> out;
  for (uint64_t n = in.get<uint64_t>(); n > 0; --n) {
    OutputToken t;
    t.token = in.get<int32_t>();
    t.logprob = in.get<float>();
    t.in_text = in.get<uint8_t>() != 0;
    t.top = in.get_values<TokenLogprob>();
    out.push_back(std::move(t));
  }
  return out;
}

}  // namespace

void WireWriter::put_text(std::string_view text) { put_values(std::span(text.data(), text.size())); }

std::string WireReader::get_text() {
  const std::vector<char> text = get_values<char>();
  return {text.begin(), text.end()};
}

std::string_view WireReader::take(size_t count) {
  if (count > bytes_.size()) throw_short();
  const std::string_view out = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return out;
}

void WireReader::throw_short() { throw Error(ErrorKind::kInternal, "a message between ranks ends early; run the same build on all of them"); }

void WireReader::expect_end() const {
  if (!bytes_.empty()) throw Error(ErrorKind::kInternal, fmt::format("a message between ranks has {} bytes too many; run the same build on all of them", bytes_.size()));
}

void put_request(WireWriter& out, const GenerationRequest& r) {
  const SamplingParams& s = r.sampling;
  out.put_text(r.request_id);
  out.put_values(std::span(r.prompt));
  out.put(r.n);
  out.put(s.temperature), out.put(s.top_k), out.put(s.top_p), out.put(s.min_p);
  out.put(s.repetition_penalty), out.put(s.frequency_penalty), out.put(s.presence_penalty);
  out.put<uint64_t>(s.logit_bias.size());
  for (const auto& [id, bias] : s.logit_bias) out.put(id), out.put(bias);
  put_optional(out, s.seed);
  put_optional(out, s.max_tokens);
  out.put(s.min_tokens);
  out.put<uint8_t>(s.ignore_eos);
  out.put<uint64_t>(s.stop.size());
  for (const std::string& stop : s.stop) out.put_text(stop);
  out.put_values(std::span(s.stop_token_ids));
  out.put<uint8_t>(s.include_stop);
  out.put<uint8_t>(s.skip_special_tokens);
  out.put(s.num_logprobs);
  out.put(s.num_prompt_logprobs);
}

GenerationRequest get_request(WireReader& in) {
  GenerationRequest r;
  SamplingParams& s = r.sampling;
  r.request_id = in.get_text();
  r.prompt = in.get_values<int32_t>();
  r.n = in.get<int32_t>();
  s.temperature = in.get<double>(), s.top_k = in.get<int32_t>(), s.top_p = in.get<double>(), s.min_p = in.get<double>();
  s.repetition_penalty = in.get<double>(), s.frequency_penalty = in.get<double>(), s.presence_penalty = in.get<double>();
  for (uint64_t n = in.get<uint64_t>(); n > 0; --n) {
    const int32_t id = in.get<int32_t>();
    s.logit_bias.emplace_back(id, in.get<float>());
  }
  s.seed = get_optional<uint64_t>(in);
  s.max_tokens = get_optional<int64_t>(in);
  s.min_tokens = in.get<int64_t>();
  s.ignore_eos = in.get<uint8_t>() != 0;
  for (uint64_t n = in.get<uint64_t>(); n > 0; --n) s.stop.push_back(in.get_text());
  s.stop_token_ids = in.get_values<int32_t>();
  s.include_stop = in.get<uint8_t>() != 0;
  s.skip_special_tokens = in.get<uint8_t>() != 0;
  s.num_logprobs = in.get<int32_t>();
  s.num_prompt_logprobs = in.get<int32_t>();
  return r;
}

void put_delta(WireWriter& out, const Delta& d) {
  out.put(d.choice_idx);
  out.put_text(d.text);
  put_tokens(out, d.tokens);
  put_tokens(out, d.prompt_tokens);
  put_optional(out, d.finish);
  out.put<uint8_t>(d.stop_reason.has_value());
  if (d.stop_reason) out.put_text(*d.stop_reason);
  put_optional(out, d.stop_token);
  out.put_text(d.error);
  out.put(d.num_prompt_tokens), out.put(d.num_completion_tokens), out.put(d.num_cached_tokens);
}

Delta get_delta(WireReader& in) {
  Delta d;
  d.choice_idx = in.get<int32_t>();
  d.text = in.get_text();
  d.tokens = get_tokens(in);
  d.prompt_tokens = get_tokens(in);
  d.finish = get_optional<FinishReason>(in);
  if (in.get<uint8_t>() != 0) d.stop_reason = in.get_text();
  d.stop_token = get_optional<int32_t>(in);
  d.error = in.get_text();
  d.num_prompt_tokens = in.get<int64_t>(), d.num_completion_tokens = in.get<int64_t>(), d.num_cached_tokens = in.get<int64_t>();
  return d;
}

}  // namespace cadre
