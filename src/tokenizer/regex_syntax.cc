#include "tokenizer/regex_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace cadre {
namespace {

constexpr int kMaxClassDepth = 20;
constexpr std::string_view kAnyCharacter = "[\\x{0}-\\x{10ffff}]";

// The members of a character set, as they stand inside [ ] for PCRE2, and of its complement.
struct NamedSet {
  std::string_view members;
  std::string_view complement;
};

// White_Space. PCRE2's own \s has U+180E too, which Unicode took out in 6.3.
constexpr NamedSet kSpace{
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}",
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"};
// Letters, marks, digits, connectors and lettered symbols; PCRE2 leaves marks out.
constexpr std::string_view kWord =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
// Oniguruma counts these six of Latin-1 too, outside of classes.
constexpr std::string_view kLatinWord = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr NamedSet kDigit{"\\p{Nd}", "\\P{Nd}"};
constexpr NamedSet kHexDigit{"0-9A-Fa-f", "\\x{0}-\\x{2f}\\x{3a}-\\x{40}\\x{47}-\\x{60}\\x{67}-\\x{10ffff}"};

std::optional<NamedSet> shorthand_set(char letter) {
  switch (std::tolower(static_cast<unsigned char>(letter))) {
    case 's': return kSpace;
    case 'd': return kDigit;
    case 'h': return kHexDigit;
    default: return std::nullopt;
  }
}

// General categories by their long names, and POSIX names; PCRE2 knows the short ones only.
constexpr std::array<std::pair<std::string_view, std::string_view>, 49> kPropertyNames{{
    {"any", "\\p{Any}"}, {"letter", "\\p{L}"}, {"uppercaseletter", "\\p{Lu}"}, {"lowercaseletter", "\\p{Ll}"},
    {"titlecaseletter", "\\p{Lt}"}, {"modifierletter", "\\p{Lm}"}, {"otherletter", "\\p{Lo}"}, {"casedletter", "\\p{L&}"},
    {"lc", "\\p{L&}"}, {"mark", "\\p{M}"}, {"combiningmark", "\\p{M}"}, {"nonspacingmark", "\\p{Mn}"},
    {"spacingmark", "\\p{Mc}"}, {"enclosingmark", "\\p{Me}"}, {"number", "\\p{N}"}, {"decimalnumber", "\\p{Nd}"},
    {"letternumber", "\\p{Nl}"}, {"othernumber", "\\p{No}"}, {"punctuation", "\\p{P}"}, {"punct", "\\p{P}"},
    {"connectorpunctuation", "\\p{Pc}"}, {"dashpunctuation", "\\p{Pd}"}, {"openpunctuation", "\\p{Ps}"},
    {"closepunctuation", "\\p{Pe}"}, {"initialpunctuation", "\\p{Pi}"}, {"finalpunctuation", "\\p{Pf}"},
    {"otherpunctuation", "\\p{Po}"}, {"symbol", "\\p{S}"}, {"mathsymbol", "\\p{Sm}"}, {"currencysymbol", "\\p{Sc}"},
    {"modifiersymbol", "\\p{Sk}"}, {"othersymbol", "\\p{So}"}, {"separator", "\\p{Z}"}, {"spaceseparator", "\\p{Zs}"},
    {"lineseparator", "\\p{Zl}"}, {"paragraphseparator", "\\p{Zp}"}, {"other", "\\p{C}"}, {"control", "\\p{Cc}"},
    {"cntrl", "\\p{Cc}"}, {"format", "\\p{Cf}"}, {"unassigned", "\\p{Cn}"}, {"privateuse", "\\p{Co}"},
    {"surrogate", "\\p{Cs}"}, {"alpha", "\\p{Alphabetic}"}, {"upper", "\\p{Uppercase}"}, {"lower", "\\p{Lowercase}"},
    {"digit", "\\p{Nd}"}, {"ascii", "\\x{0}-\\x{7f}"}, {"blank", "\\p{Zs}\\x{9}"},
}};

bool is_general_category(std::string_view name) {
  if (name.empty() || name.size() > 2) return false;
  constexpr std::array<std::string_view, 7> kSubclasses{"Cc f n o s", "L u l t m o", "M n c e", "N d l o",
                                                        "P c d s e i f o", "S m c k o", "Z s l p"};
  const char major = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  for (const std::string_view group : kSubclasses) {
    if (group[0] != major) continue;
    return name.size() == 1 ||
           group.substr(1).find(static_cast<char>(std::tolower(static_cast<unsigned char>(name[1])))) != group.npos;
  }
  return false;
}

// A set of characters that is being read: plain members, or an expression that matches one character.
struct CharacterSet {
  std::string members;                   // as inside [ ]
  std::vector<std::string> expressions;  // each matches one character; the set is the union of all
  bool negated = false;

