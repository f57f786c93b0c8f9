// Walks a syntax tree and writes its text. One object renders once.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/runtime.h"

namespace cadre::jinja {

// Variables of one block; lookup goes on in the parent. Macros keep the scope they were made in.
struct ScopeObject final : Object {
  explicit ScopeObject(Value p) : Object(Kind::kScope), parent(std::move(p)) {}
  void clear() override {
    std::vector<std::pair<NameId, Value>>().swap(variables);
    parent = Value();
  }
  void set(NameId id, Value value);
  const Value* find(NameId id) const;

  std::vector<std::pair<NameId, Value>> variables;
  Value parent;  // None at the outermost
};

// Text being written: the rendering's own, or what a macro or block captures. Charged to the heap while it lives.
class Output {
 public:
  explicit Output(Runtime& rt) : rt_(rt) {}
  ~Output() { rt_.heap.uncharge(text_.size()); }
  Output(const Output&) = delete;
  void append(std::string_view text);
  std::string take();

 private:
  Runtime& rt_;
  std::string text_;
};

class Interpreter {
 public:
  Interpreter(const SyntaxTree& tree, Runtime& rt);

  // Before run(): a variable of the rendering. The last value of a name stands.
  void define(std::string_view name, Value value);
  std::string run();

  // The text of a macro's (or caller's) body.
  Value call_macro(const Signature& signature, const Body& body, const Value& closure, Args& args);

 private:
  enum class Flow { kOn, kBreak, kContinue };

  // Where execution is: the innermost scope and the text being written.
  struct Place {
    Value scope;
    Output* out;
    ScopeObject& variables() const { return scope.as<ScopeObject>(); }
  };

  Value new_scope(const Value& parent) { return Value(rt_.heap.make<ScopeObject>(0, parent)); }

  Flow exec(const Body& body, const Place& place);
  Flow exec(const Stmt& statement, const Place& place);
  Flow exec_if(const IfStmt& statement, const Place& place);
  Flow exec_for(const ForStmt& statement, const Place& place);
  Flow exec_capture(const CaptureStmt& statement, const Place& place);
  Flow exec_scope(const ScopeStmt& statement, const Place& place);
  void exec_call_block(const CallBlockStmt& statement, const Place& place);
  void print(const Value& value, const Place& place);
  void print_text(const Value& value, const Place& place);
  Flow run_loop(const ForStmt& statement, const Value& iterable, const Place& place, int64_t depth);
  Flow run_else(const ForStmt& statement, const Place& place);
  void assign(const Target& target, Value value, const Place& place);
  void unpack(const Target& target, const Value& value, const Place& place);
  Value make_macro(const Signature& signature, const Body& body, const Place& place);
  void bind(const Signature& signature, Args& args, const Place& place);

  Value eval(const Expr& expr, const Place& place);
  Value eval_name(const NameExpr& expr, const Place& place);
  Value eval_group(const GroupExpr& expr, const Place& place);
  Value eval_dict(const GroupExpr& expr, const Place& place);
  Value eval_concat(const GroupExpr& expr, const Place& place);
  Value eval_binary(const BinaryExpr& expr, const Place& place);
  Value eval_compare(const CompareExpr& expr, const Place& place);
  Value eval_conditional(const ConditionalExpr& expr, const Place& place);
  Value eval_attribute(const AttributeExpr& expr, const Place& place);
  Value eval_item(const ItemExpr& expr, const Place& place);
  Value eval_slice(const SliceExpr& expr, const Place& place);
  Value eval_call(const CallExpr& expr, const Place& place, const Value* caller = nullptr);
  Value eval_builtin(const BuiltinExpr& expr, const Place& place, const Value* block_text = nullptr);
  void eval_arguments(const Arguments& arguments, const Place& place, Args* args, const Value* caller = nullptr);
  bool compare(CompareOp op, const Value& a, const Value& b);

  const SyntaxTree& tree_;
  Runtime& rt_;
  Value globals_;
};

}  // namespace cadre::jinja
