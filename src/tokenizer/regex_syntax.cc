#include "tokenizer/regex_syntax.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/regex_sets.h"

namespace cadre {
namespace {

constexpr int kMaxClassDepth = 20;

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    if (pos_ < pattern_.size()) element();
    const std::string first = out_;
    while (pos_ < pattern_.size()) element();
    return failing_once_per_run(first);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw unsupported(
        "expected a regular expression that is understood, found {} at byte {} of {}; simplify the pattern", what, pos_,
        cadre::quoted(pattern_));
  }

  // A pattern like \s+$ that fails at the start of a run of spaces fails at each later space of it too: from there it
  // can reach no other ends. Without being told so, a search takes time quadratic in the run.
  std::string failing_once_per_run(const std::string& first) {
    const bool is_run = first.starts_with('[') && first.ends_with("]+") && first.size() < out_.size();
    const bool depends_on_start = out_.find("\\G") != out_.npos || out_.find("\\K") != out_.npos;
    if (!is_run || has_alternatives_ || depends_on_start) return std::move(out_);
    return "(?:" + out_ + "|" + first + "(*SKIP)(*FAIL))";
  }

  bool at(std::string_view text) const { return pattern_.substr(pos_).starts_with(text); }
  char peek() const { return pos_ < pattern_.size() ? pattern_[pos_] : '\0'; }

  // One atom, quantifier, group boundary or alternation bar.
  void element() {
    const char c = peek();
    if (c == '(') return open_group();
    if (c == ')') {
      ++pos_;
      out_ += ')';
      if (groups_.empty()) fail("a closing bracket without its opening one");
      atom_start_ = groups_.back();
      groups_.pop_back();
      return quantifiers();
    }
    if (c == '|') {
      ++pos_;
      out_ += '|';
      if (groups_.empty()) has_alternatives_ = true;
      atom_start_ = out_.size();
      return;
    }
    atom_start_ = out_.size();
    if (c == '[') {
      out_ += character_set(0).expression();
    } else if (c == '\\') {
      out_ += escape();
    } else if (c == '.' || c == '^' || c == '$') {
      out_ += c;
      ++pos_;
    } else {
      out_ += escaped_character(next_code_point());
    }
    quantifiers();
  }

  void open_group() {
    groups_.push_back(out_.size());
    if (at("(?#")) {
      groups_.pop_back();
      const size_t end = pattern_.find(')', pos_);
      if (end == pattern_.npos) fail("a comment without its end");
      pos_ = end + 1;
      return;
    }
    ++pos_;
    out_ += '(';
    if (peek() == '?') group_kind();
    atom_start_ = out_.size();
  }

  // What stands between "(?" and the group's content.
  void group_kind() {
    out_ += '?';
    ++pos_;
    for (const std::string_view kind : {":", "=", "!", ">", "<=", "<!"}) {
      if (!at(kind)) continue;
      out_ += kind;
      pos_ += kind.size();
      return;
    }
    const char closer = peek() == '<' ? '>' : peek() == '\'' ? '\'' : '\0';
    if (closer != '\0') {
      const size_t end = pattern_.find(closer, pos_ + 1);
      if (end == pattern_.npos) fail("a group name without its end");
      out_ += pattern_.substr(pos_, end + 1 - pos_);
      pos_ = end + 1;
      return;
    }
    while (peek() != ':' && peek() != ')') {
      const char flag = peek();
      if (flag != 'i' && flag != 'm' && flag != '-') fail("an option other than i and m");
      out_ += flag == 'm' ? 's' : flag;  // Ruby's m lets the dot match line ends, which PCRE2 calls s
      ++pos_;
    }
    out_ += peek();
    if (peek() == ')') groups_.pop_back();  // the options hold to the end of the enclosing group
    ++pos_;
  }

  // Quantifiers after an atom. A second one repeats the repetition.
  void quantifiers() {
    for (bool first = true;; first = false) {
      std::string quantifier;
      if (!read_quantifier(&quantifier)) return;
      if (!first) {
        out_.insert(atom_start_, "(?:");
        out_ += ')';
      }
      out_ += quantifier;
    }
  }