  // An expression for the set that always takes exactly one character.
  std::string expression() const {
    if (expressions.empty()) {
      if (members.empty()) return negated ? std::string(kAnyCharacter) : "(?!)";
      return (negated ? "[^" : "[") + members + "]";
    }
    std::string all;
    if (!members.empty()) all = "[" + members + "]";
    for (const std::string& expression : expressions) all += (all.empty() ? "" : "|") + expression;
    if (!negated) return all.find('|') == all.npos ? all : "(?:" + all + ")";
    return "(?:(?!" + all + ")" + std::string(kAnyCharacter) + ")";
  }
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (pos_ < pattern_.size()) element();
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw unsupported("expected a regular expression that is understood, found {} at byte {} of {}; simplify the pattern",
                      what, pos_, cadre::quoted(pattern_));
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
      out_ += literal(next_code_point());
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

  static std::string literal(char32_t c) {
    if (c < 0x80 && std::isalnum(static_cast<int>(c))) return std::string(1, static_cast<char>(c));
    return fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(c));
  }

  // A backslash outside of a class.
  std::string escape() {
    const char letter = pos_ + 1 < pattern_.size() ? pattern_[pos_ + 1] : '\0';
    if (letter == '\0') fail("a backslash at the end");
    if (auto set = escaped_set(kLatinWord)) return set->expression();
    if (letter == 'b' || letter == 'B') {
      pos_ += 2;
      const std::string word = fmt::format("[{}{}]", kWord, kLatinWord);
      return letter == 'b' ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word)
                           : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
    }
    if (std::string_view("AzZGKRX").find(letter) != std::string_view::npos ||
        (letter >= '1' && letter <= '9')) {
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
    return literal(escaped_code_point());
  }

  // \s, \W, \p{...} and the like, anywhere; nullopt (nothing read) for other escapes.
  std::optional<CharacterSet> escaped_set(std::string_view more_word = {}) {
    const char letter = pos_ + 1 < pattern_.size() ? pattern_[pos_ + 1] : '\0';
    CharacterSet set;
    if (const auto named = shorthand_set(letter)) {
      pos_ += 2;
      set.members = std::isupper(static_cast<unsigned char>(letter)) ? named->complement : named->members;
      return set;
    }
    if (letter == 'w' || letter == 'W') {
      pos_ += 2;
      return set_of(std::string(kWord).append(more_word), letter == 'W');
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
    set = property(name, negated, more_word);
    pos_ = end + 1;
    return set;
  }

  CharacterSet property(std::string_view name, bool negated, std::string_view more_word = {}) const {
    std::string plain;
    for (const char c : name)
      if (c != ' ' && c != '_' && c != '-') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (plain.empty() || !std::all_of(plain.begin(), plain.end(), [](unsigned char c) { return std::isalnum(c); }))
      fail("an empty or odd property name");
    const auto simple = [&](const NamedSet& named) {
      CharacterSet set;
      set.members = negated ? named.complement : named.members;
      return set;
    };
    if (plain == "space" || plain == "whitespace") return simple(kSpace);
    if (plain == "xdigit" || plain == "asciihexdigit") return simple(kHexDigit);
    if (plain == "word") return set_of(std::string(kWord).append(more_word), negated);
    if (plain == "alnum") return set_of("\\p{Alphabetic}\\p{Nd}", negated);
    if (plain == "graph") return set_of("\\p{Cc}\\p{Cn}\\p{Cs}\\p{Z}", !negated);
    if (plain == "print") return set_of("\\p{Cc}\\p{Cn}\\p{Cs}\\p{Zl}\\p{Zp}", !negated);
    for (const auto& [known, members] : kPropertyNames)
      if (plain == known) return set_of(std::string(members), negated);
    if (is_general_category(plain)) {
      plain[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(plain[0])));
      return set_of("\\p{" + plain + "}", negated);
    }
    // PCRE2 reads a bare script name as Script_Extensions; Oniguruma means Script.
    return set_of("\\p{" + script_or_property(plain) + "}", negated);
  }

