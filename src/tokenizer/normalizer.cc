#include "tokenizer/normalizer.h"

#include <memory>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_kind.h"
#include "tokenizer/unicode.h"

namespace cadre {
namespace {

constexpr std::string_view kServed =
    "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, Strip, StripAccents, ByteLevel";

// Without its white space on the left.
std::string_view stripped_left(std::string_view text) {
  while (!text.empty()) {
    size_t length = 0;
    if (!is_white_space(utf8::decode(text, &length))) break;
    text.remove_prefix(length);
  }
  return text;
}

std::string_view stripped_right(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size() - 1, length = 0;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!is_white_space(utf8::decode(text.substr(begin), &length))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::string without_marks(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    size_t length = 0;
    if (!is_mark(utf8::decode(text, &length))) out += text.substr(0, length);
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace

Normalizer::Normalizer(const JsonObject& normalizer) { read(normalizer); }

std::string Normalizer::apply(std::string_view text, MatchScratch& scratch) const {
  std::string out(text);
  for (const Step& step : steps_) step(out, scratch);
  return out;
}

void Normalizer::read(const JsonObject& normalizer) {
  const std::string type = normalizer.string("type");
  const auto form = [&](NormalForm form) {
    steps_.push_back([form](std::string& text, MatchScratch&) { text = normalized(text, form); });
  };
  if (type == "Sequence") {
    for (const JsonObject& part : json_sequence(normalizer, "normalizers")) read(part);
  } else if (type == "NFC") {
    form(NormalForm::kNfc);
  } else if (type == "NFD") {
    form(NormalForm::kNfd);
  } else if (type == "NFKC") {
    form(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    form(NormalForm::kNfkd);
  } else if (type == "Lowercase") {
    steps_.push_back([](std::string& text, MatchScratch&) { text = lowercased(text); });
  } else if (type == "StripAccents") {
    steps_.push_back([](std::string& text, MatchScratch&) { text = without_marks(text); });
  } else if (type == "ByteLevel") {
    steps_.push_back([](std::string& text, MatchScratch&) { text = alphabet_text(text); });
  } else if (type == "Prepend") {
    steps_.push_back([prepend = normalizer.string("prepend")](std::string& text, MatchScratch&) {
      if (!text.empty()) text.insert(0, prepend);
    });
  } else if (type == "Strip") {
    const bool left = normalizer.maybe_boolean("strip_left").value_or(true);
    const bool right = normalizer.maybe_boolean("strip_right").value_or(true);
    steps_.push_back([left, right](std::string& text, MatchScratch&) {
      std::string_view kept = left ? stripped_left(text) : text;
      if (right) kept = stripped_right(kept);
      text = std::string(kept);
    });
  } else if (type == "Replace") {
    steps_.push_back(replace_step(normalizer));
  } else {
    refuse_kind(normalizer, type, kServed);
  }
}

Normalizer::Step Normalizer::replace_step(const JsonObject& normalizer) {
  const PatternSource source = json_pattern(normalizer);
  if (source.text.empty())
    throw invalid_input("{}: expected a pattern to replace, found an empty one; correct the file", normalizer.name());
  // Shared because std::function copies.
  const auto pattern = std::make_shared<const Pattern>(source.compile());
  return [pattern, content = normalizer.string("content")](std::string& text, MatchScratch& scratch) {
    std::string out;
    out.reserve(text.size() + text.size() / 2);
    pattern->split(text, scratch, [&](size_t begin, size_t end, bool is_match) {
      if (is_match) {
        out += content;
      } else {
        out.append(text, begin, end - begin);
      }
    });
    text = std::move(out);
  };
}

}  // namespace cadre
