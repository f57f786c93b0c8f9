#include "tokenizer/pre_tokenizer.h"

#include <functional>
#include <optional>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_kind.h"
#include "tokenizer/regex_syntax.h"
#include "tokenizer/unicode.h"

namespace cadre {
namespace {

constexpr std::string_view kServed =
    "Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit";

// GPT-2's pattern, which ByteLevel with use_regex stands for.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What becomes of the matches ("delimiters") of a split.
enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior behavior_of(const JsonObject& part, std::optional<std::string> fallback) {
  const std::string name = fallback ? part.maybe_string("behavior").value_or(*fallback) : part.string("behavior");
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  throw unsupported(
      "{}: expected behavior Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous, found {}; correct "
      "the file",
      part.name(), cadre::quoted(name));
}

// Takes the parts of one piece in order (matches and what lies between), and passes on what the behavior makes of them.
class PartJoiner {
 public:
  PartJoiner(std::string_view piece, bool starts_text, Behavior behavior, PreTokenizer::Sink sink)
      : piece_(piece), starts_text_(starts_text), behavior_(behavior), sink_(sink) {}

  void take(size_t begin, size_t end, bool is_match) {
    switch (behavior_) {
      case Behavior::kIsolated: emit(begin, end); break;
      case Behavior::kRemoved:
        if (!is_match) emit(begin, end);
        break;
      case Behavior::kContiguous: join(begin, end, is_match == was_match_); break;
      case Behavior::kMergedWithPrevious: join(begin, end, is_match && !was_match_); break;
      // A match takes in what follows, unless that is a match too.
      case Behavior::kMergedWithNext: join(begin, end, was_match_ && !is_match); break;
    }
    was_match_ = is_match;
  }

  void finish() {
    if (has_open_) emit(open_begin_, open_end_);
  }

 private:
  void join(size_t begin, size_t end, bool with_open) {
    if (!with_open || !has_open_) {
      finish();
      has_open_ = true;
      open_begin_ = begin;
    }
    open_end_ = end;
  }

  void emit(size_t begin, size_t end) {
    if (begin != end) sink_(piece_.substr(begin, end - begin), starts_text_ && begin == 0);
  }

