#include "tokenizer/pattern.h"

#include <new>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"
#include "base/error.h"

namespace cadre {
namespace {

constexpr size_t kMaxStackBytes = size_t{128} << 20;
constexpr uint32_t kMaxHeapKib = 256 << 10;
// Steps of one search: enough for patterns that take a step per character, and an end to those that explode.
constexpr uint64_t kBaseSteps = 10'000'000, kStepsPerByte = 64;

template <typename T>
T* not_null(T* pointer) {
  if (!pointer) throw std::bad_alloc();
  return pointer;
}

}  // namespace

MatchScratch::MatchScratch()
    : data_(not_null(pcre2_match_data_create(1, nullptr))), context_(pcre2_match_context_create(nullptr)) {
  if (!context_) {
    pcre2_match_data_free(data_);
    throw std::bad_alloc();
  }
  pcre2_set_heap_limit(context_, kMaxHeapKib);
}

MatchScratch::~MatchScratch() {
  if (stack_) pcre2_jit_stack_free(stack_);
  pcre2_match_context_free(context_);
  pcre2_match_data_free(data_);
}

bool MatchScratch::grow_stack() {
  if (stack_) return false;
  stack_ = pcre2_jit_stack_create(size_t{1} << 20, kMaxStackBytes, nullptr);
  if (!stack_) return false;
  pcre2_jit_stack_assign(context_, nullptr, stack_);
  return true;
}

void Pattern::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Pattern::Pattern(const std::string& pcre2, std::string_view shown) : shown_(cadre::quoted(shown)) {
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      not_null(pcre2_compile_context_create(nullptr)), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre2.data()), pcre2.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C,
                            &error, &offset, context.get()));
  if (!code_) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof message);
    throw unsupported("expected a regular expression that is understood, found {} ({}); simplify the pattern", shown_,
                      reinterpret_cast<const char*>(message));
  }
  // Fails where the system forbids writable code; searches are then slower.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
  size_t jit_bytes = 0;
  has_jit_ = pcre2_pattern_info(code_.get(), PCRE2_INFO_JITSIZE, &jit_bytes) == 0 && jit_bytes > 0;
}

bool Pattern::find(std::string_view text, size_t from, MatchScratch& scratch, size_t* begin, size_t* end) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() ? text.data() : "");
  const auto search = [&] {
    // The fast way in skips all checks of its arguments; the text was checked once for all searches.
    return has_jit_ ? pcre2_jit_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, scratch.data_,
                                      scratch.context_)
                    : pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, scratch.data_,
                                  scratch.context_);
  };
  const uint64_t steps = kBaseSteps + kStepsPerByte * (text.size() - from);
  pcre2_set_match_limit(scratch.context_, static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  int result = search();
  if (result == PCRE2_ERROR_JIT_STACKLIMIT && scratch.grow_stack()) result = search();
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(result, message, sizeof message);
    throw invalid_input(
        "expected text that the pattern {} splits within its limits, found {} in a part of {} bytes; send "
        "shorter or simpler text",
        shown_, reinterpret_cast<const char*>(message), text.size());
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch.data_);
  // \K inside a look-ahead could start a match after its end, or before what is done.
  if (range[0] < from || range[1] < range[0])
    throw invalid_input("expected a pattern whose matches follow each other, found {}; simplify it", shown_);
  *begin = range[0];
  *end = range[1];
  return true;
}

size_t Pattern::next_character(std::string_view text, size_t pos) {
  ++pos;
  while (pos < text.size() && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) ++pos;
  return pos;
}

}  // namespace cadre