  bool read_quantifier(std::string* quantifier) {
    const char c = peek();
    if (c == '?' || c == '*' || c == '+') {
      *quantifier = c;
      ++pos_;
      if (peek() == '?' || peek() == '+') {
        *quantifier += peek();
        ++pos_;
      }
      return true;
    }
    if (c != '{') return false;
    size_t end = pos_ + 1;
    std::string low, high;
    while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end]))) low += pattern_[end++];
    bool comma = false;
    if (end < pattern_.size() && pattern_[end] == ',') {
      comma = true;
      ++end;
      while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end]))) high += pattern_[end++];
    }
    if (end >= pattern_.size() || pattern_[end] != '}' || (low.empty() && high.empty())) return false;
    pos_ = end + 1;
    *quantifier = "{" + (low.empty() ? "0" : low) + (comma ? "," + high : "") + "}";
    // {n,m}? is reluctant, {n}? is an optional {n}.
    if (comma && peek() == '?') {
      *quantifier += '?';
      ++pos_;
    }
    return true;
  }

  char32_t next_code_point() {
    size_t length = 0;
    const char32_t c = utf8::decode(pattern_.substr(pos_), &length);
    pos_ += length;
    return c;
  }

  // A backslash outside of a class.
  std::string escape() {
    const char letter = pos_ + 1 < pattern_.size() ? pattern_[pos_ + 1] : '\0';
    if (letter == '\0') fail("a backslash at the end");
    if (auto set = escaped_set(false)) return set->expression();
    if (letter == 'b' || letter == 'B') {
      pos_ += 2;
      const std::string word = shorthand_set('w', false)->expression();
      return letter == 'b' ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word)
                           : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
    }
    if (std::string_view("AzZGKRX").find(letter) != std::string_view::npos || (letter >= '1' && letter <= '9')) {
      pos_ += 2;
      return {'\\', letter};
    }
    if (letter == 'k' || letter == 'g') {
      const size_t end = pattern_.find('>', pos_);
      if (end == pattern_.npos) fail("a reference without its end");
      const std::string_view reference = pattern_.substr(pos_, end + 1 - pos_);
      pos_ = end + 1;
      return std::string(reference);
    }
    return escaped_character(escaped_code_point());
  }

  // \s, \W, \p{...} and the like; nullopt (nothing read) for other escapes.
  std::optional<CharacterSet> escaped_set(bool in_class) {
    const char letter = pos_ + 1 < pattern_.size() ? pattern_[pos_ + 1] : '\0';
    if (auto set = shorthand_set(letter, in_class)) {
      pos_ += 2;
      return set;
    }
    if (letter != 'p' && letter != 'P') return std::nullopt;
    pos_ += 2;
    if (peek() != '{') fail("a property without its name in curly brackets");
    const size_t end = pattern_.find('}', pos_);
    if (end == pattern_.npos) fail("a property name without its end");
    std::string_view name = pattern_.substr(pos_ + 1, end - pos_ - 1);
    bool negated = letter == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const auto set = property_set(name, negated, in_class);
    if (!set) fail("an empty or odd property name");
    pos_ = end + 1;
    return set;
  }

  // \n, \x{..}, \uHHHH, \012 and escaped punctuation, inside and outside of classes.
  char32_t escaped_code_point() {
    ++pos_;
    const char letter = peek();
    const auto digits = [&](int base, size_t most) {
      uint32_t value = 0;
      for (size_t n = 0; n < most && pos_ < pattern_.size(); ++n, ++pos_) {
        const int c = std::tolower(static_cast<unsigned char>(pattern_[pos_]));
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
        if (digit >= base) break;
        value = value * static_cast<uint32_t>(base) + static_cast<uint32_t>(digit);
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) fail("an escape that is no character");
      return static_cast<char32_t>(value);
    };
    if (letter == 'x' || letter == 'u') {
      ++pos_;
      if (letter == 'x' && peek() == '{') {
        ++pos_;
        const char32_t value = digits(16, 6);
        if (peek() != '}') fail("a hexadecimal escape without its end");
        ++pos_;
        return value;
      }
      const char32_t value = digits(16, letter == 'x' ? 2 : 4);
      if (letter == 'x' && value >= 0x80) fail("a byte escape above 7f");
      return value;
    }
    if (letter == '0') return digits(8, 3);
    constexpr std::string_view kLetters = "nrtfaevb", kValues = "\n\r\t\f\a\x1b\v\b";
    const size_t control = kLetters.find(letter);
    if (control != kLetters.npos) {
      ++pos_;
      return static_cast<char32_t>(kValues[control]);
    }
    if (std::isalnum(static_cast<unsigned char>(letter))) fail("an escape that is not known");
    if (pos_ >= pattern_.size()) fail("a backslash at the end");
    return next_code_point();
  }

  // A class from its '[' to its ']'.
  CharacterSet character_set(int depth) {
    if (depth > kMaxClassDepth) fail("classes nested too deeply");
    ++pos_;
    const bool negated = peek() == '^';
    if (negated) ++pos_;
    std::vector<CharacterSet> parts(1);  // what && stands between
    if (peek() == ']' && pattern_.find(']', pos_ + 1) != pattern_.npos) {
      parts.back().members += "\\x{5d}";
      ++pos_;
    }
    while (peek() != ']') {
      if (pos_ >= pattern_.size()) fail("a class without its end");
      if (at("&&")) {
        pos_ += 2;
        parts.emplace_back();
      } else if (at("[:")) {
        parts.back().add(posix());
      } else if (peek() == '[') {
        parts.back().add(character_set(depth + 1));
      } else {
        class_member(&parts.back());
      }
    }
    ++pos_;
    return intersection(std::move(parts), negated);
  }

  static CharacterSet intersection(std::vector<CharacterSet> parts, bool negated) {
    CharacterSet result = std::move(parts[0]);
    if (parts.size() > 1) {
      std::string all;
      for (size_t i = 1; i < parts.size(); ++i) all += "(?=" + parts[i].expression() + ")";
      all = "(?:" + all + result.expression() + ")";
      result = CharacterSet{};
      result.expressions.push_back(std::move(all));
    }
    result.negated = negated;
    return result;
  }

  // A character, a range, or a set by an escape.
  void class_member(CharacterSet* set) {
    if (peek() == '\\') {
      if (const auto escaped = escaped_set(true)) return set->add(*escaped);
    }
    const char32_t low = class_code_point();
    const bool is_range = peek() == '-' && pos_ + 1 < pattern_.size() && pattern_[pos_ + 1] != ']' &&
                          !pattern_.substr(pos_ + 1).starts_with('[') && !pattern_.substr(pos_ + 1).starts_with("&&");
    set->members += escaped_character(low);
    if (!is_range) return;
    const size_t dash = pos_++;
    if (peek() == '\\' && pos_ + 1 < pattern_.size() &&
        std::string_view("sSwWdDhHpP").find(pattern_[pos_ + 1]) != std::string_view::npos) {
      set->members += "\\x{2d}";  // [a-\d]: the dash stands for itself
      return;
    }
    const char32_t high = class_code_point();
    if (high < low) {
      pos_ = dash;
      fail("a range that ends before it starts");
    }
    set->members += "-" + escaped_character(high);
  }

  char32_t class_code_point() { return peek() == '\\' ? escaped_code_point() : next_code_point(); }

  // [:alpha:] inside a class.
  CharacterSet posix() {
    const size_t end = pattern_.find(":]", pos_);
    if (end == pattern_.npos) fail("a POSIX class without its end");
    std::string_view name = pattern_.substr(pos_ + 2, end - pos_ - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const auto set = posix_set(name, negated);
    if (!set) fail("an empty or odd POSIX class");
    pos_ = end + 2;
    return *set;
  }

  std::string_view pattern_;
  size_t pos_ = 0;
  std::string out_;
  bool has_alternatives_ = false;  // outside of groups
  size_t atom_start_ = 0;          // where in out_ the atom before a quantifier starts
  std::vector<size_t> groups_;     // where in out_ the open groups start
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern) {
  if (!utf8::is_valid(pattern))
    throw invalid_input("expected a regular expression in UTF-8, found invalid bytes; correct the file");
  return Translator(pattern).run();
}

std::string pcre2_literal(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    size_t length = 0;
    out += escaped_character(utf8::decode(text, &length));
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace cadre