  // The set of these members, or its complement.
  static CharacterSet set_of(std::string members, bool negated) {
    CharacterSet set;
    if (!negated) {
      set.members = std::move(members);
    } else if (members.starts_with("\\p{") && members.find('}') == members.size() - 1) {
      set.members = "\\P" + members.substr(2);
    } else {
      set.expressions.push_back("[^" + members + "]");
    }
    return set;
  }

  static std::string script_or_property(const std::string& plain) {
    constexpr std::array<std::string_view, 14> kBinary{
        "alphabetic", "uppercase", "lowercase", "emoji", "emojipresentation", "emojimodifier", "emojimodifierbase",
        "emojicomponent", "extendedpictographic", "ideographic", "math", "diacritic", "idstart", "idcontinue"};
    if (std::find(kBinary.begin(), kBinary.end(), plain) != kBinary.end()) return plain;
    return "sc:" + plain;
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
        add_set(posix_set(), &parts.back());
      } else if (peek() == '[') {
        add_set(character_set(depth + 1), &parts.back());
      } else {
        class_member(&parts.back());
      }
    }
    ++pos_;
    return intersection(std::move(parts), negated);
  }

  static void add_set(const CharacterSet& set, CharacterSet* into) {
    if (!set.negated && set.expressions.empty()) {
      into->members += set.members;
    } else {
      into->expressions.push_back(set.expression());
    }
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
      if (const auto escaped = escaped_set()) return add_set(*escaped, set);
    }
    const char32_t low = class_code_point();
    const bool is_range = peek() == '-' && pos_ + 1 < pattern_.size() && pattern_[pos_ + 1] != ']' &&
                          !pattern_.substr(pos_ + 1).starts_with('[') && !pattern_.substr(pos_ + 1).starts_with("&&");
    set->members += literal(low);
    if (!is_range) return;
    const size_t dash = pos_++;
    if (peek() == '\\' && pos_ + 1 < pattern_.size() && (shorthand_set(pattern_[pos_ + 1]) || pattern_[pos_ + 1] == 'p' || pattern_[pos_ + 1] == 'P')) {
      set->members += "\\x{2d}";  // [a-\d]: the dash stands for itself
      return;
    }
    const char32_t high = class_code_point();
    if (high < low) {
      pos_ = dash;
      fail("a range that ends before it starts");
    }
    set->members += "-" + literal(high);
  }

  char32_t class_code_point() { return peek() == '\\' ? escaped_code_point() : next_code_point(); }

  // [:alpha:] inside a class.
  CharacterSet posix_set() {
    const size_t end = pattern_.find(":]", pos_);
    if (end == pattern_.npos) fail("a POSIX class without its end");
    std::string_view name = pattern_.substr(pos_ + 2, end - pos_ - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    // \p{Punct} has no symbols.
    const CharacterSet set = name == "punct" ? set_of("\\p{P}\\p{S}", negated) : property(name, negated);
    pos_ = end + 2;
    return set;
  }

  std::string_view pattern_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_start_ = 0;        // where in out_ the atom before a quantifier starts
  std::vector<size_t> groups_;  // where in out_ the open groups start
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern) {
  if (!utf8::is_valid(pattern)) throw invalid_input("expected a regular expression in UTF-8, found invalid bytes; correct the file");
  return Translator(pattern).run();
}

std::string pcre2_literal(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    size_t length = 0;
    out += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(utf8::decode(text, &length)));
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace cadre
