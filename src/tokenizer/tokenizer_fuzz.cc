// A tokenizer.json and a text, with a zero byte between: any file is refused with an Error or gives a tokenizer that
// keeps its promises.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(std::min(zero + 1, input.size()));
  try {
    const auto tokenizer = cadre::tokenizer_from_json(input.substr(0, zero));
    const auto ids = tokenizer->encode(text, true);
    for (const bool skip : {false, true}) {
      const std::string whole = tokenizer->decode(ids, skip);
      cadre::IncrementalDetokenizer detokenizer(*tokenizer, skip);
      std::string streamed;
      for (const cadre::TokenId id : ids) detokenizer.push(id, &streamed);
      detokenizer.finish(&streamed);
      if (streamed != whole || !cadre::utf8::is_valid(whole)) std::abort();
    }
  } catch (const cadre::Error&) {
  }
  return 0;
}
