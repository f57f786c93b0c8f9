// The statements. Expressions are in parser_expr.cc.
#include "tokenizer/jinja/parser.h"

#include <algorithm>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/parser_impl.h"

namespace cadre::jinja {

Parser::Parser(std::string_view source, int max_depth, int* line)
    : tokens_(tokenize(source, line)), max_depth_(max_depth), line_(*line), tree_(std::make_unique<SyntaxTree>()) {
  tree_->loop_id = intern("loop");
  tree_->caller_id = intern("caller");
  tree_->kwargs_id = intern("kwargs");
  tree_->varargs_id = intern("varargs");
}

std::unique_ptr<SyntaxTree> Parser::run() {
  tree_->body = parse_body({});
  for (const Unknown& unknown : unknown_) {
    if (unknown.is_conditional) continue;
    line_ = unknown.line;
    fail("expected a known {}, found '{}'", unknown.is_filter ? "filter" : "test", unknown.name);
  }
  return std::move(tree_);
}

NameId Parser::intern(std::string_view name) {
  const auto [found, is_new] = ids_.try_emplace(std::string(name), static_cast<NameId>(tree_->names.size()));
  if (is_new) tree_->names.emplace_back(name);
  return found->second;
}

void Parser::fail_here(std::string_view expected) {
  line_ = token().line;
  fail("expected {}, found {}", expected, describe(token()));
}

void Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail_here(fmt::format("'{}'", text));
}

void Parser::expect(TokenKind kind, std::string_view what) {
  if (token().kind != kind) fail_here(what);
  ++position_;
}

std::string Parser::expect_name() {
  if (token().kind != TokenKind::kName) fail_here("a name");
  return tokens_[position_++].text;
}

bool Parser::skip_name(std::string_view text) {
  if (!at_name(text)) return false;
  ++position_;
  return true;
}

bool Parser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  ++position_;
  return true;
}

// Everything up to a tag named in `ends` (the end of the template when empty), the tag's name not taken.
Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Level level(*this);
  Body body;
  for (;;) {
    const Token& current = token();
    line_ = current.line;
    ++position_;
    switch (current.kind) {
      case TokenKind::kData: body.push_back(std::make_unique<TextStmt>(current.line, current.text)); break;
      case TokenKind::kVariableBegin:
        body.push_back(std::make_unique<PrintStmt>(current.line, parse_tuple()));
        expect(TokenKind::kVariableEnd, "'}}'");
        break;
      case TokenKind::kBlockBegin:
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return at_name(end); })) return body;
        body.push_back(parse_statement(ends));
        expect(TokenKind::kBlockEnd, "'%}'");
        break;
      default:
        --position_;
        if (ends.size() == 0) return body;
        fail_here(fmt::format("{{% {} %}}", fmt::join(ends, " %} or {% ")));
    }
  }
}

// The body after a tag's own words: an optional colon, the end of the tag, then statements.
Body Parser::parse_block(std::initializer_list<std::string_view> ends) {
  skip_operator(":");
  expect(TokenKind::kBlockEnd, "'%}'");
  return parse_body(ends);
}

Body Parser::parse_whole_block(std::string_view end) {
  Body body = parse_block({end});
  ++position_;
  return body;
}

// A body that is a function of its own: no break out of it, and its filters must exist.
Body Parser::parse_function_body(Signature* signature, std::string_view end) {
  const Restored restored_soft(&is_soft_, false);
  const Restored restored_loops(&num_breakable_loops_, 0);
  functions_.push_back({signature, {}});
  Body body = parse_whole_block(end);
  functions_.pop_back();
  return body;
}

Body Parser::parse_hard_body(std::string_view end) {
  const Restored restored(&is_soft_, false);
  return parse_whole_block(end);
}

