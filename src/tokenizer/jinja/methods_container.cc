// The methods of list, tuple and dict. Those that change their object are refused before they get here, unless the
// limits allow them.
#include <algorithm>

#include "tokenizer/jinja/methods.h"
#include "tokenizer/jinja/operations.h"

namespace cadre::jinja {
namespace {

constexpr auto kNoKeywords = Params::Keywords::kRefused;

DictObject& dict_of(const Value& self) { return self.as<DictObject>(); }
std::vector<Value>& list_of(const Value& self) { return self.as<ListObject>().items; }

Value index_of(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "index", {"value", "start", "end"}, 1, kNoKeywords);
  const auto& items = self.items();
  const auto length = static_cast<int64_t>(items.size());
  const auto bound = [&](size_t i, int64_t otherwise) {
    const int64_t idx = params.integer(i, otherwise);
    return std::clamp<int64_t>(idx < 0 ? idx + length : idx, 0, length);
  };
  const int64_t end = bound(2, length);
  for (int64_t i = bound(1, 0); i < end; ++i) {
    rt.heap.step();
    if (equal(items[static_cast<size_t>(i)], params[0])) return i;
  }
  fail("index(): expected an item of the {}, found that {} is none", type_name(self), describe(params[0]));
}

Value count_of(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "count", {"value"}, 1, kNoKeywords);
  rt.heap.step(self.items().size());
  return static_cast<int64_t>(std::count_if(self.items().begin(), self.items().end(), [&](const Value& item) { return equal(item, params[0]); }));
}

Value copy_list(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "copy", {}, 0);
  rt.heap.step(self.items().size());
  return rt.list(self.items());
}

Value append(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "append", {"object"}, 1, kNoKeywords);
  rt.heap.grow(*self.object(), 2 * sizeof(Value));
  list_of(self).push_back(params[0]);
  return Value();
}

Value extend(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "extend", {"iterable"}, 1, kNoKeywords);
  const std::vector<Value> added = collect(rt, params[0]);
  rt.heap.grow(*self.object(), 2 * added.size() * sizeof(Value));
  list_of(self).insert(list_of(self).end(), added.begin(), added.end());
  return Value();
}

Value insert(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "insert", {"index", "object"}, 2, kNoKeywords);
  auto& items = list_of(self);
  const auto length = static_cast<int64_t>(items.size());
  const int64_t idx = params.integer(0);
  rt.heap.grow(*self.object(), 2 * sizeof(Value));
  rt.heap.work(items.size() * sizeof(Value));
  items.insert(items.begin() + std::clamp<int64_t>(idx < 0 ? idx + length : idx, 0, length), params[1]);
  return Value();
}

Value pop_item(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "pop", {"index"}, 0, kNoKeywords);
  auto& items = list_of(self);
  const auto length = static_cast<int64_t>(items.size());
  const int64_t given = params.integer(0, -1), idx = given < 0 ? given + length : given;
  if (idx < 0 || idx >= length) fail("pop(): expected the index of an item of {}, found {}", length, given);
  rt.heap.work(items.size() * sizeof(Value));
  Value item = items[static_cast<size_t>(idx)];
  items.erase(items.begin() + idx);
  return item;
}

Value remove_item(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "remove", {"value"}, 1, kNoKeywords);
  Args search;
  search.positional = {params[0]};
  const int64_t idx = index_of(rt, self, search).integer();
  list_of(self).erase(list_of(self).begin() + idx);
  return Value();
}

Value clear_list(Runtime&, const Value& self, const Args& args) {
  const Params params(args, "clear", {}, 0);
  list_of(self).clear();
  return Value();
}

Value reverse_list(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "reverse", {}, 0);
  rt.heap.step(self.items().size());
  std::reverse(list_of(self).begin(), list_of(self).end());
  return Value();
}

Value sort_list(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "sort", {"reverse"}, 0);
  std::vector<Value> items = list_of(self);
  rt.heap.step(items.size());
  const bool descending = params.truth(0, false);
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) { return descending ? less(b, a) : less(a, b); });
  list_of(self) = std::move(items);
  return Value();
}

