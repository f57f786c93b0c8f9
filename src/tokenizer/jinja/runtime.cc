#include "tokenizer/jinja/runtime.h"

#include <algorithm>

#include "tokenizer/jinja/operations.h"
#include "tokenizer/jinja/text.h"

namespace cadre::jinja {

std::optional<Value> Args::take(std::string_view name) {
  const auto found = std::find_if(keyword.begin(), keyword.end(), [&](const auto& pair) { return pair.first == name; });
  if (found == keyword.end()) return std::nullopt;
  Value value = std::move(found->second);
  keyword.erase(found);
  return value;
}

Cursor::Cursor(Runtime& rt, Value iterable) : rt_(rt), source_(std::move(iterable)) {
  if (!is_iterable(source_)) fail("expected something to iterate over, found {}", describe(source_));
}

bool Cursor::next(Value* item) {
  rt_.heap.step();
  switch (source_.kind()) {
    case Kind::kString: {
      const std::string_view rest = source_.text().substr(position_);
      if (rest.empty()) return false;
      const size_t length = byte_offset(rest, 1);
      *item = rt_.string(std::string(rest.substr(0, length)));  // of markup too: Python's iteration forgets it
      position_ += length;
      return true;
    }
    case Kind::kList:
    case Kind::kTuple: {
      const auto& items = source_.items();
      if (position_ >= items.size()) return false;
      *item = items[position_++];
      return true;
    }
    case Kind::kDict:
    case Kind::kView: {
      const bool is_view = source_.is(Kind::kView);
      const auto what = is_view ? source_.as<ViewObject>().what : ViewObject::What::kKeys;
      const Value dict = is_view ? source_.as<ViewObject>().dict : source_;
      const auto& entries = dict.as<DictObject>().entries;
      if (position_ >= entries.size()) return false;
      const auto& [key, value] = entries[position_++];
      *item = what == ViewObject::What::kKeys ? key : what == ViewObject::What::kValues ? value : rt_.tuple({key, value});
      return true;
    }
    case Kind::kRange: {
      const auto& range = source_.as<RangeObject>();
      if (position_ >= static_cast<size_t>(range.size)) return false;
      *item = range.at(static_cast<int64_t>(position_++));
      return true;
    }
    case Kind::kIterator: {
      const Nested nested(rt_);  // iterators may stand on iterators
      return source_.as<IteratorObject>().next(item);
    }
    default: return false;  // undefined
  }
}

Params::Params(const Args& args, std::string_view function, std::initializer_list<std::string_view> names, size_t num_required,
               Keywords keywords)
    : function_(function) {
  std::copy(names.begin(), names.end(), names_.begin());
  if (args.positional.size() > names.size())
    fail("{}(): expected at most {} arguments, found {}", function, names.size(), args.positional.size());
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.keyword) {
    const size_t i = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (i == names.size() || keywords == Keywords::kRefused) fail("{}(): found the unknown keyword argument '{}'", function, name);
    if (values_[i]) fail("{}(): found two values for the argument '{}'", function, name);
    values_[i] = &value;
  }
  for (size_t i = 0; i < num_required; ++i)
    if (!values_[i]) fail("{}(): expected the argument '{}', found none", function, names_[i]);
}

void Params::wrong_type(size_t i, std::string_view expected) const {
  fail("{}(): expected the argument '{}' to be {}, found {}", function_, names_[i], expected, describe(*values_[i]));
}

int64_t Params::integer(size_t i) const {
  if (!values_[i]->is_integral()) wrong_type(i, "an integer");
  return values_[i]->integer();
}

int64_t Params::integer(size_t i, int64_t otherwise) const { return values_[i] ? integer(i) : otherwise; }

std::string_view Params::text(size_t i) const {
  if (!values_[i]->is_string()) wrong_type(i, "a string");
  return values_[i]->text();
}

bool Params::truth(size_t i, bool otherwise) const { return values_[i] ? jinja::truth(*values_[i]) : otherwise; }

}  // namespace cadre::jinja
