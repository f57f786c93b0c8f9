// The expressions.
#include "tokenizer/jinja/interpreter.h"

#include "base/error.h"

namespace cadre::jinja {

Value Interpreter::eval(const Expr& expr, const Place& place) {
  rt_.heap.step();
  if (expr.kind == ExprKind::kConst) return static_cast<const ConstExpr&>(expr).value;
  if (expr.kind == ExprKind::kName) return eval_name(static_cast<const NameExpr&>(expr), place);
  const Nested nested(rt_);
  switch (expr.kind) {
    case ExprKind::kConst:
    case ExprKind::kName: break;
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kNot:
    case ExprKind::kNegative:
    case ExprKind::kPositive:
    case ExprKind::kAnd:
    case ExprKind::kOr: return eval_group(static_cast<const GroupExpr&>(expr), place);
    case ExprKind::kDict: return eval_dict(static_cast<const GroupExpr&>(expr), place);
    case ExprKind::kConcat: return eval_concat(static_cast<const GroupExpr&>(expr), place);
    case ExprKind::kBinary: return eval_binary(static_cast<const BinaryExpr&>(expr), place);
    case ExprKind::kCompare: return eval_compare(static_cast<const CompareExpr&>(expr), place);
    case ExprKind::kConditional: return eval_conditional(static_cast<const ConditionalExpr&>(expr), place);
    case ExprKind::kAttribute: return eval_attribute(static_cast<const AttributeExpr&>(expr), place);
    case ExprKind::kItem: return eval_item(static_cast<const ItemExpr&>(expr), place);
    case ExprKind::kSlice: return eval_slice(static_cast<const SliceExpr&>(expr), place);
    case ExprKind::kCall: return eval_call(static_cast<const CallExpr&>(expr), place);
    case ExprKind::kFilter:
    case ExprKind::kTest: return eval_builtin(static_cast<const BuiltinExpr&>(expr), place);
  }
  return Value();
}

Value Interpreter::eval_name(const NameExpr& expr, const Place& place) {
  rt_.line = expr.line;
  for (const ScopeObject* scope = &place.variables();;) {
    if (const Value* found = scope->find(expr.id)) {
      if (found->is(Kind::kMissing)) break;
      return *found;
    }
    if (scope->parent.is_none()) break;
    scope = &scope->parent.as<ScopeObject>();
  }
  return rt_.undefined(fmt::format("{} is undefined", quoted(tree_.names[static_cast<size_t>(expr.id)], 60)));
}

Value Interpreter::eval_group(const GroupExpr& expr, const Place& place) {
  const auto& items = expr.items;
  switch (expr.kind) {
    case ExprKind::kNot: return !truth(eval(*items[0], place));
    case ExprKind::kNegative:
    case ExprKind::kPositive: {
      const Value value = eval(*items[0], place);
      rt_.line = expr.line;
      const Value negative = negated(value);
      return expr.kind == ExprKind::kNegative ? negative : value.is_bool() ? Value(value.integer()) : value;
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = eval(*items[0], place);
      return truth(left) == (expr.kind == ExprKind::kOr) ? left : eval(*items[1], place);
    }
    default: break;
  }
  std::vector<Value> values;
  values.reserve(items.size());
  for (const ExprPtr& item : items) values.push_back(eval(*item, place));
  return expr.kind == ExprKind::kList ? rt_.list(std::move(values)) : rt_.tuple(std::move(values));
}

Value Interpreter::eval_dict(const GroupExpr& expr, const Place& place) {
  Value dict = rt_.dict();
  for (size_t i = 0; i < expr.items.size(); i += 2) {
    Value key = eval(*expr.items[i], place);
    Value value = eval(*expr.items[i + 1], place);
    rt_.line = expr.line;
    dict.as<DictObject>().set(std::move(key), std::move(value));
  }
  return dict;
}

Value Interpreter::eval_concat(const GroupExpr& expr, const Place& place) {
  // As Python does, all values are there before the first is made text.
  std::vector<Value> values;
  values.reserve(expr.items.size());
  for (const ExprPtr& item : expr.items) values.push_back(eval(*item, place));
  rt_.line = expr.line;
  std::string text;
  for (const Value& value : values) append_text(rt_, text, value);
  return rt_.string(std::move(text));
}

Value Interpreter::eval_binary(const BinaryExpr& expr, const Place& place) {
  const Value left = eval(*expr.left, place);
  const Value right = eval(*expr.right, place);
  rt_.line = expr.line;
  return binary(rt_, expr.op, left, right);
}

bool Interpreter::compare(CompareOp op, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) rt_.heap.work(std::min(a.text().size(), b.text().size()));
  switch (op) {
    case CompareOp::kEqual: return equal(a, b);
    case CompareOp::kNotEqual: return !equal(a, b);
    case CompareOp::kLess: return less(a, b);
    case CompareOp::kGreater: return less(b, a);
    case CompareOp::kLessEqual: return less(a, b) || equal(a, b);
    case CompareOp::kGreaterEqual: return less(b, a) || equal(a, b);
    case CompareOp::kIn: return contains(rt_, b, a);
    case CompareOp::kNotIn: return !contains(rt_, b, a);
  }
  return false;
}

