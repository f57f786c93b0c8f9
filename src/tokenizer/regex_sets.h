// Sets of characters as regular expressions name them (\s, \p{Han}, [:alpha:]), written for PCRE2 so that they hold
// what Oniguruma puts in them. Part of regex_syntax.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cadre {

inline constexpr std::string_view kAnyCharacter = "[\\x{0}-\\x{10ffff}]";

// A set of characters: plain members, or expressions that match one character each; the set is the union of all.
struct CharacterSet {
  std::string members;  // as they stand inside [ ]
  std::vector<std::string> expressions;
  bool negated = false;

  // An expression for the set that always takes exactly one character.
  std::string expression() const;
  // Adds another set to this one.
  void add(const CharacterSet& set);
};

// The set of these members, or its complement.
CharacterSet set_of(std::string members, bool negated);

// What \s, \S, \w, \W, \d, \D, \h and \H (a hexadecimal digit) mean; nullopt for other letters. Oniguruma's \w holds
// six characters of Latin-1 more outside of classes.
std::optional<CharacterSet> shorthand_set(char letter, bool in_class);

// \p{name}: a general category, POSIX name, script or property. nullopt when the name is none by its form.
std::optional<CharacterSet> property_set(std::string_view name, bool negated, bool in_class);

// [:name:], which is \p{name} but for [:punct:].
std::optional<CharacterSet> posix_set(std::string_view name, bool negated);

// A character that means nothing but itself, inside and outside of classes.
std::string escaped_character(char32_t c);

}  // namespace cadre