Value get(Runtime&, const Value& self, const Args& args) {
  const Params params(args, "get", {"key", "default"}, 1, kNoKeywords);
  const Value* found = dict_of(self).find(params[0]);
  return found ? *found : params.get(1, Value());
}

template <ViewObject::What kWhat>
Value view_of(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "dict view", {}, 0);
  return rt.view(self, kWhat);
}

Value copy_dict(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "copy", {}, 0);
  Value copy = rt.dict();
  rt.heap.step(dict_of(self).size());
  for (const auto& [key, value] : dict_of(self).entries) dict_of(copy).set(key, value);
  return copy;
}

Value update(Runtime& rt, const Value& self, const Args& args) {
  if (args.positional.size() > 1) fail("update(): expected at most one dict, found {} arguments", args.positional.size());
  for (const Value& other : args.positional) {
    if (!other.is(Kind::kDict)) fail("update(): expected a dict, found {}", describe(other));
    const auto entries = dict_of(other).entries;
    rt.heap.step(entries.size());
    for (const auto& [key, value] : entries) dict_of(self).set(key, value);
  }
  for (const auto& [key, value] : args.keyword) dict_of(self).set(rt.string(key), value);
  return Value();
}

Value pop_key(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "pop", {"key", "default"}, 1, kNoKeywords);
  const Value* found = dict_of(self).find(params[0]);
  if (!found && !params.given(1)) fail("pop(): expected a key of the dict, found {}", describe(params[0]));
  if (!found) return params[1];
  Value value = *found;
  rt.heap.step(dict_of(self).size());
  dict_of(self).erase(params[0]);
  return value;
}

Value pop_last(Runtime& rt, const Value& self, const Args& args) {
  const Params params(args, "popitem", {}, 0);
  if (dict_of(self).size() == 0) fail("popitem(): expected a dict with keys, found an empty one");
  const auto [key, value] = dict_of(self).entries.back();
  rt.heap.step(dict_of(self).size());
  dict_of(self).erase(key);
  return rt.tuple({key, value});
}

Value set_default(Runtime&, const Value& self, const Args& args) {
  const Params params(args, "setdefault", {"key", "default"}, 1, kNoKeywords);
  if (const Value* found = dict_of(self).find(params[0])) return *found;
  dict_of(self).set(params[0], params.get(1, Value()));
  return params.get(1, Value());
}

Value clear_dict(Runtime&, const Value& self, const Args& args) {
  const Params params(args, "clear", {}, 0);
  dict_of(self).clear();
  return Value();
}

constexpr Method kListMethods[] = {
    {"append", append, true}, {"clear", clear_list, true}, {"copy", copy_list},          {"count", count_of},
    {"extend", extend, true}, {"index", index_of},         {"insert", insert, true},     {"pop", pop_item, true},
    {"remove", remove_item, true}, {"reverse", reverse_list, true}, {"sort", sort_list, true},
};
constexpr Method kTupleMethods[] = {{"count", count_of}, {"index", index_of}};
constexpr Method kDictMethods[] = {
    {"clear", clear_dict, true},     {"copy", copy_dict},           {"get", get},
    {"items", view_of<ViewObject::What::kItems>}, {"keys", view_of<ViewObject::What::kKeys>}, {"pop", pop_key, true},
    {"popitem", pop_last, true},     {"setdefault", set_default, true}, {"update", update, true},
    {"values", view_of<ViewObject::What::kValues>},
};

template <size_t kCount>
const Method* find_in(const Method (&methods)[kCount], std::string_view name) {
  const auto found = std::find_if(std::begin(methods), std::end(methods), [&](const Method& method) { return method.name == name; });
  return found != std::end(methods) ? &*found : nullptr;
}

}  // namespace

const Method* find_container_method(Kind kind, std::string_view name) {
  switch (kind) {
    case Kind::kList: return find_in(kListMethods, name);
    case Kind::kTuple: return find_in(kTupleMethods, name);
    case Kind::kDict: return find_in(kDictMethods, name);
    default: return nullptr;
  }
}

const Method* find_method(const Value& self, std::string_view name) {
  return self.is_string() ? find_string_method(name) : find_container_method(self.kind(), name);
}

}  // namespace cadre::jinja
