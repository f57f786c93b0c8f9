// Filters that compare: sort, unique, groupby, dictsort, min, max.
#include <algorithm>
#include <numeric>
#include <utility>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {
namespace {

// Strings compare by their lower case unless asked otherwise.
Value folded(Runtime& rt, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  rt.heap.check(value.text().size() * 4);
  rt.heap.scan(2 * value.text().size());
  return rt.string(lower(value.text()));
}

Value key_of(Runtime& rt, const Value& item, const Value& path, bool case_sensitive) {
  return folded(rt, look_up_path(rt, item, path), case_sensitive);
}

// The order of keys, equal ones as they came; reverse order keeps that too.
std::vector<size_t> order_of(Runtime& rt, const std::vector<Value>& keys, bool descending) {
  rt.heap.step(keys.size());
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    rt.heap.step();
    return descending ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  return order;
}

Value sort(Runtime& rt, Args& args) {
  const Params params(args, "sort", {"value", "reverse", "case_sensitive", "attribute"}, 1);
  const bool case_sensitive = params.truth(2, false);
  const std::vector<Value> items = collect(rt, params[0]);
  std::vector<Value> paths;
  if (params.has(3) && params[3].is_string()) {
    for (const std::string_view path : split(params[3].text(), ",", -1)) paths.push_back(rt.string(path));
  } else {
    paths.push_back(params.get(3, Value()));
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> parts;
    for (const Value& path : paths) parts.push_back(key_of(rt, item, path, case_sensitive));
    keys.push_back(rt.list(std::move(parts)));
  }
  std::vector<Value> sorted;
  for (const size_t i : order_of(rt, keys, params.truth(1, false))) sorted.push_back(items[i]);
  return rt.list(std::move(sorted));
}

Value dict_sort(Runtime& rt, Args& args) {
  const Params params(args, "dictsort", {"value", "case_sensitive", "by", "reverse"}, 1);
  refuse_undefined(params[0]);
  if (!params[0].is(Kind::kDict)) fail("dictsort: expected a dict, found {}", describe(params[0]));
  const std::string_view by = params.given(2) ? params.text(2) : "key";
  if (by != "key" && by != "value") fail("dictsort: expected by='key' or by='value', found '{}'", by);
  const auto& entries = params[0].as<DictObject>().entries;
  std::vector<Value> keys, sorted;
  for (const auto& [key, value] : entries) keys.push_back(folded(rt, by == "key" ? key : value, params.truth(1, false)));
  for (const size_t i : order_of(rt, keys, params.truth(3, false))) sorted.push_back(rt.tuple({entries[i].first, entries[i].second}));
  return rt.list(std::move(sorted));
}

Value unique(Runtime& rt, Args& args) {
  const Params params(args, "unique", {"value", "case_sensitive", "attribute"}, 1);
  const Value source = params[0], path = params.get(2, Value()), seen = rt.dict();
  const bool case_sensitive = params.truth(1, false);
  auto next = [&rt, source, path, seen, case_sensitive, cursor = std::shared_ptr<Cursor>()](Value* item) mutable {
    if (!cursor) cursor = std::make_shared<Cursor>(rt, source);
    while (cursor->next(item)) {
      Value key = key_of(rt, *item, path, case_sensitive);
      auto& keys = seen.as<DictObject>();
      if (keys.find(key)) continue;
      keys.set(std::move(key), Value(true));
      return true;
    }
    return false;
  };
  return Value(rt.heap.make<IteratorObject>(64, std::move(next)));
}

Value group_by(Runtime& rt, Args& args) {
  const Params params(args, "groupby", {"value", "attribute", "default", "case_sensitive"}, 2);
  const bool case_sensitive = params.truth(3, false);
  const auto raw_key = [&](const Value& item) {
    Value key = look_up_path(rt, item, params[1]);
    return key.is_undefined() && params.has(2) ? params[2] : key;
  };
  const std::vector<Value> items = collect(rt, params[0]);
  std::vector<Value> keys, groups;
  for (const Value& item : items) keys.push_back(folded(rt, raw_key(item), case_sensitive));
  const std::vector<size_t> order = order_of(rt, keys, false);
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    std::vector<Value> members;
    while (end < order.size() && equal(keys[order[end]], keys[order[begin]])) members.push_back(items[order[end++]]);
    if (end == begin) members.push_back(items[order[end++]]);  // NaN equals nothing
    const Value group = rt.tuple({raw_key(members.front()), rt.list(std::move(members))});
    group.as<TupleObject>().is_group = true;
    groups.push_back(group);
    begin = end;
  }
  return rt.list(std::move(groups));
}

template <bool kLargest>
Value extreme(Runtime& rt, Args& args) {
  const Params params(args, kLargest ? "max" : "min", {"value", "case_sensitive", "attribute"}, 1);
  Cursor cursor(rt, params[0]);
  Value item, best, best_key;
  bool found = false;
  while (cursor.next(&item)) {
    Value key = key_of(rt, item, params.get(2, Value()), params.truth(1, false));
    if (found && !(kLargest ? less(best_key, key) : less(key, best_key))) continue;
    found = true;
    best = item;
    best_key = std::move(key);
  }
  return found ? best : rt.undefined("there is no smallest or largest item: the sequence is empty");
}

constexpr std::pair<std::string_view, Builtin> kFilters[] = {
    {"sort", sort}, {"dictsort", dict_sort}, {"unique", unique}, {"groupby", group_by}, {"min", extreme<false>}, {"max", extreme<true>},
};

}  // namespace

Builtin find_order_filter(std::string_view name) {
  for (const auto& [known, filter] : kFilters)
    if (known == name) return filter;
  return nullptr;
}

}  // namespace cadre::jinja