Value Interpreter::eval_compare(const CompareExpr& expr, const Place& place) {
  Value left = eval(*expr.first, place);
  for (const auto& [op, operand] : expr.rest) {
    Value right = eval(*operand, place);
    rt_.line = expr.line;
    if (!compare(op, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::eval_conditional(const ConditionalExpr& expr, const Place& place) {
  if (truth(eval(*expr.test, place))) return eval(*expr.yes, place);
  if (expr.no) return eval(*expr.no, place);
  return rt_.undefined(fmt::format("the inline if on line {} was false and has no else", expr.line));
}

Value Interpreter::eval_attribute(const AttributeExpr& expr, const Place& place) {
  const Value object = eval(*expr.object, place);
  rt_.line = expr.line;
  return get_attribute(rt_, object, expr.name);
}

Value Interpreter::eval_item(const ItemExpr& expr, const Place& place) {
  const Value object = eval(*expr.object, place);
  const Value key = eval(*expr.key, place);
  rt_.line = expr.line;
  return get_item(rt_, object, key);
}

Value Interpreter::eval_slice(const SliceExpr& expr, const Place& place) {
  const Value object = eval(*expr.object, place);
  const auto bound = [&](const ExprPtr& part) -> std::optional<int64_t> {
    if (!part) return std::nullopt;
    const Value value = eval(*part, place);
    if (value.is_none()) return std::nullopt;
    rt_.line = expr.line;
    if (!value.is_integral()) fail("expected integers in a slice, found {}", describe(value));
    return value.integer();
  };
  SliceBounds bounds;
  bounds.start = bound(expr.start);
  bounds.stop = bound(expr.stop);
  bounds.step = bound(expr.step);
  rt_.line = expr.line;
  return sliced(rt_, object, bounds);
}

void Interpreter::eval_arguments(const Arguments& arguments, const Place& place, Args* args, const Value* caller) {
  args->positional.reserve(args->positional.size() + arguments.positional.size());
  for (const ExprPtr& argument : arguments.positional) args->positional.push_back(eval(*argument, place));
  for (const auto& [name, argument] : arguments.keyword) args->keyword.emplace_back(name, eval(*argument, place));
  if (caller) args->keyword.emplace_back("caller", *caller);
  if (arguments.more_positional) {
    const std::vector<Value> more = collect(rt_, eval(*arguments.more_positional, place));
    args->positional.insert(args->positional.end(), more.begin(), more.end());
  }
  if (arguments.more_keyword) {
    const Value more = eval(*arguments.more_keyword, place);
    if (!more.is(Kind::kDict)) fail("expected a dict after '**', found {}", describe(more));
    rt_.heap.step(more.as<DictObject>().size());
    for (const auto& [key, value] : more.as<DictObject>().entries) {
      if (!key.is_string()) fail("expected strings as the keys after '**', found {}", describe(key));
      args->keyword.emplace_back(key.text(), value);
    }
  }
}

Value Interpreter::eval_call(const CallExpr& expr, const Place& place, const Value* caller) {
  const Value function = eval(*expr.function, place);
  Args args;
  eval_arguments(expr.arguments, place, &args, caller);
  rt_.line = expr.line;
  return call(rt_, function, args);
}

// block_text: what a filter block captured, the value of the innermost filter of its chain.
Value Interpreter::eval_builtin(const BuiltinExpr& expr, const Place& place, const Value* block_text) {
  Args args;
  if (!expr.value) args.positional.push_back(*block_text);
  else if (block_text && expr.kind == ExprKind::kFilter) args.positional.push_back(eval_builtin(static_cast<const BuiltinExpr&>(*expr.value), place, block_text));
  else args.positional.push_back(eval(*expr.value, place));
  eval_arguments(expr.arguments, place, &args);
  rt_.line = expr.line;
  if (!expr.builtin) fail("expected a known {}, found '{}'", expr.kind == ExprKind::kFilter ? "filter" : "test", expr.name);
  return expr.builtin(rt_, args);
}

}  // namespace cadre::jinja
