// Expressions, by precedence: conditional, or, and, not, comparisons and in, + and -, ~, * / // %, **, signs, then
// filters and tests, which bind tighter than any operator.
#include "base/error.h"
#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/parser_impl.h"

namespace cadre::jinja {
namespace {

enum Precedence { kOr, kAnd, kNot, kCompare, kSum, kConcat, kProduct, kPower, kUnary };

// The level of the binary operator a token is, or -1.
int level_of(const Token& token, const Token& next) {
  if (token.kind == TokenKind::kName) {
    if (token.text == "or") return kOr;
    if (token.text == "and") return kAnd;
    if (token.text == "in") return kCompare;
    if (token.text == "not" && next.kind == TokenKind::kName && next.text == "in") return kCompare;
    return -1;
  }
  if (token.kind != TokenKind::kOperator) return -1;
  const std::string_view op = token.text;
  if (op == "==" || op == "!=" || op == "<" || op == "<=" || op == ">" || op == ">=") return kCompare;
  if (op == "+" || op == "-") return kSum;
  if (op == "~") return kConcat;
  if (op == "*" || op == "/" || op == "//" || op == "%") return kProduct;
  return op == "**" ? kPower : -1;
}

BinaryOp binary_op(std::string_view op) {
  if (op == "+") return BinaryOp::kAdd;
  if (op == "-") return BinaryOp::kSub;
  if (op == "*") return BinaryOp::kMul;
  if (op == "/") return BinaryOp::kDiv;
  if (op == "//") return BinaryOp::kFloorDiv;
  return op == "%" ? BinaryOp::kMod : BinaryOp::kPow;
}

CompareOp compare_op(std::string_view op) {
  if (op == "==") return CompareOp::kEqual;
  if (op == "!=") return CompareOp::kNotEqual;
  if (op == "<") return CompareOp::kLess;
  if (op == "<=") return CompareOp::kLessEqual;
  if (op == ">") return CompareOp::kGreater;
  if (op == ">=") return CompareOp::kGreaterEqual;
  return op == "in" ? CompareOp::kIn : CompareOp::kNotIn;
}

int height_of(const ExprPtr& expr) { return expr ? expr->height : 0; }

}  // namespace

void Parser::too_deep() {
  line_ = token().line;
  fail("expected at most {} levels of nesting, found more", max_depth_);
}

template <typename T>
ExprPtr Parser::finished(std::unique_ptr<T> node, std::initializer_list<const Expr*> children) {
  for (const Expr* child : children)
    if (child) node->height = std::max(node->height, child->height + 1);
  if (node->height > max_depth_) too_deep();
  return node;
}

ExprPtr Parser::group(ExprKind kind, int line, std::vector<ExprPtr> items) {
  auto node = std::make_unique<GroupExpr>(kind, line, std::move(items));
  for (const ExprPtr& item : node->items) node->height = std::max(node->height, item->height + 1);
  return finished(std::move(node), {});
}

int Parser::height_of(const Arguments& arguments) const {
  int height = std::max(jinja::height_of(arguments.more_positional), jinja::height_of(arguments.more_keyword));
  for (const ExprPtr& argument : arguments.positional) height = std::max(height, argument->height);
  for (const auto& [name, argument] : arguments.keyword) height = std::max(height, argument->height);
  return height;
}

ExprPtr Parser::parse_expression(bool with_conditional) {
  const Level level(*this);
  const size_t first_unknown = unknown_.size();
  int line = token().line;
  ExprPtr value = parse_operators(kOr);
  while (with_conditional && skip_name("if")) {
    ExprPtr test = parse_operators(kOr);
    ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    const std::initializer_list<const Expr*> children = {test.get(), value.get(), otherwise.get()};
    value = finished(std::make_unique<ConditionalExpr>(line, std::move(test), std::move(value), std::move(otherwise)), children);
    for (size_t i = first_unknown; i < unknown_.size(); ++i) unknown_[i].is_conditional = true;
    line = token().line;
  }
  return value;
}

// One expression, or several with commas: a tuple.
ExprPtr Parser::parse_tuple(TupleRules rules) {
  const int line = token().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    const bool at_end = token().kind == TokenKind::kVariableEnd || token().kind == TokenKind::kBlockEnd || at_operator(")") ||
                        (!rules.end.empty() && at_name(rules.end));
    if (at_end) break;
    items.push_back(parse_expression(rules.with_conditional));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (items.empty() && !rules.may_be_empty) fail_here("an expression");
  return group(ExprKind::kTuple, line, std::move(items));
}

ExprPtr Parser::parse_operators(int min_level) {
  const Level level_guard(*this);
  ExprPtr left;
  int line = token().line;
  if (min_level <= kNot && skip_name("not")) {
    std::vector<ExprPtr> operand;
    operand.push_back(parse_operators(kNot));
    left = group(ExprKind::kNot, line, std::move(operand));
  } else {
    left = parse_unary(true);
  }
  for (;;) {
    const int level = level_of(token(), next_token());
    if (level < min_level) return left;
    line = token().line;
    if (level == kCompare) {
      left = parse_comparison(std::move(left));
    } else if (level == kConcat) {
      left = parse_concatenation(std::move(left));
    } else if (level == kOr || level == kAnd) {
      ++position_;
      std::vector<ExprPtr> operands;
      operands.push_back(std::move(left));
      operands.push_back(parse_operators(level + 1));
      left = group(level == kOr ? ExprKind::kOr : ExprKind::kAnd, line, std::move(operands));
    } else {
      const BinaryOp op = binary_op(token().text);
      ++position_;
      ExprPtr right = parse_operators(level + 1);
      const std::initializer_list<const Expr*> children = {left.get(), right.get()};
      left = finished(std::make_unique<BinaryExpr>(line, op, std::move(left), std::move(right)), children);
    }
  }
}

ExprPtr Parser::parse_comparison(ExprPtr first) {
  auto node = std::make_unique<CompareExpr>(token().line, std::move(first));
  node->height = node->first->height + 1;
  while (level_of(token(), next_token()) == kCompare) {
    const CompareOp op = compare_op(token().text);
    position_ += op == CompareOp::kNotIn ? 2 : 1;
    node->rest.emplace_back(op, parse_operators(kSum));
    node->height = std::max(node->height, node->rest.back().second->height + 1);
  }
  return finished(std::move(node), {});
}

ExprPtr Parser::parse_concatenation(ExprPtr first) {
  const int line = token().line;
  std::vector<ExprPtr> items;
  items.push_back(std::move(first));
  while (skip_operator("~")) items.push_back(parse_operators(kProduct));
  return group(ExprKind::kConcat, line, std::move(items));
}

ExprPtr Parser::parse_unary(bool with_filters) {
  const Level level(*this);
  const int line = token().line;
  ExprPtr expr;
  if (at_operator("-") || at_operator("+")) {
    const ExprKind kind = at_operator("-") ? ExprKind::kNegative : ExprKind::kPositive;
    ++position_;
    std::vector<ExprPtr> operand;
    operand.push_back(parse_unary(false));
    expr = group(kind, line, std::move(operand));
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filters ? parse_filters_and_tests(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::parse_primary() {
  const Token& current = token();
  line_ = current.line;
  switch (current.kind) {
    case TokenKind::kName: return parse_name();
    case TokenKind::kString: return parse_literal_string();
    case TokenKind::kInteger: ++position_; return std::make_unique<ConstExpr>(current.line, Value(current.integer));
    case TokenKind::kFloat: ++position_; return std::make_unique<ConstExpr>(current.line, Value(current.real));
    default: break;
  }
  if (skip_operator("(")) {
    ExprPtr expr = parse_tuple({.may_be_empty = true});
    expect_operator(")");
    return expr;
  }
  if (skip_operator("[")) return parse_list();
  if (skip_operator("{")) return parse_dict();
  fail_here("an expression");
}

ExprPtr Parser::parse_name() {
  const Token& current = tokens_[position_++];
  const std::string& name = current.text;
  if (name == "true" || name == "True") return std::make_unique<ConstExpr>(current.line, Value(true));
  if (name == "false" || name == "False") return std::make_unique<ConstExpr>(current.line, Value(false));
  if (name == "none" || name == "None") return std::make_unique<ConstExpr>(current.line, Value());
  const NameId id = intern(name);
  mention(id);
  return std::make_unique<NameExpr>(current.line, id);
}

ExprPtr Parser::parse_literal_string() {
  const int line = token().line;
  std::string text;
  while (token().kind == TokenKind::kString) text += tokens_[position_++].text;
  return std::make_unique<ConstExpr>(line, tree_->constants.string(std::move(text)));
}

ExprPtr Parser::parse_list() {
  const int line = token().line;
  std::vector<ExprPtr> items;
  while (!at_operator("]")) {
    if (!items.empty()) expect_operator(",");
    if (at_operator("]")) break;
    items.push_back(parse_expression());
  }
  ++position_;
  return group(ExprKind::kList, line, std::move(items));
}

ExprPtr Parser::parse_dict() {
  const int line = token().line;
  std::vector<ExprPtr> items;
  while (!at_operator("}")) {
    if (!items.empty()) expect_operator(",");
    if (at_operator("}")) break;
    items.push_back(parse_expression());
    expect_operator(":");
    items.push_back(parse_expression());
  }
  ++position_;
  return group(ExprKind::kDict, line, std::move(items));
}

ExprPtr Parser::parse_postfix(ExprPtr expr) {
  for (;;) {
    if (skip_operator(".")) expr = parse_attribute(std::move(expr));
    else if (skip_operator("[")) expr = parse_subscript(std::move(expr));
    else if (at_operator("(")) expr = parse_call(std::move(expr));
    else return expr;
  }
}

ExprPtr Parser::parse_filters_and_tests(ExprPtr expr) {
  for (;;) {
    if (skip_operator("|")) expr = parse_builtin(ExprKind::kFilter, std::move(expr));
    else if (skip_name("is")) expr = parse_test(std::move(expr));
    else if (at_operator("(")) expr = parse_call(std::move(expr));
    else return expr;
  }
}

ExprPtr Parser::parse_attribute(ExprPtr object) {
  const Token& current = token();
  ExprPtr key;
  const Expr* child = object.get();
  if (current.kind == TokenKind::kName) {
    ++position_;
    return finished(std::make_unique<AttributeExpr>(current.line, std::move(object), current.text), {child});
  }
  if (current.kind != TokenKind::kInteger) fail_here("a name or number after '.'");
  ++position_;
  key = std::make_unique<ConstExpr>(current.line, Value(current.integer));
  return finished(std::make_unique<ItemExpr>(current.line, std::move(object), std::move(key)), {child});
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  const int line = token().line;
  ExprPtr key;
  std::vector<ExprPtr> keys;
  if (!at_operator(":")) key = parse_expression();
  if (skip_operator(":")) return parse_slice(line, std::move(object), std::move(key));
  if (at_operator(",")) {
    keys.push_back(std::move(key));
    while (skip_operator(",") && !at_operator("]")) keys.push_back(parse_expression());
    key = group(ExprKind::kTuple, line, std::move(keys));
  }
  expect_operator("]");
  const std::initializer_list<const Expr*> children = {object.get(), key.get()};
  return finished(std::make_unique<ItemExpr>(line, std::move(object), std::move(key)), children);
}

// After the first colon.
ExprPtr Parser::parse_slice(int line, ExprPtr object, ExprPtr start) {
  auto node = std::make_unique<SliceExpr>(line, std::move(object));
  node->start = std::move(start);
  if (!at_operator(":") && !at_operator("]")) node->stop = parse_expression();
  if (skip_operator(":") && !at_operator("]")) node->step = parse_expression();
  expect_operator("]");
  const std::initializer_list<const Expr*> children = {node->object.get(), node->start.get(), node->stop.get(), node->step.get()};
  return finished(std::move(node), children);
}

ExprPtr Parser::parse_builtin(ExprKind kind, ExprPtr value) {
  const int line = token().line;
  std::string name = expect_name();
  while (skip_operator(".")) name += "." + expect_name();
  Arguments arguments;
  if (at_operator("(")) arguments = parse_arguments();
  auto node = std::make_unique<BuiltinExpr>(kind, line, std::move(value), std::move(name), std::move(arguments));
  node->builtin = kind == ExprKind::kFilter ? find_filter(node->name) : find_test(node->name);
  if (!node->builtin) unknown_.push_back({node->name, line, kind == ExprKind::kFilter, is_soft_});
  node->height = height_of(node->arguments) + 1;
  const Expr* child = node->value.get();
  return finished(std::move(node), {child});
}

// After 'is'. An argument without parentheses may follow the test's name: x is divisibleby 3.
ExprPtr Parser::parse_test(ExprPtr value) {
  const int line = token().line;
  const bool is_negated = skip_name("not");
  ExprPtr test = parse_builtin(ExprKind::kTest, std::move(value));
  auto& node = static_cast<BuiltinExpr&>(*test);
  const Token& current = token();
  const bool starts_argument = (current.kind == TokenKind::kName && current.text != "else" && current.text != "or" && current.text != "and") ||
                               current.kind == TokenKind::kString || current.kind == TokenKind::kInteger || current.kind == TokenKind::kFloat ||
                               at_operator("[") || at_operator("{");
  const bool had_parentheses = tokens_[position_ - 1].kind == TokenKind::kOperator;
  if (starts_argument && !had_parentheses) {
    if (at_name("is")) fail_here("one test after 'is'");
    node.arguments.positional.push_back(parse_postfix(parse_primary()));
    node.height = std::max(node.height, node.arguments.positional.back()->height + 1);
    if (node.height > max_depth_) too_deep();
  }
  if (!is_negated) return test;
  std::vector<ExprPtr> operand;
  operand.push_back(std::move(test));
  return group(ExprKind::kNot, line, std::move(operand));
}

ExprPtr Parser::parse_call(ExprPtr function) {
  const int line = token().line;
  auto node = std::make_unique<CallExpr>(line, std::move(function), parse_arguments());
  node->height = height_of(node->arguments) + 1;
  const Expr* child = node->function.get();
  return finished(std::move(node), {child});
}

Arguments Parser::parse_arguments() {
  Arguments arguments;
  expect_operator("(");
  bool is_first = true;
  while (!at_operator(")")) {
    if (!std::exchange(is_first, false)) {
      expect_operator(",");
      if (at_operator(")")) break;
    }
    const bool takes_more = !arguments.more_keyword;
    if (at_operator("*")) {
      if (!takes_more || arguments.more_positional) fail_here("no '*' here");
      ++position_;
      arguments.more_positional = parse_expression();
    } else if (at_operator("**")) {
      if (!takes_more) fail_here("no '**' here");
      ++position_;
      arguments.more_keyword = parse_expression();
    } else if (token().kind == TokenKind::kName && next_token().kind == TokenKind::kOperator && next_token().text == "=") {
      if (!takes_more) fail_here("no argument after '**'");
      std::string name = tokens_[position_].text;
      position_ += 2;
      for (const auto& [other, value] : arguments.keyword)
        if (other == name) fail("expected each keyword argument once, found '{}' twice", name);
      arguments.keyword.emplace_back(std::move(name), parse_expression());
    } else {
      if (!takes_more || arguments.more_positional || !arguments.keyword.empty()) fail_here("a keyword argument");
      arguments.positional.push_back(parse_expression());
    }
  }
  ++position_;
  return arguments;
}

}  // namespace cadre::jinja
