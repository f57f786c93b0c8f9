// The post-processor of a tokenizer.json, as far as it adds tokens: what stands before and after a text. Immutable.
#pragma once

#include <vector>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace cadre {

struct SpecialFrame {
  std::vector<TokenId> prefix, suffix;
};

// Reads the "post_processor" object. Throws Error for types that are not served and templates without the text.
SpecialFrame read_post_processor(const JsonObject& post_processor);

}  // namespace cadre
