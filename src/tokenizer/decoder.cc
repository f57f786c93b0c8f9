#include "tokenizer/decoder.h"

#include <charconv>
#include <memory>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_kind.h"

namespace cadre {
namespace {

constexpr std::string_view kServed = "Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip";

// The byte that "<0xE2>" stands for.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with(">")) return std::nullopt;
  unsigned value = 0;
  const char* end = token.data() + 5;
  const auto result = std::from_chars(token.data() + 3, end, value, 16);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return static_cast<char>(value);
}

bool is_one_character(std::string_view text) { return !text.empty() && utf8::sequence_length(text) == text.size(); }

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (text.find(from) == text.npos) return;
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  text = out.append(text, done);
}

}  // namespace

Decoder::Decoder() : has_first_piece_(true) {
  steps_.push_back([](std::string& token, bool is_first) {
    if (is_first) return;
    std::string spaced(1, ' ');
    token = std::move(spaced.append(token));
  });
}

Decoder::Decoder(const JsonObject& decoder) { read(decoder); }

std::string Decoder::apply(std::string_view token, bool is_first) const {
  std::string bytes(token);
  for (const Step& step : steps_) step(bytes, is_first);
  return bytes;
}

void Decoder::refuse_after(bool condition, const JsonObject& part, std::string_view before) const {
  if (!condition) return;
  throw unsupported("{}: expected {} to come before {}, found it after; this order is not served", part.name(),
                    part.string("type"), before);
}

void Decoder::read(const JsonObject& decoder) {
  const std::string type = decoder.string("type");
  if (type == "Sequence") {
    for (const JsonObject& part : json_sequence(decoder, "decoders")) read(part);
  } else if (type == "Fuse") {
    is_fused_ = true;
  } else if (type == "ByteLevel") {
    refuse_after(has_bytes_ || is_fused_, decoder, "ByteFallback, ByteLevel and Fuse");
    has_bytes_ = true;
    steps_.push_back([](std::string& token, bool) {
      if (auto bytes = alphabet_bytes(token)) token = std::move(*bytes);
    });
  } else if (type == "ByteFallback") {
    refuse_after(has_bytes_ || is_fused_, decoder, "ByteFallback, ByteLevel and Fuse");
    has_bytes_ = true;
    steps_.push_back([](std::string& token, bool) {
      if (const auto byte = fallback_byte(token)) token.assign(1, *byte);
    });
  } else if (type == "Replace") {
    read_replace(decoder);
  } else if (type == "Strip") {
    read_strip(decoder);
  } else if (type == "Metaspace") {
    read_metaspace(decoder);
  } else {
    refuse_kind(decoder, type, kServed);
  }
}

void Decoder::read_replace(const JsonObject& part) {
  const PatternSource source = json_pattern(part);
  if (source.text.empty())
    throw invalid_input("{}: expected a pattern to replace, found an empty one; correct the file", part.name());
  refuse_after(has_bytes_, part, "ByteFallback and ByteLevel");
  // In the whole text a longer pattern could match across tokens.
  refuse_after(is_fused_ && (source.is_regex || !is_one_character(source.text)), part, "Fuse");
  const std::string content = part.string("content");
  if (!source.is_regex) {
    steps_.push_back([from = source.text, content](std::string& token, bool) { replace_all(token, from, content); });
    return;
  }
  const auto pattern = std::make_shared<const Pattern>(source.compile());
  steps_.push_back([pattern, content](std::string& token, bool) {
    MatchScratch scratch;
    std::string out;
    pattern->split(token, scratch, [&](size_t begin, size_t end, bool is_match) {
      out += is_match ? std::string_view(content) : std::string_view(token).substr(begin, end - begin);
    });
    token = std::move(out);
  });
}

void Decoder::read_strip(const JsonObject& part) {
  const std::string content = part.string("content");
  if (!is_one_character(content))
    throw invalid_input("{}: expected one character as 'content', found {}; correct the file", part.name(),
                        cadre::quoted(content));
  const int64_t start = part.integer("start", 0, 1 << 20), stop = part.integer("stop", 0, 1 << 20);
  if (is_fused_) {
    // At the end of a text nobody knows, while streaming, that it is the end.
    if (start > 1 || stop > 0)
      throw unsupported(
          "{}: expected Strip after Fuse with start at most 1 and stop 0, found {} and {}; this decoder is not served",
          part.name(), start, stop);
    if (start == 0) return;
    has_first_piece_ = true;
    steps_.push_back([content](std::string& token, bool is_first) {
      if (is_first && token.starts_with(content)) token.erase(0, content.size());
    });
    return;
  }
  refuse_after(has_bytes_, part, "ByteFallback and ByteLevel, or after Fuse,");
  steps_.push_back([content, start, stop](std::string& token, bool) {
    std::string_view kept = token;
    for (int64_t n = 0; n < start && kept.starts_with(content); ++n) kept.remove_prefix(content.size());
    for (int64_t n = 0; n < stop && kept.ends_with(content); ++n) kept.remove_suffix(content.size());
    token = std::string(kept);
  });
}

void Decoder::read_metaspace(const JsonObject& part) {
  refuse_after(has_bytes_ || is_fused_, part, "ByteFallback, ByteLevel and Fuse");
  const std::string replacement = part.string("replacement");
  if (!is_one_character(replacement))
    throw invalid_input("{}: expected one character as 'replacement', found {}; correct the file", part.name(),
                        cadre::quoted(replacement));
  const auto scheme = part.maybe_string("prepend_scheme");
  const bool prefix = part.maybe_boolean("add_prefix_space").value_or(true);
  const bool drops = scheme ? *scheme != "never" : prefix;
  has_first_piece_ = has_first_piece_ || drops;
  // Of the first token every replacement goes, not one.
  steps_.push_back([replacement, drops](std::string& token, bool is_first) {
    replace_all(token, replacement, is_first && drops ? "" : " ");
  });
}

}  // namespace cadre
