// Methods of strings, lists, dicts and tuples, by name.
#pragma once

#include <string_view>

#include "tokenizer/jinja/runtime.h"

namespace cadre::jinja {

struct Method {
  std::string_view name;
  Value (*call)(Runtime& rt, const Value& self, const Args& args);
  bool mutates = false;
};

// nullptr when the type has no such method.
const Method* find_method(const Value& self, std::string_view name);
const Method* find_string_method(std::string_view name);
const Method* find_container_method(Kind kind, std::string_view name);

struct BoundMethod final : FunctionObject {
  BoundMethod(Value s, const Method* m) : self(std::move(s)), method(m) {}
  void clear() override { self = Value(); }
  Value call(Runtime& rt, Args& args) override { return method->call(rt, self, args); }
  std::string repr() const override { return fmt::format("<built-in method {}>", method->name); }
  Value self;
  const Method* method;
};

}  // namespace cadre::jinja
