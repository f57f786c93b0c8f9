// The statements. Expressions are in evaluate.cc.
#include "tokenizer/jinja/interpreter.h"

#include <algorithm>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/loop.h"

namespace cadre::jinja {
namespace {

struct MacroObject final : FunctionObject {
  MacroObject(Interpreter& i, const Signature& s, const Body& b, Value c) : interpreter(i), signature(s), body(b), closure(std::move(c)) {}
  void clear() override { closure = Value(); }
  Value call(Runtime&, Args& args) override { return interpreter.call_macro(signature, body, closure, args); }
  std::string repr() const override { return signature.name.empty() ? "<Macro anonymous>" : fmt::format("<Macro '{}'>", signature.name); }
  Interpreter& interpreter;
  const Signature& signature;
  const Body& body;
  Value closure;
};

}  // namespace

void ScopeObject::set(NameId id, Value value) {
  for (auto& [other, old] : variables) {
    if (other == id) {
      old = std::move(value);
      return;
    }
  }
  heap->grow(*this, 2 * sizeof(variables[0]));
  variables.emplace_back(id, std::move(value));
}

const Value* ScopeObject::find(NameId id) const {
  for (const auto& [other, value] : variables)
    if (other == id) return &value;
  return nullptr;
}

void Output::append(std::string_view text) {
  if (text.size() > rt_.limits.max_output_bytes - std::min<size_t>(text_.size(), rt_.limits.max_output_bytes))
    fail("expected at most {} bytes of output, found more", rt_.limits.max_output_bytes);
  rt_.heap.work(text.size());
  rt_.heap.charge(text.size());
  text_ += text;
}

std::string Output::take() {
  rt_.heap.uncharge(text_.size());
  return std::exchange(text_, {});
}

Interpreter::Interpreter(const SyntaxTree& tree, Runtime& rt) : tree_(tree), rt_(rt), globals_(new_scope(Value())) {
  for (const Global& global : global_functions()) define(global.name, global_function(rt, global));
}

void Interpreter::define(std::string_view name, Value value) {
  const auto found = std::find(tree_.names.begin(), tree_.names.end(), name);
  if (found == tree_.names.end()) return;  // the template does not mention it
  globals_.as<ScopeObject>().set(static_cast<NameId>(found - tree_.names.begin()), std::move(value));
}

std::string Interpreter::run() {
  Output out(rt_);
  exec(tree_.body, {new_scope(globals_), &out});
  return out.take();
}

Interpreter::Flow Interpreter::exec(const Body& body, const Place& place) {
  const Nested nested(rt_);
  for (const StmtPtr& statement : body) {
    const Flow flow = exec(*statement, place);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::exec(const Stmt& statement, const Place& place) {
  rt_.heap.step();
  rt_.line = statement.line;
  switch (statement.kind) {
    case StmtKind::kText: place.out->append(static_cast<const TextStmt&>(statement).text); return Flow::kOn;
    case StmtKind::kPrint: print(eval(*static_cast<const PrintStmt&>(statement).value, place), place); return Flow::kOn;
    case StmtKind::kIf: return exec_if(static_cast<const IfStmt&>(statement), place);
    case StmtKind::kFor: return exec_for(static_cast<const ForStmt&>(statement), place);
    case StmtKind::kSet: {
      const auto& set = static_cast<const SetStmt&>(statement);
      Value value = eval(*set.value, place);
      rt_.line = set.line;
      assign(set.target, std::move(value), place);
      return Flow::kOn;
    }
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock: return exec_capture(static_cast<const CaptureStmt&>(statement), place);
    case StmtKind::kMacro: {
      const auto& macro = static_cast<const MacroStmt&>(statement);
      place.variables().set(macro.id, make_macro(macro.signature, macro.body, place));
      return Flow::kOn;
    }
    case StmtKind::kCallBlock: exec_call_block(static_cast<const CallBlockStmt&>(statement), place); return Flow::kOn;
    case StmtKind::kScope: return exec_scope(static_cast<const ScopeStmt&>(statement), place);
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  return Flow::kOn;
}

void Interpreter::print(const Value& value, const Place& place) {
  if (value.is_string()) place.out->append(value.text());
  else place.out->append(to_text(rt_, value));
}

// What a filter or call block yields; other than what {{ }} prints, it has to be a string already.
void Interpreter::print_text(const Value& value, const Place& place) {
  if (!value.is_string()) fail("expected a string from the filter or call of a block, found {}", describe(value));
  place.out->append(value.text());
}

Interpreter::Flow Interpreter::exec_if(const IfStmt& statement, const Place& place) {
  for (const auto& [test, body] : statement.branches)
    if (truth(eval(*test, place))) return exec(body, place);
  return exec(statement.otherwise, place);
}

Interpreter::Flow Interpreter::exec_for(const ForStmt& statement, const Place& place) {
  const Value iterable = eval(*statement.iterable, place);
  rt_.line = statement.line;
  if (!statement.is_recursive) return run_loop(statement, iterable, place, 0);
  run_loop(statement, iterable, place, 0);  // jumps out of a recursive loop's else branch have no loop to go to
  return Flow::kOn;
}

Interpreter::Flow Interpreter::run_else(const ForStmt& statement, const Place& place) {
  if (statement.otherwise.empty()) return Flow::kOn;
  return exec(statement.otherwise, {new_scope(place.scope), place.out});
}

Interpreter::Flow Interpreter::run_loop(const ForStmt& statement, const Value& iterable, const Place& place, int64_t depth) {
  Cursor cursor(rt_, iterable);
  // The test sees the loop's targets, but not its `loop`.
  const auto next = [&](Value* item) {
    while (cursor.next(item)) {
      if (!statement.test) return true;
      const Place test_place{new_scope(place.scope), place.out};
      assign(statement.target, *item, test_place);
      if (truth(eval(*statement.test, test_place))) return true;
    }
    return false;
  };
  LoopObject* loop = nullptr;
  Value loop_value;
  if (statement.uses_loop || statement.is_recursive) {
    loop = rt_.heap.make<LoopObject>(0, next, statement.test ? std::nullopt : length_of(iterable), depth);
    loop_value = Value(loop);
    if (statement.is_recursive) {
      loop->recurse = [&, depth](const Value& inner) {
        Output out(rt_);
        run_loop(statement, inner, {place.scope, &out}, depth + 1);
        return rt_.string(out.take());
      };
    }
  }
  // A template may keep `loop` past the end of its loop; what it refers to here must not be kept with it.
  struct Closer {
    ~Closer() {
      if (!loop) return;
      loop->close();
      loop->recurse = nullptr;
    }
    LoopObject* loop;
  } const closer{loop};

  bool runs_else = true;
  Value item, scope;
  while (loop ? loop->advance(&item) : next(&item)) {
    const bool can_reuse = scope.object() && scope.object()->num_refs == 1;
    if (can_reuse) scope.as<ScopeObject>().variables.clear();
    else scope = new_scope(place.scope);
    const Place inner{scope, place.out};
    if (loop) inner.variables().set(tree_.loop_id, loop_value);
    rt_.line = statement.line;
    assign(statement.target, item, inner);
    const Flow flow = exec(statement.body, inner);
    // As in Jinja, 'else' runs unless one turn came to its end without a jump.
    if (flow == Flow::kOn) runs_else = false;
    if (flow == Flow::kBreak) break;
  }
  return runs_else ? run_else(statement, place) : Flow::kOn;
}

Interpreter::Flow Interpreter::exec_capture(const CaptureStmt& statement, const Place& place) {
  Output out(rt_);
  const Place inner{new_scope(place.scope), &out};
  const Flow flow = exec(statement.body, inner);
  if (flow != Flow::kOn) return flow;
  Value text = rt_.string(out.take());
  if (statement.filter) text = eval_builtin(static_cast<const BuiltinExpr&>(*statement.filter), inner, &text);
  rt_.line = statement.line;
  if (statement.kind == StmtKind::kSetBlock) assign(statement.target, std::move(text), place);
  else print_text(text, place);
  return Flow::kOn;
}

Interpreter::Flow Interpreter::exec_scope(const ScopeStmt& statement, const Place& place) {
  Value outer = place.scope;
  if (statement.sees_only_globals)
    while (!outer.as<ScopeObject>().parent.is_none() && !identical(outer.as<ScopeObject>().parent, globals_)) outer = outer.as<ScopeObject>().parent;
  const Place inner{new_scope(outer), place.out};
  for (const auto& [target, value] : statement.variables) assign(target, eval(*value, place), inner);
  return exec(statement.body, inner);
}

void Interpreter::exec_call_block(const CallBlockStmt& statement, const Place& place) {
  const Value caller = make_macro(statement.signature, statement.body, place);
  print_text(eval_call(static_cast<const CallExpr&>(*statement.call), place, &caller), place);
}

void Interpreter::assign(const Target& target, Value value, const Place& place) {
  if (target.id < 0) {
    unpack(target, value, place);
  } else if (target.attribute.empty()) {
    place.variables().set(target.id, std::move(value));
  } else {
    const Value owner = eval_name(NameExpr(target.line, target.id), place);
    if (!owner.is(Kind::kNamespace)) fail("expected a namespace to assign the attribute '{}' of, found {}", target.attribute, describe(owner));
    owner.as<NamespaceObject>().attributes.as<DictObject>().set(rt_.string(target.attribute), std::move(value));
  }
}

void Interpreter::unpack(const Target& target, const Value& value, const Place& place) {
  const std::vector<Value> items = collect(rt_, value);
  if (items.size() != target.items.size()) fail("expected {} values to unpack, found {}", target.items.size(), items.size());
  for (size_t i = 0; i < items.size(); ++i) assign(target.items[i], items[i], place);
}

Value Interpreter::make_macro(const Signature& signature, const Body& body, const Place& place) {
  return Value(rt_.heap.make<MacroObject>(0, *this, signature, body, place.scope));
}

Value Interpreter::call_macro(const Signature& signature, const Body& body, const Value& closure, Args& args) {
  const Nested nested(rt_);
  Output out(rt_);
  const Place inner{new_scope(closure), &out};
  bind(signature, args, inner);
  exec(body, inner);
  return rt_.string(out.take());
}

void Interpreter::bind(const Signature& signature, Args& args, const Place& place) {
  const std::string_view name = signature.name.empty() ? "caller" : std::string_view(signature.name);
  const size_t num_params = signature.parameters.size();
  const size_t num_given = std::min(args.positional.size(), num_params);
  ScopeObject& variables = place.variables();
  bool has_caller_param = false;
  for (size_t i = 0; i < num_params; ++i) {
    const auto& [id, param] = signature.parameters[i];
    has_caller_param = has_caller_param || id == tree_.caller_id;
    std::optional<Value> value;
    if (i < num_given) value = args.positional[i];
    else value = args.take(param);
    // A default may name other parameters, never an outer variable that has the parameter's own name.
    variables.set(id, value ? *std::move(value) : Value::missing());
  }
  if (signature.takes_caller && !has_caller_param) {
    auto caller = args.take("caller");
    variables.set(tree_.caller_id, caller && !caller->is_none() ? *std::move(caller) : rt_.undefined("no caller is defined: the macro was not called by {% call %}"));
  }
  if (signature.takes_kwargs) {
    Value rest = rt_.dict();
    for (auto& [key, value] : args.keyword) rest.as<DictObject>().set(rt_.string(key), std::move(value));
    variables.set(tree_.kwargs_id, std::move(rest));
  } else if (!args.keyword.empty()) {
    fail("macro {}: found the unknown keyword argument '{}'", name, args.keyword.front().first);
  }
  if (signature.takes_varargs) {
    variables.set(tree_.varargs_id, rt_.tuple({args.positional.begin() + static_cast<ptrdiff_t>(num_given), args.positional.end()}));
  } else if (args.positional.size() > num_params) {
    fail("macro {}: expected at most {} arguments, found {}", name, num_params, args.positional.size());
  }
  const size_t first_default = num_params - signature.defaults.size();
  for (size_t i = 0; i < num_params; ++i) {
    const auto& [id, param] = signature.parameters[i];
    if (!variables.find(id)->is(Kind::kMissing)) continue;
    if (i >= first_default) variables.set(id, eval(*signature.defaults[i - first_default], place));
    else variables.set(id, rt_.undefined(fmt::format("the parameter '{}' of macro {} was not provided", param, name)));
  }
}

}  // namespace cadre::jinja
