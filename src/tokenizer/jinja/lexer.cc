#include "tokenizer/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "tokenizer/jinja/string_literal.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/jinja/value.h"

namespace cadre::jinja {
namespace {

// Line ends become \n; one at the end of the template is dropped.
std::string with_unix_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

// Two-character operators stand before their first characters.
constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
                                           "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  Lexer(std::string_view source, int* line) : source_(with_unix_lines(source)), rest_(source_), line_(*line) {}

  std::vector<Token> run() {
    while (!rest_.empty()) lex_data();
    add(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  void advance(size_t bytes) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + static_cast<ptrdiff_t>(bytes), '\n'));
    at_line_start_ = bytes > 0 ? rest_[bytes - 1] == '\n' : at_line_start_;
    rest_.remove_prefix(bytes);
  }

  void skip_space() { advance(rest_.size() - strip(rest_, std::nullopt, Side::kLeft).size()); }

  size_t space_at(size_t pos) const {
    const std::string_view tail = rest_.substr(pos);
    return tail.size() - strip(tail, std::nullopt, Side::kLeft).size();
  }

  // Whitespace control at the left of a tag: '-' strips all space before it; else a tag that is not a variable strips
  // the space between it and the start of its line, unless '+' stands there.
  std::string_view left_trimmed(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return strip(text, std::nullopt, Side::kRight);
    if (sign == '+' || is_variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t line_start = newline == text.npos ? 0 : newline + 1;
    if (line_start == 0 && !at_line_start_) return text;
    return is_all_space(text.substr(line_start)) ? text.substr(0, line_start) : text;
  }

  static char sign_at(std::string_view text, size_t pos) { return pos < text.size() && (text[pos] == '-' || text[pos] == '+') ? text[pos] : 0; }

  // Text up to the next tag, and that tag.
  void lex_data() {
    size_t tag = rest_.find('{');
    while (tag != rest_.npos && (tag + 1 == rest_.size() || std::string_view("%{#").find(rest_[tag + 1]) == std::string_view::npos))
      tag = rest_.find('{', tag + 1);
    if (tag == rest_.npos) {
      add(TokenKind::kData, std::string(rest_));
      advance(rest_.size());
      return;
    }
    const char kind = rest_[tag + 1], sign = sign_at(rest_, tag + 2);
    const std::string_view text = left_trimmed(rest_.substr(0, tag), sign, kind == '{');
    if (!text.empty()) add(TokenKind::kData, std::string(text));
    advance(tag);
    const size_t open_bytes = sign ? 3 : 2;
    if (kind == '#') {
      lex_comment(open_bytes);
    } else if (kind == '%' && !lex_raw(open_bytes)) {
      add(TokenKind::kBlockBegin, "{%");
      advance(open_bytes);
      lex_code(TokenKind::kBlockEnd, "%}");
    } else if (kind == '{') {
      add(TokenKind::kVariableBegin, "{{");
      advance(open_bytes);
      lex_code(TokenKind::kVariableEnd, "}}");
    }
  }

  // Length of `closing` with its whitespace control at pos, 0 when it is not there. Blocks and comments take one newline
  // after them along, unless '+' stands before.
  size_t closing_at(size_t pos, std::string_view closing, bool trims_newline) const {
    const std::string_view tail = rest_.substr(pos);
    if (tail.starts_with(closing)) return closing.size() + (trims_newline && tail.substr(closing.size()).starts_with('\n'));
    if (tail.empty() || !tail.substr(1).starts_with(closing)) return 0;
    if (tail[0] == '-') return 1 + closing.size() + space_at(pos + 1 + closing.size());
    return tail[0] == '+' && trims_newline ? 1 + closing.size() : 0;
  }

  // A tag that opens a comment or raw block at the very end of the template is let be, as in Jinja.
  bool ends_after(size_t bytes) {
    if (rest_.size() > bytes) return false;
    advance(bytes);
    return true;
  }

  void lex_comment(size_t open_bytes) {
    if (ends_after(open_bytes)) return;
    for (size_t pos = rest_.find_first_of("#-+", open_bytes); pos != rest_.npos; pos = rest_.find_first_of("#-+", pos + 1)) {
      if (const size_t bytes = closing_at(pos, "#}", true)) {
        advance(pos + bytes);
        return;
      }
    }
    fail("expected '#}}' at the end of the comment, found the end of the template");
  }

  // {% raw %} to {% endraw %}; false when it is another tag.
  bool lex_raw(size_t open_bytes) {
    size_t pos = open_bytes + space_at(open_bytes);
    if (!rest_.substr(pos).starts_with("raw")) return false;
    pos += 3 + space_at(pos + 3);
    // The newline after {% raw %} stays.
    if (rest_.substr(pos).starts_with("%}")) pos += 2;
    else if (rest_.substr(pos).starts_with("-%}")) pos += 3 + space_at(pos + 3);
    else return false;
    if (ends_after(pos)) return true;
    advance(pos);
    for (size_t tag = rest_.find("{%"); tag != rest_.npos; tag = rest_.find("{%", tag + 1)) {
      const char sign = sign_at(rest_, tag + 2);
      size_t end = tag + (sign ? 3 : 2);
      end += space_at(end);
      if (!rest_.substr(end).starts_with("endraw")) continue;
      end += 6 + space_at(end + 6);
      const size_t closing = closing_at(end, "%}", true);
      if (closing == 0) continue;
      const std::string_view text = left_trimmed(rest_.substr(0, tag), sign, false);
      if (!text.empty()) add(TokenKind::kData, std::string(text));
      advance(end + closing);
      return true;
    }
    fail("expected {{% endraw %}} after {{% raw %}}, found the end of the template");
  }

  void lex_code(TokenKind end_kind, std::string_view closing) {
    std::string open;  // brackets not closed yet, by what closes them
    for (;;) {
      skip_space();
      if (rest_.empty()) fail("expected '{}', found the end of the template", closing);
      const size_t bytes = open.empty() ? closing_at(0, closing, end_kind == TokenKind::kBlockEnd) : 0;
      if (bytes > 0) {
        add(end_kind, std::string(closing));
        advance(bytes);
        return;
      }
      lex_token(&open);
    }
  }

  void lex_token(std::string* open) {
    const char c = rest_[0];
    size_t length = 0;
    if (is_digit(c)) {
      lex_number();
    } else if (const char32_t first = utf8::decode(rest_, &length); is_name_start(first)) {
      size_t end = 0;
      while (end < rest_.size() && is_name_char(utf8::decode(rest_.substr(end), &length))) end += length;
      add(TokenKind::kName, std::string(rest_.substr(0, end)));
      advance(end);
    } else if (c == '\'' || c == '"') {
      const size_t end = string_literal_end(rest_);
      add(TokenKind::kString, unescaped(rest_.substr(1, end - 2)));
      advance(end);
    } else {
      lex_operator(open);
    }
  }

  void lex_operator(std::string* open) {
    const auto found = std::find_if(std::begin(kOperators), std::end(kOperators), [&](std::string_view op) { return rest_.starts_with(op); });
    if (found == std::end(kOperators)) fail("expected an expression, found {}", quoted(rest_.substr(0, byte_offset(rest_, 1))));
    const char c = found->front();
    if (c == '(' || c == '[' || c == '{') {
      *open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open->empty()) fail("found '{}' without its opening bracket", c);
      if (open->back() != c) fail("expected '{}', found '{}'", open->back(), c);
      open->pop_back();
    }
    add(TokenKind::kOperator, std::string(*found));
    advance(found->size());
  }

