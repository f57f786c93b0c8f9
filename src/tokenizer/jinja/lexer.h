// Cuts a template into tokens as Jinja does with trim_blocks and lstrip_blocks: the data tokens hold the text that is
// left after whitespace control, comments are gone, raw blocks are data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cadre::jinja {

enum class TokenKind : uint8_t {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text: + - * / // ** % ~ [ ] ( ) { } == != > >= < <= = . : | , ;
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // data, name, operator; of a string, what it stands for
  int64_t integer = 0;
  double real = 0;
};

// Throws Fault; *line then holds the line at fault.
std::vector<Token> tokenize(std::string_view source, int* line);

// "the name 'x'", "the end of the template": a token in a message.
std::string describe(const Token& token);

}  // namespace cadre::jinja
