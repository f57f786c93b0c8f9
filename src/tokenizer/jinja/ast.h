// A parsed template: statements and expressions, each with its line. Immutable once parsed; renderings share it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/jinja/operations.h"
#include "tokenizer/jinja/value.h"

namespace cadre::jinja {

class Runtime;
struct Args;
// Filters and tests: the first positional argument is what stands before '|' or 'is'.
using Builtin = Value (*)(Runtime& rt, Args& args);

// Names of variables are numbered over the template.
using NameId = int32_t;

enum class ExprKind : uint8_t {
  kConst, kName, kList, kTuple, kDict, kNot, kNegative, kPositive, kBinary, kAnd, kOr,
  kCompare, kConcat, kConditional, kAttribute, kItem, kSlice, kCall, kFilter, kTest,
};

struct Expr {
  Expr(ExprKind k, int l) : kind(k), line(l) {}
  virtual ~Expr() = default;
  const ExprKind kind;
  const int line;
  int height = 1;  // of the tree below, bounded by the parser
};
using ExprPtr = std::unique_ptr<Expr>;

struct ConstExpr final : Expr {
  ConstExpr(int line, Value v) : Expr(ExprKind::kConst, line), value(std::move(v)) {}
  Value value;
};

struct NameExpr final : Expr {
  NameExpr(int line, NameId i) : Expr(ExprKind::kName, line), id(i) {}
  NameId id;
};

// The items of a list, tuple, concatenation, 'and', 'or' (two), 'not' and signs (one), a dict's keys and values in turn.
struct GroupExpr final : Expr {
  GroupExpr(ExprKind kind, int line, std::vector<ExprPtr> i) : Expr(kind, line), items(std::move(i)) {}
  std::vector<ExprPtr> items;
};

struct BinaryExpr final : Expr {
  BinaryExpr(int line, BinaryOp o, ExprPtr l, ExprPtr r)
      : Expr(ExprKind::kBinary, line), op(o), left(std::move(l)), right(std::move(r)) {}
  BinaryOp op;
  ExprPtr left, right;
};

enum class CompareOp : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct CompareExpr final : Expr {
  CompareExpr(int line, ExprPtr f) : Expr(ExprKind::kCompare, line), first(std::move(f)) {}
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;  // a < b < c: each operand is evaluated once
};

struct ConditionalExpr final : Expr {
  ConditionalExpr(int line, ExprPtr t, ExprPtr y, ExprPtr n)
      : Expr(ExprKind::kConditional, line), test(std::move(t)), yes(std::move(y)), no(std::move(n)) {}
  ExprPtr test, yes, no;  // no: may be null
};

struct AttributeExpr final : Expr {
  AttributeExpr(int line, ExprPtr o, std::string n) : Expr(ExprKind::kAttribute, line), object(std::move(o)), name(std::move(n)) {}
  ExprPtr object;
  std::string name;
};

struct ItemExpr final : Expr {
  ItemExpr(int line, ExprPtr o, ExprPtr k) : Expr(ExprKind::kItem, line), object(std::move(o)), key(std::move(k)) {}
  ExprPtr object, key;
};

struct SliceExpr final : Expr {
  SliceExpr(int line, ExprPtr o) : Expr(ExprKind::kSlice, line), object(std::move(o)) {}
  ExprPtr object, start, stop, step;  // the last three may be null
};

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr more_positional, more_keyword;  // *args and **kwargs, or null
};

struct CallExpr final : Expr {
  CallExpr(int line, ExprPtr f, Arguments a) : Expr(ExprKind::kCall, line), function(std::move(f)), arguments(std::move(a)) {}
  ExprPtr function;
  Arguments arguments;
};

// A filter or a test.
struct BuiltinExpr final : Expr {
  BuiltinExpr(ExprKind kind, int line, ExprPtr v, std::string n, Arguments a)
      : Expr(kind, line), value(std::move(v)), name(std::move(n)), arguments(std::move(a)) {}
  ExprPtr value;  // null in a filter block: the block's text
  std::string name;
  Builtin builtin = nullptr;  // null: there is none of that name, found out when it is called
  Arguments arguments;
};

// What a value is stored into: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  NameId id = -1;                 // -1: a tuple
  std::string attribute;          // of the namespace `id`; empty: the name itself
  std::vector<Target> items;
  int line = 0;
};

enum class StmtKind : uint8_t {
  kText, kPrint, kIf, kFor, kSet, kSetBlock, kMacro, kCallBlock, kFilterBlock, kScope, kBreak, kContinue,
};

struct Stmt {
  Stmt(StmtKind k, int l) : kind(k), line(l) {}
  virtual ~Stmt() = default;
  const StmtKind kind;
  const int line;
};
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct TextStmt final : Stmt {
  TextStmt(int line, std::string t) : Stmt(StmtKind::kText, line), text(std::move(t)) {}
  std::string text;
};

struct PrintStmt final : Stmt {
  PrintStmt(int line, ExprPtr v) : Stmt(StmtKind::kPrint, line), value(std::move(v)) {}
  ExprPtr value;
};

struct IfStmt final : Stmt {
  explicit IfStmt(int line) : Stmt(StmtKind::kIf, line) {}
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
};

struct ForStmt final : Stmt {
  explicit ForStmt(int line) : Stmt(StmtKind::kFor, line) {}
  Target target;
  ExprPtr iterable, test;  // test: may be null
  Body body, otherwise;
  bool is_recursive = false;
  bool uses_loop = false;  // the body mentions `loop`
};

struct SetStmt final : Stmt {
  explicit SetStmt(int line) : Stmt(StmtKind::kSet, line) {}
  Target target;
  ExprPtr value;
};

// {% set x | filter %} ... {% endset %}, {% filter f %} ... {% endfilter %}
struct CaptureStmt final : Stmt {
  CaptureStmt(StmtKind kind, int line) : Stmt(kind, line) {}
  Target target;   // of a set block
  ExprPtr filter;  // may be null in a set block
  Body body;
};

struct Signature {
  std::string name;
  std::vector<std::pair<NameId, std::string>> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool takes_caller = false, takes_kwargs = false, takes_varargs = false;  // the body mentions them
};

struct MacroStmt final : Stmt {
  explicit MacroStmt(int line) : Stmt(StmtKind::kMacro, line) {}
  NameId id = -1;
  Signature signature;
  Body body;
};

struct CallBlockStmt final : Stmt {
  explicit CallBlockStmt(int line) : Stmt(StmtKind::kCallBlock, line) {}
  Signature signature;  // of `caller`
  ExprPtr call;         // a CallExpr
  Body body;
};

// {% with a = 1 %}, {% generation %}, {% block %}: a body with variables of its own.
struct ScopeStmt final : Stmt {
  explicit ScopeStmt(int line) : Stmt(StmtKind::kScope, line) {}
  std::vector<std::pair<Target, ExprPtr>> variables;
  bool sees_only_globals = false;  // a block
  Body body;
};

struct JumpStmt final : Stmt {
  JumpStmt(StmtKind kind, int line) : Stmt(kind, line) {}
};

struct SyntaxTree {
  ConstantPool constants;  // outlives the statements that refer to them
  Body body;
  std::vector<std::string> names;  // by NameId
  NameId loop_id = -1, caller_id = -1, kwargs_id = -1, varargs_id = -1;
};

}  // namespace cadre::jinja
