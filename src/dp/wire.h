// Requests, answers and statistics as bytes, between the process that serves clients and the processes of other ranks.
// Both ends are the same build: there is no versioning beyond a number in the greeting.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"

namespace cadre {

inline constexpr uint32_t kWireVersion = 1;
inline constexpr size_t kMaxFrameBytes = 64u << 20;

// Appends values to a string of bytes.
class WireWriter {
 public:
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void put_text(std::string_view text);
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void put_values(std::span<const T> values) {
    put(static_cast<uint64_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Takes them off again. Throws Error (kInternal) when the bytes end early or are too many.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  T get() {
    T value;
    const std::string_view from = take(sizeof(T));
    std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  std::string get_text();
  template <typename T>
  std::vector<T> get_values() {
    const uint64_t count = get<uint64_t>();
    if (count > bytes_.size() / sizeof(T)) throw_short();
    std::vector<T> out(count);
    const std::string_view from = take(count * sizeof(T));
    if (count > 0) std::memcpy(out.data(), from.data(), from.size());
    return out;
  }
  void expect_end() const;

 private:
  std::string_view take(size_t count);
  [[noreturn]] static void throw_short();
  std::string_view bytes_;
};

void put_request(WireWriter& out, const GenerationRequest& request);
GenerationRequest get_request(WireReader& in);
void put_delta(WireWriter& out, const Delta& delta);
Delta get_delta(WireReader& in);

}  // namespace cadre
