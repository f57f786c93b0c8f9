// The parser's class, shared by parser.cc (statements) and parser_expr.cc (expressions). Recursive descent.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/lexer.h"

namespace cadre::jinja {

// Sets a variable and puts the old value back at the end of the block.
template <typename T>
class Restored {
 public:
  Restored(T* variable, T value) : variable_(variable), old_(std::exchange(*variable, value)) {}
  ~Restored() { *variable_ = old_; }
  Restored(const Restored&) = delete;

 private:
  T* variable_;
  T old_;
};

struct TargetRules {
  bool with_namespace = false;
  std::string_view end = {};  // a name that ends the target
};

struct TupleRules {
  bool with_conditional = true;
  std::string_view end = {};
  bool may_be_empty = false;
};

class Parser {
 public:
  Parser(std::string_view source, int max_depth, int* line);
  std::unique_ptr<SyntaxTree> run();

 private:
  // One level of recursion.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (parser.depth_ >= parser.max_depth_) parser.too_deep();
      ++parser.depth_;
    }
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;

   private:
    Parser& parser_;
  };

  // A macro or call block whose body is being parsed, with the special names it has assigned to.
  struct Function {
    Signature* signature;
    std::vector<NameId> stored;
    bool is_stored(NameId id) const { return std::find(stored.begin(), stored.end(), id) != stored.end(); }
  };
  // A filter or test there is none of. Under an if or a conditional that is an error only when it is called.
  struct Unknown {
    std::string name;
    int line;
    bool is_filter, is_conditional;
  };

  const Token& token() const { return tokens_[position_]; }
  const Token& next_token() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  bool at_name(std::string_view text) const { return token().kind == TokenKind::kName && token().text == text; }
  bool at_operator(std::string_view text) const { return token().kind == TokenKind::kOperator && token().text == text; }
  bool skip_name(std::string_view text);
  bool skip_operator(std::string_view text);
  void expect(TokenKind kind, std::string_view what);
  void expect_operator(std::string_view text);
  std::string expect_name();
  [[noreturn]] void fail_here(std::string_view expected);
  [[noreturn]] void too_deep();
  NameId intern(std::string_view name);
  void mention(NameId id);
  void store(NameId id);
  bool* taken_by(Function& function, NameId id) const;
  void check_assignable(const std::string& name);

  Body parse_body(std::initializer_list<std::string_view> ends);
  Body parse_block(std::initializer_list<std::string_view> ends);
  Body parse_whole_block(std::string_view end);
  Body parse_hard_body(std::string_view end);
  Body parse_function_body(Signature* signature, std::string_view end);
  StmtPtr parse_statement(std::initializer_list<std::string_view> ends);
  StmtPtr parse_if(int line);
  StmtPtr parse_for(int line);
  StmtPtr parse_set(int line);
  StmtPtr parse_filter_block(int line);
  StmtPtr parse_macro(int line);
  StmtPtr parse_call_block(int line);
  StmtPtr parse_with(int line);
  StmtPtr parse_named_block(int line);
  StmtPtr parse_jump(StmtKind kind, int line);
  void parse_signature(Signature* signature);
  void check_caller(const Signature& signature, int line);
  Target parse_target(const TargetRules& rules);
  Target parse_single_target(const TargetRules& rules);

  ExprPtr parse_expression(bool with_conditional = true);
  ExprPtr parse_tuple(TupleRules rules = {});
  ExprPtr parse_operators(int min_level);
  ExprPtr parse_comparison(ExprPtr first);
  ExprPtr parse_concatenation(ExprPtr first);
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_name();
  ExprPtr parse_literal_string();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_filters_and_tests(ExprPtr expr);
  ExprPtr parse_attribute(ExprPtr object);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_slice(int line, ExprPtr object, ExprPtr start);
  ExprPtr parse_builtin(ExprKind kind, ExprPtr value);
  ExprPtr parse_test(ExprPtr value);
  ExprPtr parse_call(ExprPtr function);
  Arguments parse_arguments();

  // Ends the making of a node: its height follows from its children's.
  template <typename T>
  ExprPtr finished(std::unique_ptr<T> node, std::initializer_list<const Expr*> children);
  ExprPtr group(ExprKind kind, int line, std::vector<ExprPtr> items);
  int height_of(const Arguments& arguments) const;

  const std::vector<Token> tokens_;
  const int max_depth_;
  int& line_;
  std::unique_ptr<SyntaxTree> tree_;
  size_t position_ = 0;
  int depth_ = 0;
  std::unordered_map<std::string, NameId> ids_;
  std::vector<Function> functions_;
  std::vector<ForStmt*> loops_;
  std::vector<Unknown> unknown_;
  int num_open_fors_ = 0;
  int num_breakable_loops_ = 0;
  bool is_soft_ = false;
};

}  // namespace cadre::jinja
