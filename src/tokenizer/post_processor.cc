#include "tokenizer/post_processor.h"

#include <limits>

#include "base/error.h"
#include "tokenizer/json_kind.h"

namespace cadre {
namespace {

constexpr std::string_view kServed = "Sequence, ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing";
constexpr int64_t kMaxId = std::numeric_limits<TokenId>::max();

// Ids of a template's special token.
void append_special(const JsonObject& processor, const std::string& name, std::vector<TokenId>* ids) {
  const auto all = processor.maybe_object("special_tokens");
  const auto token = all ? all->maybe_object(name) : std::nullopt;
  const json::array* list = token ? token->maybe_array("ids") : nullptr;
  if (!list)
    throw invalid_input("{}: expected ids for the special token {}, found none; correct the file", processor.name(),
                        cadre::quoted(name));
  for (const json::value& id : *list) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > kMaxId)
      throw invalid_input("{}: expected an id from 0 to {} for {}, found {}; correct the file", processor.name(),
                          kMaxId, cadre::quoted(name), describe(id));
    ids->push_back(static_cast<TokenId>(id.get_int64()));
  }
}

SpecialFrame read_template(const JsonObject& processor) {
  SpecialFrame frame;
  int num_texts = 0;
  for (const JsonObject& part : json_sequence(processor, "single")) {
    const auto text = part.maybe_object("Sequence");
    const auto special = part.maybe_object("SpecialToken");
    if (text && text->string("id") == "A") {
      ++num_texts;
    } else if (special) {
      append_special(processor, special->string("id"), num_texts == 0 ? &frame.prefix : &frame.suffix);
    } else {
      throw unsupported("{}: expected SpecialToken or Sequence A, found another part; this template is not served",
                        part.name());
    }
  }
  if (num_texts != 1)
    throw unsupported("{}: expected a template with Sequence A once, found it {} times; this template is not served",
                      processor.name(), num_texts);
  return frame;
}

TokenId pair_id(const JsonObject& processor, std::string_view key) {
  const json::array* pair = processor.maybe_array(key);
  if (!pair || pair->size() != 2 || !(*pair)[1].is_int64() || (*pair)[1].get_int64() < 0 ||
      (*pair)[1].get_int64() > kMaxId)
    throw invalid_input("{}: expected '{}' as [token, id], found something else; correct the file", processor.name(),
                        key);
  return static_cast<TokenId>((*pair)[1].get_int64());
}

}  // namespace

SpecialFrame read_post_processor(const JsonObject& processor) {
  const std::string type = processor.string("type");
  if (type == "ByteLevel") return {};  // corrects offsets only
  if (type == "TemplateProcessing") return read_template(processor);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {{pair_id(processor, "cls")}, {pair_id(processor, "sep")}};
  if (type != "Sequence") refuse_kind(processor, type, kServed);
  SpecialFrame frame;
  for (const JsonObject& part : json_sequence(processor, "processors")) {
    const SpecialFrame outer = read_post_processor(part);
    frame.prefix.insert(frame.prefix.begin(), outer.prefix.begin(), outer.prefix.end());
    frame.suffix.insert(frame.suffix.end(), outer.suffix.begin(), outer.suffix.end());
  }
  return frame;
}

}  // namespace cadre