  std::string_view piece_;
  bool starts_text_;
  Behavior behavior_;
  PreTokenizer::Sink sink_;
  bool was_match_ = false;
  bool has_open_ = false;
  size_t open_begin_ = 0, open_end_ = 0;
};

class SplitStep final : public PreTokenizer::Step {
 public:
  SplitStep(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void run(std::string_view piece, bool starts_text, MatchScratch& scratch, PreTokenizer::Sink sink) const override {
    PartJoiner joiner(piece, starts_text, behavior_, sink);
    pattern_.split(piece, scratch,
                   [&](size_t begin, size_t end, bool is_match) { joiner.take(begin, end, is_match != invert_); });
    joiner.finish();
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// Splits at single characters of a kind.
class CharacterStep final : public PreTokenizer::Step {
 public:
  CharacterStep(bool (*is_delimiter)(char32_t), Behavior behavior) : is_delimiter_(is_delimiter), behavior_(behavior) {}

  void run(std::string_view piece, bool starts_text, MatchScratch&, PreTokenizer::Sink sink) const override {
    PartJoiner joiner(piece, starts_text, behavior_, sink);
    size_t done = 0, length = 0;
    for (size_t pos = 0; pos < piece.size(); pos += length) {
      if (!is_delimiter_(utf8::decode(piece.substr(pos), &length))) continue;
      if (done < pos) joiner.take(done, pos, false);
      joiner.take(pos, pos + length, true);
      done = pos + length;
    }
    if (done < piece.size()) joiner.take(done, piece.size(), false);
    joiner.finish();
  }

 private:
  bool (*is_delimiter_)(char32_t);
  Behavior behavior_;
};

class ByteLevelStep final : public PreTokenizer::Step {
 public:
  // gives_characters: turn bytes into the characters that stand for them, which the last step leaves to the model.
  ByteLevelStep(const JsonObject& part, bool gives_characters)
      : add_prefix_space_(part.maybe_boolean("add_prefix_space").value_or(true)), gives_characters_(gives_characters) {
    if (part.maybe_boolean("use_regex").value_or(true))
      pattern_.emplace(pcre2_from_oniguruma(kGpt2Pattern), kGpt2Pattern);
  }

  void run(std::string_view piece, bool starts_text, MatchScratch& scratch, PreTokenizer::Sink sink) const override {
    std::string with_space;
    if (add_prefix_space_ && piece[0] != ' ') {
      with_space.reserve(piece.size() + 1);
      with_space.append(" ").append(piece);
      piece = with_space;
    }
    if (!pattern_) return give(piece, starts_text, sink);
    pattern_->split(piece, scratch, [&](size_t begin, size_t end, bool) {
      if (begin != end) give(piece.substr(begin, end - begin), starts_text && begin == 0, sink);
    });
  }

 private:
  void give(std::string_view piece, bool starts_text, PreTokenizer::Sink sink) const {
    if (gives_characters_) {
      sink(alphabet_text(piece), starts_text);
    } else {
      sink(piece, starts_text);
    }
  }

  bool add_prefix_space_, gives_characters_;
  std::optional<Pattern> pattern_;
};

class MetaspaceStep final : public PreTokenizer::Step {
 public:
  explicit MetaspaceStep(const JsonObject& part)
      : replacement_(part.string("replacement")), split_(part.maybe_boolean("split").value_or(true)) {
    if (utf8::sequence_length(replacement_) == 0 || utf8::sequence_length(replacement_) != replacement_.size())
      throw invalid_input("{}: expected one character as 'replacement', found {}; correct the file", part.name(),
                          cadre::quoted(replacement_));
    const auto scheme = part.maybe_string("prepend_scheme");
    // Files from before prepend_scheme have add_prefix_space alone.
    const bool prefix = part.maybe_boolean("add_prefix_space").value_or(true);
    const std::string prepend = scheme ? *scheme : prefix ? "always" : "never";
    if (prepend != "always" && prepend != "first" && prepend != "never")
      throw unsupported("{}: expected prepend_scheme always, first or never, found {}; correct the file", part.name(),
                        cadre::quoted(prepend));
    if (!prefix && prepend != "never")
      throw invalid_input("{}: expected prepend_scheme never beside add_prefix_space false, found {}; correct the file",
                          part.name(), prepend);
    prepends_ = prepend != "never";
    first_only_ = prepend == "first";
  }

  void run(std::string_view piece, bool starts_text, MatchScratch&, PreTokenizer::Sink sink) const override {
    std::string text;
    text.reserve(piece.size() + piece.size() / 2 + replacement_.size());
    const bool starts_with_space = piece[0] == ' ' || piece.starts_with(replacement_);
    if (prepends_ && !starts_with_space && (starts_text || !first_only_)) text += replacement_;
    for (const char c : piece) {
      if (c == ' ') {
        text += replacement_;
      } else {
        text += c;
      }
    }
    if (!split_) return sink(text, starts_text);
    // A piece begins at every replacement.
    const std::string_view all = text;
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.find(replacement_, begin + 1), all.size());
      sink(all.substr(begin, end - begin), starts_text && begin == 0);
      begin = end;
    }
  }

 private:
  std::string replacement_;
  bool split_, prepends_ = true, first_only_ = false;
};

// The parts of nested sequences, in order.
void flatten(const JsonObject& part, std::vector<JsonObject>* parts) {
  if (part.string("type") != "Sequence") return parts->push_back(part);
  for (const JsonObject& inner : json_sequence(part, "pretokenizers")) flatten(inner, parts);
}

std::unique_ptr<PreTokenizer::Step> read_step(const JsonObject& part, bool is_last) {
  const std::string type = part.string("type");
  if (type == "Split") {
    const PatternSource source = json_pattern(part);
    return std::make_unique<SplitStep>(source.compile(), behavior_of(part, std::nullopt),
                                       part.maybe_boolean("invert").value_or(false));
  }
  if (type == "ByteLevel") return std::make_unique<ByteLevelStep>(part, !is_last);
  if (type == "Metaspace") return std::make_unique<MetaspaceStep>(part);
  if (type == "Digits")
    return std::make_unique<CharacterStep>(is_numeric, part.maybe_boolean("individual_digits").value_or(false)
                                                           ? Behavior::kIsolated
                                                           : Behavior::kContiguous);
  if (type == "Punctuation") return std::make_unique<CharacterStep>(is_punctuation, behavior_of(part, "Isolated"));
  if (type == "WhitespaceSplit") return std::make_unique<CharacterStep>(is_white_space, Behavior::kRemoved);
  if (type == "Whitespace")
    return std::make_unique<SplitStep>(
        Pattern(pcre2_from_oniguruma(R"([\w\p{Alphabetic}\x{200c}\x{200d}]+|[^\w\p{Alphabetic}\x{200c}\x{200d}\s]+)"),
                "Whitespace"),
        Behavior::kRemoved, true);
  refuse_kind(part, type, kServed);
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonObject& pre_tokenizer) {
  std::vector<JsonObject> parts;
  flatten(pre_tokenizer, &parts);
  for (size_t i = 0; i < parts.size(); ++i) steps_.push_back(read_step(parts[i], i + 1 == parts.size()));
  gives_bytes_ = !parts.empty() && parts.back().string("type") == "ByteLevel";
}

void PreTokenizer::run_from(size_t step, std::string_view piece, bool starts_text, MatchScratch& scratch,
                            Sink sink) const {
  if (step == steps_.size()) return sink(piece, starts_text);
  steps_[step]->run(piece, starts_text, scratch, [&](std::string_view part, bool part_starts) {
    run_from(step + 1, part, part_starts, scratch, sink);
  });
}

}  // namespace cadre
