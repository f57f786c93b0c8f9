// The pre-tokenizer of a tokenizer.json: cuts normalized text into the pieces that merges never cross. Immutable.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/thread_pool.h"
#include "tokenizer/pattern.h"

namespace cadre {

class PreTokenizer {
 public:
  // Takes a piece (not empty); starts_text: it starts where the whole text does.
  using Sink = FunctionRef<void(std::string_view piece, bool starts_text)>;

  class Step {
   public:
    virtual ~Step() = default;
    virtual void run(std::string_view piece, bool starts_text, MatchScratch& scratch, Sink sink) const = 0;
  };

  // One piece: the text.
  PreTokenizer() = default;
  // Reads the "pre_tokenizer" object. Throws Error for types that are not served.
  explicit PreTokenizer(const JsonObject& pre_tokenizer);

  // True when the last step is ByteLevel: its change of bytes into characters is left to whoever takes the pieces.
  bool gives_bytes() const { return gives_bytes_; }

  void run(std::string_view text, bool starts_text, MatchScratch& scratch, Sink sink) const {
    if (!text.empty()) run_from(0, text, starts_text, scratch, sink);
  }

 private:
  void run_from(size_t step, std::string_view piece, bool starts_text, MatchScratch& scratch, Sink sink) const;

  std::vector<std::unique_ptr<Step>> steps_;
  bool gives_bytes_ = false;
};

}  // namespace cadre
