#include "tokenizer/regex_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace cadre {
namespace {

// Members of a set and of its complement.
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
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{"
    "1f189}";
// Oniguruma counts these six of Latin-1 too, outside of classes.
constexpr std::string_view kLatinWord = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr NamedSet kDigit{"\\p{Nd}", "\\P{Nd}"};
constexpr NamedSet kHexDigit{"0-9A-Fa-f", "\\x{0}-\\x{2f}\\x{3a}-\\x{40}\\x{47}-\\x{60}\\x{67}-\\x{10ffff}"};

// General categories by their long names, and POSIX names; PCRE2 knows the short ones only.
constexpr std::array<std::pair<std::string_view, std::string_view>, 49> kPropertyNames{{
    {"any", "\\p{Any}"},
    {"letter", "\\p{L}"},
    {"uppercaseletter", "\\p{Lu}"},
    {"lowercaseletter", "\\p{Ll}"},
    {"titlecaseletter", "\\p{Lt}"},
    {"modifierletter", "\\p{Lm}"},
    {"otherletter", "\\p{Lo}"},
    {"casedletter", "\\p{L&}"},
    {"lc", "\\p{L&}"},
    {"mark", "\\p{M}"},
    {"combiningmark", "\\p{M}"},
    {"nonspacingmark", "\\p{Mn}"},
    {"spacingmark", "\\p{Mc}"},
    {"enclosingmark", "\\p{Me}"},
    {"number", "\\p{N}"},
    {"decimalnumber", "\\p{Nd}"},
    {"letternumber", "\\p{Nl}"},
    {"othernumber", "\\p{No}"},
    {"punctuation", "\\p{P}"},
    {"punct", "\\p{P}"},
    {"connectorpunctuation", "\\p{Pc}"},
    {"dashpunctuation", "\\p{Pd}"},
    {"openpunctuation", "\\p{Ps}"},
    {"closepunctuation", "\\p{Pe}"},
    {"initialpunctuation", "\\p{Pi}"},
    {"finalpunctuation", "\\p{Pf}"},
    {"otherpunctuation", "\\p{Po}"},
    {"symbol", "\\p{S}"},
    {"mathsymbol", "\\p{Sm}"},
    {"currencysymbol", "\\p{Sc}"},
    {"modifiersymbol", "\\p{Sk}"},
    {"othersymbol", "\\p{So}"},
    {"separator", "\\p{Z}"},
    {"spaceseparator", "\\p{Zs}"},
    {"lineseparator", "\\p{Zl}"},
    {"paragraphseparator", "\\p{Zp}"},
    {"other", "\\p{C}"},
    {"control", "\\p{Cc}"},
    {"cntrl", "\\p{Cc}"},
    {"format", "\\p{Cf}"},
    {"unassigned", "\\p{Cn}"},
    {"privateuse", "\\p{Co}"},
    {"surrogate", "\\p{Cs}"},
    {"alpha", "\\p{Alphabetic}"},
    {"upper", "\\p{Uppercase}"},
    {"lower", "\\p{Lowercase}"},
    {"digit", "\\p{Nd}"},
    {"ascii", "\\x{0}-\\x{7f}"},
    {"blank", "\\p{Zs}\\x{9}"},
}};

bool is_general_category(std::string_view name) {
  if (name.empty() || name.size() > 2) return false;
  constexpr std::array<std::string_view, 7> kSubclasses{"Cc f n o s",      "L u l t m o", "M n c e", "N d l o",
                                                        "P c d s e i f o", "S m c k o",   "Z s l p"};
  const char major = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  for (const std::string_view group : kSubclasses) {
    if (group[0] != major) continue;
    return name.size() == 1 ||
           group.substr(1).find(static_cast<char>(std::tolower(static_cast<unsigned char>(name[1])))) != group.npos;
  }
  return false;
}

std::string script_or_property(const std::string& plain) {
  constexpr std::array<std::string_view, 14> kBinary{"alphabetic",
                                                     "uppercase",
                                                     "lowercase",
                                                     "emoji",
                                                     "emojipresentation",
                                                     "emojimodifier",
                                                     "emojimodifierbase",
                                                     "emojicomponent",
                                                     "extendedpictographic",
                                                     "ideographic",
                                                     "math",
                                                     "diacritic",
                                                     "idstart",
                                                     "idcontinue"};
  if (std::find(kBinary.begin(), kBinary.end(), plain) != kBinary.end()) return plain;
  return "sc:" + plain;
}

CharacterSet set_of(const NamedSet& named, bool negated) {
  CharacterSet set;
  set.members = negated ? named.complement : named.members;
  return set;
}

CharacterSet word_set(bool negated, bool in_class) {
  return cadre::set_of(std::string(kWord).append(in_class ? "" : kLatinWord), negated);
}

}  // namespace

std::string CharacterSet::expression() const {
  if (expressions.empty()) {
    if (members.empty()) return negated ? std::string(kAnyCharacter) : "(?!)";
    return (negated ? "[^" : "[") + members + "]";
  }
  std::string all;
  if (!members.empty()) all = "[" + members + "]";
  for (const std::string& expression : expressions) all += (all.empty() ? "" : "|") + expression;
  if (negated) return "(?:(?!" + all + ")" + std::string(kAnyCharacter) + ")";
  return expressions.size() == 1 && members.empty() ? all : "(?:" + all + ")";
}

void CharacterSet::add(const CharacterSet& set) {
  if (!set.negated && set.expressions.empty()) {
    members += set.members;
  } else {
    expressions.push_back(set.expression());
  }
}

CharacterSet set_of(std::string members, bool negated) {
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

std::optional<CharacterSet> shorthand_set(char letter, bool in_class) {
  const bool negated = std::isupper(static_cast<unsigned char>(letter));
  switch (std::tolower(static_cast<unsigned char>(letter))) {
    case 's': return set_of(kSpace, negated);
    case 'w': return word_set(negated, in_class);
    case 'd': return set_of(kDigit, negated);
    case 'h': return set_of(kHexDigit, negated);
    default: return std::nullopt;
  }
}

std::optional<CharacterSet> property_set(std::string_view name, bool negated, bool in_class) {
  std::string plain;
  for (const char c : name)
    if (c != ' ' && c != '_' && c != '-') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (plain.empty() || !std::all_of(plain.begin(), plain.end(), [](unsigned char c) { return std::isalnum(c); }))
    return std::nullopt;
  if (plain == "space" || plain == "whitespace") return set_of(kSpace, negated);
  if (plain == "xdigit" || plain == "asciihexdigit") return set_of(kHexDigit, negated);
  if (plain == "word") return word_set(negated, in_class);
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

std::optional<CharacterSet> posix_set(std::string_view name, bool negated) {
  if (name == "punct") return set_of("\\p{P}\\p{S}", negated);
  return property_set(name, negated, true);
}

std::string escaped_character(char32_t c) {
  if (c < 0x80 && std::isalnum(static_cast<int>(c))) return std::string(1, static_cast<char>(c));
  return fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(c));
}

}  // namespace cadre
