// Filters on sequences: what selects, maps and cuts. Those that are generators in Jinja compute when they are read.
#include <utility>

#include "tokenizer/jinja/builtins.h"

namespace cadre::jinja {
namespace {

Value iterator(Runtime& rt, std::function<bool(Value*)> next) { return Value(rt.heap.make<IteratorObject>(64, std::move(next))); }

Value nothing(Runtime& rt) {
  return iterator(rt, [](Value*) { return false; });
}

// An iterator over `source` that is opened at the first read, as a Python generator is.
template <typename Step>
Value lazy(Runtime& rt, Value source, Step step) {
  return iterator(rt, [&rt, source = std::move(source), cursor = std::shared_ptr<Cursor>(), step = std::move(step)](Value* item) mutable {
    if (!cursor) cursor = std::make_shared<Cursor>(rt, source);
    return step(*cursor, item);
  });
}

Value length(Runtime&, Args& args) {
  const Params params(args, "length", {"value"}, 1);
  if (const auto length = length_of(params[0])) return *length;
  fail("length: expected something with a length, found {}", describe(params[0]));
}

Value default_filter(Runtime& rt, Args& args) {
  const Params params(args, "default", {"value", "default_value", "boolean"}, 1);
  const bool replaces = params[0].is_undefined() || (params.truth(2, false) && !truth(params[0]));
  if (!replaces) return params[0];
  return params.given(1) ? params[1] : rt.string("");
}

Value list_filter(Runtime& rt, Args& args) { return rt.list(collect(rt, Params(args, "list", {"value"}, 1)[0])); }

Value items(Runtime& rt, Args& args) {
  const Params params(args, "items", {"value"}, 1);
  if (params[0].is_undefined()) return nothing(rt);
  const Value value = params[0];
  return iterator(rt, [&rt, value, cursor = std::shared_ptr<Cursor>()](Value* item) mutable {
    if (!value.is(Kind::kDict)) fail("items: expected a dict, found {}", describe(value));
    if (!cursor) cursor = std::make_shared<Cursor>(rt, rt.view(value, ViewObject::What::kItems));
    return cursor->next(item);
  });
}

Value first(Runtime& rt, Args& args) {
  const Params params(args, "first", {"seq"}, 1);
  Value item;
  if (Cursor(rt, params[0]).next(&item)) return item;
  return rt.undefined("there is no first item: the sequence is empty");
}

Value last(Runtime& rt, Args& args) {
  const Params params(args, "last", {"seq"}, 1);
  const Value& value = params[0];
  if (value.is(Kind::kIterator)) fail("last: expected a sequence with an end, found {}; make it a list first", describe(value));
  if (value.is_string() || value.is_sequence() || value.is(Kind::kRange)) {
    if (*length_of(value) > 0) return get_item(rt, value, Value(int64_t{-1}));
  } else {
    const std::vector<Value> all = collect(rt, value);
    if (!all.empty()) return all.back();
  }
  return rt.undefined("there is no last item: the sequence is empty");
}

Value reverse(Runtime& rt, Args& args) {
  const Params params(args, "reverse", {"value"}, 1);
  const Value& value = params[0];
  if (value.is_string()) return sliced(rt, value, {.step = -1});
  std::vector<Value> all = collect(rt, value);
  std::reverse(all.begin(), all.end());
  const Value reversed = rt.list(std::move(all));
  if (value.is(Kind::kIterator)) return reversed;
  return lazy(rt, reversed, [](Cursor& cursor, Value* item) { return cursor.next(item); });
}

// The arguments after the first `skip` ones, with room for the item in front.
Args arguments_after(const Args& args, size_t skip) {
  Args rest;
  rest.positional.emplace_back();
  rest.positional.insert(rest.positional.end(), args.positional.begin() + static_cast<ptrdiff_t>(std::min(skip, args.positional.size())), args.positional.end());
  rest.keyword = args.keyword;
  return rest;
}

Value apply(Runtime& rt, Builtin builtin, const Args& prepared, const Value& item) {
  Args args = prepared;
  args.positional[0] = item;
  return builtin(rt, args);
}

Value map(Runtime& rt, Args& args) {
  const Value source = args.positional[0];
  if (!truth(source)) return nothing(rt);
  if (args.positional.size() > 1) {
    if (!args.positional[1].is_string()) fail("map: expected the name of a filter, found {}", describe(args.positional[1]));
    const std::string name(args.positional[1].text());
    return lazy(rt, source, [&rt, name, prepared = arguments_after(args, 2)](Cursor& cursor, Value* item) {
      const Builtin filter = find_filter(name);
      if (!filter) fail("map: expected a known filter, found '{}'", name);
      if (!cursor.next(item)) return false;
      *item = apply(rt, filter, prepared, *item);
      return true;
    });
  }
  const auto attribute = args.take("attribute");
  const auto otherwise = args.take("default");
  if (!attribute) fail("map: expected the name of a filter or attribute=..., found neither");
  if (!args.keyword.empty()) fail("map: found the unknown keyword argument '{}'", args.keyword[0].first);
  return lazy(rt, source, [&rt, attribute = *attribute, otherwise](Cursor& cursor, Value* item) {
    if (!cursor.next(item)) return false;
    *item = look_up_path(rt, *item, attribute);
    if (item->is_undefined() && otherwise && !otherwise->is_none()) *item = *otherwise;
    return true;
  });
}

// select, reject, selectattr, rejectattr.
template <bool kKeeps, bool kByAttribute>
Value select(Runtime& rt, Args& args) {
  const Value source = args.positional[0];
  if (!truth(source)) return nothing(rt);
  constexpr size_t kTest = kByAttribute ? 2 : 1;
  if (args.positional.size() < kTest) fail("selectattr: expected the name of an attribute, found none");
  std::string name;
  const bool has_test = args.positional.size() > kTest;
  if (has_test) {
    if (!args.positional[kTest].is_string()) fail("select: expected the name of a test, found {}", describe(args.positional[kTest]));
    name = args.positional[kTest].text();
  }
  const Value path = kByAttribute ? args.positional[1] : Value();
  return lazy(rt, source, [&rt, path, name, has_test, prepared = arguments_after(args, kTest + 1)](Cursor& cursor, Value* item) {
    while (cursor.next(item)) {
      const Value tested = look_up_path(rt, *item, path);
      bool holds;
      if (has_test) {
        const Builtin test = find_test(name);
        if (!test) fail("select: expected a known test, found '{}'", name);
        holds = truth(apply(rt, test, prepared, tested));
      } else {
        holds = truth(tested);
      }
      if (holds == kKeeps) return true;
    }
    return false;
  });
}

Value batch(Runtime& rt, Args& args) {
  const Params params(args, "batch", {"value", "linecount", "fill_with"}, 2);
  const int64_t size = params.integer(1);
  const Value fill = params.get(2, Value());
  std::vector<Value> rows, row;
  const auto close_row = [&] { rows.push_back(rt.list(std::exchange(row, {}))); };
  for (Value& item : collect(rt, params[0])) {
    if (static_cast<int64_t>(row.size()) == size) close_row();
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (!fill.is_none() && size > static_cast<int64_t>(row.size())) {
      rt.heap.check(static_cast<size_t>(std::min<int64_t>(size, int64_t{1} << 40)) * sizeof(Value));
      rt.heap.step(static_cast<uint64_t>(size));
      row.resize(static_cast<size_t>(size), fill);
    }
    close_row();
  }
  return lazy(rt, rt.list(std::move(rows)), [](Cursor& cursor, Value* item) { return cursor.next(item); });
}

Value slice(Runtime& rt, Args& args) {
  const Params params(args, "slice", {"value", "slices", "fill_with"}, 2);
  const std::vector<Value> all = collect(rt, params[0]);
  const int64_t num_slices = params.integer(1);
  if (num_slices == 0) fail("slice: expected a number of slices that is not zero, found 0");
  std::vector<Value> columns;
  const auto length = static_cast<int64_t>(all.size());
  size_t start = 0;
  for (int64_t i = 0; i < num_slices; ++i) {
    rt.heap.step();
    rt.heap.check(columns.size() * 2 * sizeof(Value));
    const auto count = static_cast<size_t>(length / num_slices + (i < length % num_slices));
    std::vector<Value> column(all.begin() + static_cast<ptrdiff_t>(start), all.begin() + static_cast<ptrdiff_t>(start + count));
    start += count;
    if (params.has(2) && i >= length % num_slices) column.push_back(params[2]);
    columns.push_back(rt.list(std::move(column)));
  }
  return lazy(rt, rt.list(std::move(columns)), [](Cursor& cursor, Value* item) { return cursor.next(item); });
}

Value attribute(Runtime& rt, Args& args) {
  const Params params(args, "attr", {"obj", "name"}, 2);
  const std::string_view name = params.text(1);
  // A dict's keys are not attributes: only its methods are.
  if (params[0].is(Kind::kDict) && get_attribute(rt, params[0], name).kind() != Kind::kFunction)
    return rt.undefined(fmt::format("{} has no attribute '{}'", describe(params[0]), name));
  return get_attribute(rt, params[0], name);
}

constexpr std::pair<std::string_view, Builtin> kFilters[] = {
    {"length", length}, {"count", length}, {"default", default_filter}, {"d", default_filter}, {"list", list_filter}, {"items", items},
    {"first", first}, {"last", last}, {"reverse", reverse}, {"map", map}, {"select", select<true, false>}, {"reject", select<false, false>},
    {"selectattr", select<true, true>}, {"rejectattr", select<false, true>}, {"batch", batch}, {"slice", slice}, {"attr", attribute},
};

}  // namespace

Builtin find_sequence_filter(std::string_view name) {
  for (const auto& [known, filter] : kFilters)
    if (known == name) return filter;
  return nullptr;
}

}  // namespace cadre::jinja
