#include "weights/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "weights/json_events.h"

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little,
              "checkpoints are little-endian and are mapped, not converted");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 16;

std::optional<DType> dtype_of(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i)
    if (dtype_name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  return std::nullopt;
}

// {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {"key": "text"}}
class HeaderReader final : public JsonEvents {
 public:
  explicit HeaderReader(std::string_view what) : what_(what) {}

  std::vector<SafetensorsEntry> take() { return std::move(entries_); }

  void begin_object() override {
    if (where_ == Where::kStart)
      where_ = Where::kFile;
    else if (where_ == Where::kFile)
      where_ = metadata_ ? Where::kMetadata : Where::kTensor;
    else
      throw surprise("an object");
  }
  void end_object() override {
    if (where_ == Where::kTensor) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_)
        throw refuse("expected dtype, shape and data_offsets, found only some of them");
      where_ = Where::kFile;
    } else if (where_ == Where::kMetadata) {
      where_ = Where::kFile;
    }
  }
  void begin_array() override {
    if (where_ != Where::kTensor || (field_ != "shape" && field_ != "data_offsets")) throw surprise("an array");
    where_ = Where::kNumbers;
    numbers_.clear();
  }
  void end_array() override {
    where_ = Where::kTensor;
    if (field_ == "shape") {
      entries_.back().shape = numbers_;
      has_shape_ = true;
      return;
    }
    if (numbers_.size() != 2) throw refuse(fmt::format("expected two data_offsets, found {}", numbers_.size()));
    entries_.back().begin = static_cast<uint64_t>(numbers_[0]);
    entries_.back().end = static_cast<uint64_t>(numbers_[1]);
    has_offsets_ = true;
  }
  void key(std::string_view text) override {
    if (where_ == Where::kFile) {
      metadata_ = text == "__metadata__";
      if (!names_.emplace(text).second)
        throw invalid_input("{}: expected each tensor once, found {} twice; the file is damaged", what_,
                            cadre::quoted(text));
      if (metadata_) return;
      entries_.push_back({.name = std::string(text)});
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else if (where_ == Where::kTensor) {
      field_ = text;
      const bool seen = (text == "dtype" && has_dtype_) || (text == "shape" && has_shape_) ||
                        (text == "data_offsets" && has_offsets_);
      if (seen) throw refuse(fmt::format("expected each key once, found {} twice", cadre::quoted(text)));
      if (text != "dtype" && text != "shape" && text != "data_offsets")
        throw refuse(fmt::format("expected dtype, shape and data_offsets, found {}", cadre::quoted(text)));
    }
  }
  void string(std::string_view text) override {
    if (where_ == Where::kMetadata) return;
    if (where_ != Where::kTensor || field_ != "dtype") throw surprise("a string");
    const auto dtype = dtype_of(text);
    if (!dtype)
      throw refuse(
          fmt::format("expected a served element type (BF16, F16, F32, F8_E4M3, U8 and other integers), found {}",
                      cadre::quoted(text)));
    entries_.back().dtype = *dtype;
    has_dtype_ = true;
  }
  void integer(int64_t value) override {
    if (where_ != Where::kNumbers) throw surprise("a number");
    if (value < 0) throw refuse(fmt::format("expected no negative {}, found {}", field_, value));
    if (numbers_.size() == kMaxRank)
      throw refuse(fmt::format("expected at most {} numbers in {}, found more", kMaxRank, field_));
    numbers_.push_back(value);
  }
  void other(std::string_view found) override { throw surprise(found); }

 private:
  enum class Where { kStart, kFile, kMetadata, kTensor, kNumbers };

  Error refuse(std::string_view problem) const {
    return invalid_input("{}: tensor {}: {}; the file is damaged or of a form that is not served", what_,
                         cadre::quoted(entries_.back().name), problem);
  }
  Error surprise(std::string_view found) const {
    if (where_ == Where::kTensor || where_ == Where::kNumbers)
      return refuse(fmt::format("expected {} as safetensors write it, found {}", cadre::quoted(field_), found));
    return invalid_input(
        "{}: expected an object of tensors and text metadata, found {}; this is not a safetensors file", what_, found);
  }

  std::string_view what_;
  Where where_ = Where::kStart;
  bool metadata_ = false;
  std::string field_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<int64_t> numbers_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_set<std::string> names_;
};

// Bytes of a tensor by its shape; nullopt when they exceed 63 bits.
std::optional<uint64_t> bytes_of(const SafetensorsEntry& entry) {
  int64_t bytes = static_cast<int64_t>(dtype_bytes(entry.dtype));
  for (const int64_t d : entry.shape) {
    // A zero later in the shape must not hide an overflow before it: such a shape is nonsense either way.
    if (__builtin_mul_overflow(bytes, d, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

// The header's text. Checks the eight bytes that give its length.
std::string_view header_text(std::span<const std::byte> file, std::string_view what) {
  if (file.size() < 8)
    throw invalid_input("{}: expected a safetensors file, found {} bytes; the file is cut or of another kind", what,
                        file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length > kMaxHeaderBytes)
    throw invalid_input(
        "{}: expected a header of at most {} bytes, found {}; the file is damaged or no safetensors file", what,
        kMaxHeaderBytes, length);
  if (length > file.size() - 8)
    throw invalid_input(
        "{}: expected a header of {} bytes, found {} bytes in the file; the file is cut: download it again", what,
        length, file.size() - 8);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  if (!text.starts_with('{'))
    throw invalid_input("{}: expected a header that begins with '{{', found {}; this is not a safetensors file", what,
                        cadre::quoted(text.substr(0, 16)));
  return text;
}

void check_layout(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes, std::string_view what) {
  for (const SafetensorsEntry& e : entries) {
    const auto refuse = [&](const std::string& problem) {
      return invalid_input("{}: tensor {}: {}; the file is cut or damaged: download it again", what,
                           cadre::quoted(e.name), problem);
    };
    if (e.begin > e.end || e.end > data_bytes)
      throw refuse(fmt::format("expected bytes within the file's {} of data, found offsets {} to {}", data_bytes,
                               e.begin, e.end));
    const auto bytes = bytes_of(e);
    if (!bytes || *bytes != e.end - e.begin)
      throw refuse(fmt::format("expected {} bytes for {} {}, found {}", bytes ? fmt::format("{}", *bytes) : "fewer",
                               dtype_name(e.dtype), shape_text(e.shape), e.end - e.begin));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end != b.end ? a.end < b.end : a.name < b.name;
  });
  uint64_t covered = 0;
  for (const SafetensorsEntry& e : entries) {
    if (e.begin != covered)
      throw invalid_input(
          "{}: tensor {}: expected its bytes to begin at {}, where the ones before end, found {} ({}); the file is "
          "damaged",
          what, cadre::quoted(e.name), covered, e.begin, e.begin < covered ? "an overlap" : "a hole");
    covered = e.end;
  }
  if (covered != data_bytes)
    throw invalid_input(
        "{}: expected the tensors to fill the file's {} bytes of data, found {} bytes described; the file is damaged",
        what, data_bytes, covered);
}

}  // namespace

std::vector<SafetensorsEntry> read_safetensors_header(std::span<const std::byte> file, std::string_view what) {
  const std::string_view text = header_text(file, what);
  HeaderReader reader(what);
  read_json_events(text, what, 4, reader);
  std::vector<SafetensorsEntry> entries = reader.take();
  const uint64_t data_begin = 8 + text.size();
  check_layout(entries, file.size() - data_begin, what);
  for (SafetensorsEntry& e : entries) {
    e.begin += data_begin;
    e.end += data_begin;
  }
  return entries;
}

}  // namespace cadre
