// value.name and value[key], with what the sandbox of Jinja refuses: private names, and methods that change lists and dicts.
#include <cmath>

#include "base/error.h"
#include "tokenizer/jinja/loop.h"
#include "tokenizer/jinja/methods.h"
#include "tokenizer/jinja/operations.h"

namespace cadre::jinja {
namespace {

Value unsafe(Runtime& rt, const Value& value, std::string_view name) {
  return rt.undefined(fmt::format("expected no use of what can change or look into values, found '{}' of a {}", name, type_name(value)));
}

Value absent_attribute(Runtime& rt, const Value& value, std::string_view name) {
  return rt.undefined(fmt::format("{} has no attribute {}", describe(value), quoted(name, 60)));
}

struct LoopMethod final : FunctionObject {
  LoopMethod(Value l, bool c) : loop(std::move(l)), is_cycle(c) {}
  void clear() override { loop = Value(); }
  Value call(Runtime&, Args& args) override {
    if (!args.keyword.empty()) fail("loop.{}(): expected no keyword arguments, found '{}'", name(), args.keyword[0].first);
    auto& object = loop.as<LoopObject>();
    if (!is_cycle) return object.changed(args.positional);
    if (args.positional.empty()) fail("loop.cycle(): expected items to cycle through, found none");
    return args.positional[static_cast<size_t>(object.index0) % args.positional.size()];
  }
  std::string_view name() const { return is_cycle ? "cycle" : "changed"; }
  std::string repr() const override { return fmt::format("<bound method loop.{}>", name()); }
  Value loop;
  bool is_cycle;
};

struct CyclerMethod final : FunctionObject {
  CyclerMethod(Value c, bool r) : cycler(std::move(c)), is_reset(r) {}
  void clear() override { cycler = Value(); }
  Value call(Runtime&, Args& args) override {
    Params(args, "cycler", {}, 0);
    auto& object = cycler.as<CyclerObject>();
    if (is_reset) {
      object.position = 0;
      return Value();
    }
    const Value item = object.items[object.position];
    object.position = (object.position + 1) % object.items.size();
    return item;
  }
  std::string repr() const override { return "<bound method of a cycler>"; }
  Value cycler;
  bool is_reset;
};

struct IsInteger final : FunctionObject {
  explicit IsInteger(bool r) : result(r) {}
  Value call(Runtime&, Args& args) override {
    Params(args, "is_integer", {}, 0);
    return result;
  }
  std::string repr() const override { return "<built-in method is_integer>"; }
  bool result;
};

// The attribute of Python's object, or nullopt when it has none of that name.
std::optional<Value> own_attribute(Runtime& rt, const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict: {
      if (value.is(Kind::kTuple) && value.as<TupleObject>().is_group) {
        if (name == "grouper") return value.items()[0];
        if (name == "list") return value.items()[1];
      }
      const Method* method = find_method(value, name);
      if (!method) return std::nullopt;
      if (method->mutates && !rt.limits.allow_mutation) return unsafe(rt, value, name);
      return Value(rt.heap.make<BoundMethod>(0, value, method));
    }
    case Kind::kNamespace: {
      const Value* found = value.as<NamespaceObject>().attributes.as<DictObject>().find(name);
      if (!found) return std::nullopt;
      return name.starts_with('_') ? unsafe(rt, value, name) : *found;
    }
    case Kind::kLoop:
      if (name == "cycle" || name == "changed") return Value(rt.heap.make<LoopMethod>(0, value, name == "cycle"));
      return value.as<LoopObject>().attribute(rt, name);
    case Kind::kCycler:
      if (name == "next" || name == "reset") return Value(rt.heap.make<CyclerMethod>(0, value, name == "reset"));
      if (name == "current") return value.as<CyclerObject>().items[value.as<CyclerObject>().position];
      return std::nullopt;
    case Kind::kFloat:
      if (name == "is_integer") return Value(rt.heap.make<IsInteger>(0, std::isfinite(value.real()) && value.real() == std::floor(value.real())));
      return std::nullopt;
    default: return std::nullopt;
  }
}

// value[key]; nullopt where Python raises TypeError or LookupError.
std::optional<Value> own_item(Runtime& rt, const Value& value, const Value& key) {
  switch (value.kind()) {
    case Kind::kDict: {
      if (key.is(Kind::kList) || key.is(Kind::kDict)) return std::nullopt;
      const Value* found = value.as<DictObject>().find(key);
      if (!found) return std::nullopt;
      return *found;
    }
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange: {
      if (!key.is_integral()) return std::nullopt;
      const int64_t length = *length_of(value);
      const int64_t idx = key.integer() < 0 ? key.integer() + length : key.integer();
      if (idx < 0 || idx >= length) return std::nullopt;
      if (value.is(Kind::kRange)) return value.as<RangeObject>().at(idx);
      if (value.is_string()) return sliced(rt, value, {.start = idx, .stop = idx + 1});
      return value.items()[static_cast<size_t>(idx)];
    }
    default: return std::nullopt;
  }
}

}  // namespace

Value get_attribute(Runtime& rt, const Value& value, std::string_view name) {
  refuse_undefined(value);
  if (auto attribute = own_attribute(rt, value, name)) return *std::move(attribute);
  if (value.is(Kind::kDict)) {
    if (const Value* found = value.as<DictObject>().find(name)) return *found;
  }
  if (name.starts_with("__")) return unsafe(rt, value, name);
  return absent_attribute(rt, value, name);
}

Value get_item(Runtime& rt, const Value& value, const Value& key) {
  refuse_undefined(value);
  if (auto item = own_item(rt, value, key)) return *std::move(item);
  if (!key.is_string()) {
    std::string shown;
    append_repr(rt, shown, key);
    return rt.undefined(fmt::format("{} has no element {}", describe(value), quoted(shown, 60)));
  }
  if (auto attribute = own_attribute(rt, value, key.text())) return *std::move(attribute);
  if (key.text().starts_with("__")) return unsafe(rt, value, key.text());
  return absent_attribute(rt, value, key.text());
}

Value call(Runtime& rt, const Value& callee, Args& args) {
  refuse_undefined(callee);
  rt.heap.step();
  if (callee.is(Kind::kLoop)) {
    auto& loop = callee.as<LoopObject>();
    if (!loop.recurse) fail("expected a loop marked 'recursive' to be called, found one that is not");
    const Params params(args, "loop", {"iterable"}, 1);
    return loop.recurse(params[0]);
  }
  if (!callee.is(Kind::kFunction)) fail("expected a function to call, found {}", describe(callee));
  const Nested nested(rt);
  return callee.as<FunctionObject>().call(rt, args);
}

}  // namespace cadre::jinja