  // Bytes of digits, single underscores between them allowed, from pos.
  template <typename IsDigit>
  size_t digits_from(size_t pos, IsDigit is_digit_of_base) const {
    size_t end = pos;
    while (end < rest_.size()) {
      if (is_digit_of_base(rest_[end])) ++end;
      else if (rest_[end] == '_' && end > pos && end + 1 < rest_.size() && is_digit_of_base(rest_[end + 1])) end += 2;
      else break;
    }
    return end - pos;
  }

  void lex_number() {
    const size_t whole = digits_from(0, is_digit);
    size_t end = whole;
    const bool after_dot = rest_.data() != source_.data() && rest_.data()[-1] == '.';
    if (!after_dot) {
      if (end < rest_.size() && rest_[end] == '.') {
        const size_t fraction = digits_from(end + 1, is_digit);
        if (fraction > 0) end += 1 + fraction;
      }
      if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
        const size_t digits = end + (end + 1 < rest_.size() && (rest_[end + 1] == '+' || rest_[end + 1] == '-') ? 2 : 1);
        const size_t exponent = digits_from(digits, is_digit);
        if (exponent > 0) end = digits + exponent;
      }
    }
    if (end > whole) {
      const std::string text = without_underscores(rest_.substr(0, end));
      add(TokenKind::kFloat, {});
      tokens_.back().real = std::strtod(text.c_str(), nullptr);
      advance(end);
    } else {
      lex_integer(whole);
    }
  }

  static std::string without_underscores(std::string_view text) {
    std::string out(text);
    std::erase(out, '_');
    return out;
  }

  void lex_integer(size_t decimal_digits) {
    int base = 10;
    size_t prefix = 0, end = decimal_digits;
    if (rest_[0] == '0') {
      const char mark = rest_.size() > 1 ? static_cast<char>(rest_[1] | 0x20) : 0;
      const int marked_base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
      const auto is_digit_of_base = [&](char c) {
        const char low = static_cast<char>(c | 0x20);
        return marked_base == 16 ? is_digit(c) || (low >= 'a' && low <= 'f') : c >= '0' && c < '0' + marked_base;
      };
      const size_t skip = 2 + (rest_.size() > 2 && rest_[2] == '_');
      const size_t digits = marked_base ? digits_from(skip, is_digit_of_base) : 0;
      if (digits > 0) {
        base = marked_base;
        prefix = skip;
        end = skip + digits;
      } else {
        end = digits_from(0, [](char c) { return c == '0'; });
      }
    }
    const std::string text = without_underscores(rest_.substr(prefix, end - prefix));
    int64_t number = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), number, base).ec != std::errc())
      fail("expected an integer of at most 64 bits, found {}", quoted(text, 40));
    add(TokenKind::kInteger, {});
    tokens_.back().integer = number;
    advance(end);
  }

  const std::string source_;
  std::string_view rest_;
  int& line_;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, int* line) { return Lexer(source, line).run(); }

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData: return "text";
    case TokenKind::kName: return "the name " + quoted(token.text, 40);
    case TokenKind::kString: return "the string " + quoted(token.text, 40);
    case TokenKind::kInteger: return fmt::format("the number {}", token.integer);
    case TokenKind::kFloat: return fmt::format("the number {}", token.real);
    case TokenKind::kEnd: return "the end of the template";
    default: return quoted(token.text, 40);
  }
}

}  // namespace cadre::jinja