StmtPtr Parser::parse_statement(std::initializer_list<std::string_view> ends) {
  const int line = token().line;
  const std::string tag = expect_name();
  if (tag == "if") return parse_if(line);
  if (tag == "for") return parse_for(line);
  if (tag == "set") return parse_set(line);
  if (tag == "macro") return parse_macro(line);
  if (tag == "call") return parse_call_block(line);
  if (tag == "filter") return parse_filter_block(line);
  if (tag == "with") return parse_with(line);
  if (tag == "block") return parse_named_block(line);
  if (tag == "print") return std::make_unique<PrintStmt>(line, parse_tuple());
  if (tag == "break" || tag == "continue") return parse_jump(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
  if (tag == "generation") {
    auto scope = std::make_unique<ScopeStmt>(line);
    Signature unused;
    scope->body = parse_function_body(&unused, "endgeneration");
    return scope;
  }
  if (tag == "autoescape") {
    if (!skip_name("false") && !skip_name("False")) fail("expected {{% autoescape false %}}, found another {{% autoescape %}}; output is never escaped here");
    auto scope = std::make_unique<ScopeStmt>(line);
    scope->body = parse_hard_body("endautoescape");
    return scope;
  }
  if (tag == "extends" || tag == "include" || tag == "import" || tag == "from")
    fail("expected a template that stands alone, found {{% {} %}}; there are no other templates to load", tag);
  line_ = line;
  if (ends.size() == 0) fail("expected a known tag, found {{% {} %}}", tag);
  fail("expected a known tag or {{% {} %}}, found {{% {} %}}", fmt::join(ends, " %} or {% "), tag);
}

StmtPtr Parser::parse_if(int line) {
  const Restored restored(&is_soft_, true);
  auto statement = std::make_unique<IfStmt>(line);
  do {
    ExprPtr test = parse_tuple({.with_conditional = false});
    Body body = parse_block({"elif", "else", "endif"});
    statement->branches.emplace_back(std::move(test), std::move(body));
  } while (skip_name("elif"));
  if (skip_name("else")) statement->otherwise = parse_whole_block("endif");
  else ++position_;
  return statement;
}

StmtPtr Parser::parse_for(int line) {
  auto statement = std::make_unique<ForStmt>(line);
  ++num_open_fors_;
  statement->target = parse_target({.end = "in"});
  if (!skip_name("in")) fail_here("'in'");
  statement->iterable = parse_tuple({.with_conditional = false, .end = "recursive"});
  const Restored restored(&is_soft_, false);
  if (skip_name("if")) statement->test = parse_expression();
  statement->is_recursive = skip_name("recursive");
  {
    const Restored breakable(&num_breakable_loops_, num_breakable_loops_ + 1);
    loops_.push_back(statement.get());
    statement->body = parse_block({"endfor", "else"});
    loops_.pop_back();
  }
  if (skip_name("else")) statement->otherwise = parse_whole_block("endfor");
  else ++position_;
  --num_open_fors_;
  return statement;
}

StmtPtr Parser::parse_set(int line) {
  Target target = parse_target({.with_namespace = true});
  if (skip_operator("=")) {
    auto statement = std::make_unique<SetStmt>(line);
    statement->target = std::move(target);
    statement->value = parse_tuple();
    return statement;
  }
  auto statement = std::make_unique<CaptureStmt>(StmtKind::kSetBlock, line);
  statement->target = std::move(target);
  const Restored restored(&is_soft_, false);
  while (skip_operator("|")) statement->filter = parse_builtin(ExprKind::kFilter, std::move(statement->filter));
  statement->body = parse_whole_block("endset");
  return statement;
}

StmtPtr Parser::parse_filter_block(int line) {
  auto statement = std::make_unique<CaptureStmt>(StmtKind::kFilterBlock, line);
  const Restored restored(&is_soft_, false);
  do statement->filter = parse_builtin(ExprKind::kFilter, std::move(statement->filter));
  while (skip_operator("|"));
  statement->body = parse_whole_block("endfilter");
  return statement;
}

void Parser::parse_signature(Signature* signature) {
  expect_operator("(");
  while (!at_operator(")")) {
    if (!signature->parameters.empty()) expect_operator(",");
    const std::string name = expect_name();
    check_assignable(name);
    const NameId id = intern(name);
    if (std::any_of(signature->parameters.begin(), signature->parameters.end(), [&](const auto& other) { return other.first == id; }))
      fail("expected parameters of different names, found '{}' twice", name);
    store(id);
    signature->parameters.emplace_back(id, name);
    if (skip_operator("=")) signature->defaults.push_back(parse_expression());
    else if (!signature->defaults.empty()) fail_here("a default value, as the parameter before has one");
  }
  expect_operator(")");
}

// A parameter named 'caller' that the body uses needs a default, for the calls without a block.
void Parser::check_caller(const Signature& signature, int line) {
  const size_t num_without_default = signature.parameters.size() - signature.defaults.size();
  for (size_t i = 0; signature.takes_caller && i < num_without_default; ++i) {
    if (signature.parameters[i].first != tree_->caller_id) continue;
    line_ = line;
    fail("expected a default value for the parameter 'caller', found none");
  }
}

StmtPtr Parser::parse_macro(int line) {
  auto statement = std::make_unique<MacroStmt>(line);
  statement->signature.name = expect_name();
  check_assignable(statement->signature.name);
  statement->id = intern(statement->signature.name);
  const Restored restored(&is_soft_, false);
  parse_signature(&statement->signature);
  statement->body = parse_function_body(&statement->signature, "endmacro");
  check_caller(statement->signature, line);
  return statement;
}

StmtPtr Parser::parse_call_block(int line) {
  auto statement = std::make_unique<CallBlockStmt>(line);
  if (at_operator("(")) parse_signature(&statement->signature);
  statement->call = parse_expression();
  if (statement->call->kind != ExprKind::kCall) {
    line_ = line;
    fail("expected a call of a macro after {{% call, found another expression");
  }
  statement->body = parse_function_body(&statement->signature, "endcall");
  check_caller(statement->signature, line);
  return statement;
}

StmtPtr Parser::parse_with(int line) {
  auto statement = std::make_unique<ScopeStmt>(line);
  while (token().kind != TokenKind::kBlockEnd) {
    if (!statement->variables.empty()) expect_operator(",");
    Target target = parse_target({});
    expect_operator("=");
    statement->variables.emplace_back(std::move(target), parse_expression());
  }
  statement->body = parse_hard_body("endwith");
  return statement;
}

StmtPtr Parser::parse_named_block(int line) {
  auto statement = std::make_unique<ScopeStmt>(line);
  const std::string name = expect_name();
  statement->sees_only_globals = !skip_name("scoped");
  const Restored restored(&num_breakable_loops_, 0);
  statement->body = parse_hard_body("endblock");
  skip_name(name);
  return statement;
}

StmtPtr Parser::parse_jump(StmtKind kind, int line) {
  if (num_breakable_loops_ == 0) fail("expected 'break' and 'continue' inside a loop, found one outside");
  return std::make_unique<JumpStmt>(kind, line);
}

void Parser::check_assignable(const std::string& name) {
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"})
    if (name == constant) fail("expected a name to assign to, found the constant '{}'", name);
  if (name == "loop" && num_open_fors_ > 0) fail("expected another name to assign to inside a loop, found 'loop'");
}

Target Parser::parse_single_target(const TargetRules& rules) {
  const Level level(*this);
  Target target;
  target.line = token().line;
  line_ = target.line;
  if (skip_operator("(")) {
    target = parse_target({});
    expect_operator(")");
    return target;
  }
  const std::string name = expect_name();
  if (rules.with_namespace && skip_operator(".")) {
    target.attribute = expect_name();
    mention(intern(name));
  } else {
    check_assignable(name);
    store(intern(name));
  }
  target.id = intern(name);
  return target;
}

Target Parser::parse_target(const TargetRules& rules) {
  Target tuple;
  tuple.line = token().line;
  bool is_tuple = false;
  for (;;) {
    const bool at_end = token().kind == TokenKind::kBlockEnd || at_operator(")") || (!rules.end.empty() && at_name(rules.end));
    if (at_end && is_tuple) break;
    tuple.items.push_back(parse_single_target(rules));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return tuple;
  return std::move(tuple.items.front());
}

// Special names in a macro's body make it take more arguments; see Signature.
void Parser::mention(NameId id) {
  if (id == tree_->loop_id && !loops_.empty()) loops_.back()->uses_loop = true;
  for (Function& function : functions_) {
    if (bool* takes = taken_by(function, id); takes && !function.is_stored(id)) *takes = true;
  }
}

void Parser::store(NameId id) {
  for (Function& function : functions_) {
    if (const bool* takes = taken_by(function, id); takes && !*takes) function.stored.push_back(id);
  }
}

bool* Parser::taken_by(Function& function, NameId id) const {
  if (id == tree_->caller_id) return &function.signature->takes_caller;
  if (id == tree_->kwargs_id) return &function.signature->takes_kwargs;
  if (id == tree_->varargs_id) return &function.signature->takes_varargs;
  return nullptr;
}

std::unique_ptr<SyntaxTree> parse_template(std::string_view source, int max_depth, int* line) {
  return Parser(source, max_depth, line).run();
}

}  // namespace cadre::jinja
