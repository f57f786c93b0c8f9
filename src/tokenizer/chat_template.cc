#include "tokenizer/chat_template.h"

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/parser.h"

namespace cadre {
namespace {

// The rendering's own copy of a JSON value.
jinja::Value from_json(jinja::Runtime& rt, const json::value& value) {
  const jinja::Nested nested(rt);
  rt.heap.step();
  switch (value.kind()) {
    case json::kind::null: return jinja::Value();
    case json::kind::bool_: return value.get_bool();
    case json::kind::int64: return value.get_int64();
    case json::kind::uint64: {
      const uint64_t number = value.get_uint64();
      return number > static_cast<uint64_t>(INT64_MAX) ? jinja::Value::big_int(number) : jinja::Value(static_cast<int64_t>(number));
    }
    case json::kind::double_: return value.get_double();
    case json::kind::string: return rt.string(utf8::replace_invalid(value.get_string()));
    case json::kind::array: {
      std::vector<jinja::Value> items;
      items.reserve(value.get_array().size());
      for (const json::value& item : value.get_array()) items.push_back(from_json(rt, item));
      return rt.list(std::move(items));
    }
    case json::kind::object: {
      jinja::Value dict = rt.dict();
      for (const auto& [key, item] : value.get_object())
        dict.as<jinja::DictObject>().set(rt.string(utf8::replace_invalid(key)), from_json(rt, item));
      return dict;
    }
  }
  return jinja::Value();
}

}  // namespace

struct ChatTemplate::Impl {
  ChatTemplateLimits limits;
  std::unique_ptr<jinja::SyntaxTree> tree;
};

ChatTemplate::ChatTemplate(std::string_view source, ChatTemplateLimits limits) : impl_(std::make_unique<Impl>()) {
  impl_->limits = limits;
  if (!utf8::is_valid(source)) throw invalid_input("chat template: expected UTF-8 text, found bytes that are none; correct the file");
  int line = 1;
  try {
    impl_->tree = jinja::parse_template(source, limits.max_depth, &line);
  } catch (const jinja::Fault& fault) {
    throw invalid_input("chat template, line {}: {}", line, fault.what());
  }
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const json::object& variables, int64_t now_unix_s) const {
  jinja::Runtime rt(impl_->limits, now_unix_s);
  try {
    jinja::Interpreter interpreter(*impl_->tree, rt);
    for (const auto& [name, value] : variables) interpreter.define(name, from_json(rt, value));
    return interpreter.run();
  } catch (const jinja::Fault& fault) {
    throw invalid_input("chat template, line {}: {}", rt.line, fault.what());
  }
}

}  // namespace cadre
