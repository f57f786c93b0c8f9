// Global functions: range, dict, namespace, cycler, joiner, and transformers' raise_exception and strftime_now.
#include "tokenizer/jinja/builtins.h"

namespace cadre::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox has it

struct GlobalFunction final : FunctionObject {
  explicit GlobalFunction(const Global& g) : global(g) {}
  Value call(Runtime& rt, Args& args) override { return global.function(rt, args); }
  std::string repr() const override { return fmt::format("<function {}>", global.name); }
  const Global global;
};

struct JoinerFunction final : FunctionObject {
  explicit JoinerFunction(Value s) : separator(std::move(s)) {}
  void clear() override { separator = Value(); }
  Value call(Runtime& rt, Args& args) override {
    Params(args, "joiner", {}, 0);
    return std::exchange(was_called, true) ? separator : rt.string("");
  }
  std::string repr() const override { return "<Joiner>"; }
  Value separator;
  bool was_called = false;
};

Value range(Runtime& rt, Args& args) {
  const Params params(args, "range", {"start", "stop", "step"}, 1, Params::Keywords::kRefused);
  const bool has_start = params.given(1);
  const int64_t start = has_start ? params.integer(0) : 0, stop = has_start ? params.integer(1) : params.integer(0);
  const int64_t step = params.integer(2, 1);
  if (step == 0) fail("range(): expected a step that is not zero, found 0");
  Value value(rt.heap.make<RangeObject>(0, start, stop, step));
  const int64_t size = value.as<RangeObject>().size;
  if (size > kMaxRange || size < 0) fail("range(): expected at most {} numbers, found more", kMaxRange);
  return value;
}

Value dict(Runtime& rt, Args& args) {
  if (args.positional.size() > 1) fail("dict(): expected at most 1 argument, found {}", args.positional.size());
  Value result = rt.dict();
  auto& table = result.as<DictObject>();
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    refuse_undefined(source);
    for (const Value& pair : collect(rt, source.is(Kind::kDict) ? rt.view(source, ViewObject::What::kItems) : source)) {
      const std::vector<Value> items = collect(rt, pair);
      if (items.size() != 2) fail("dict(): expected pairs of key and value, found {} items", items.size());
      table.set(items[0], items[1]);
    }
  }
  for (const auto& [name, value] : args.keyword) table.set(rt.string(name), value);
  return result;
}

Value make_namespace(Runtime& rt, Args& args) { return Value(rt.heap.make<NamespaceObject>(0, dict(rt, args))); }

Value raise_exception(Runtime& rt, Args& args) {
  const Params params(args, "raise_exception", {"message"}, 1);
  throw Fault(to_text(rt, params[0]));
}

Value strftime_now(Runtime& rt, Args& args) {
  const Params params(args, "strftime_now", {"format"}, 1);
  return rt.string(format_time(rt, params.text(0), rt.now_unix_s));
}

Value cycler(Runtime& rt, Args& args) {
  if (args.positional.empty() || !args.keyword.empty()) fail("cycler(): expected items to cycle through, found none");
  return Value(rt.heap.make<CyclerObject>(args.positional.size() * sizeof(Value), args.positional));
}

Value joiner(Runtime& rt, Args& args) {
  const Params params(args, "joiner", {"sep"}, 0);
  return Value(rt.heap.make<JoinerFunction>(0, params.given(0) ? params[0] : rt.string(", ")));
}

}  // namespace

const std::vector<Global>& global_functions() {
  static const std::vector<Global> kGlobals = {{"range", range}, {"dict", dict}, {"namespace", make_namespace}, {"raise_exception", raise_exception},
                                               {"strftime_now", strftime_now}, {"cycler", cycler}, {"joiner", joiner}};
  return kGlobals;
}

Value global_function(Runtime& rt, const Global& global) { return Value(rt.heap.make<GlobalFunction>(0, global)); }

}  // namespace cadre::jinja
