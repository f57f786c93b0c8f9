// Shapes, owning aligned buffers and views of stored tensors. Row-major throughout; a view never outlives its owner.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace cadre {

using Shape = std::vector<int64_t>;

int64_t num_elements(std::span<const int64_t> shape);
// "[256, 7168]"
std::string shape_text(std::span<const int64_t> shape);

// A tensor as it lies in a checkpoint: type, shape, little-endian row-major bytes.
struct StoredTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
};

// 64-byte aligned memory, zeroed; large ones ask for huge pages. Move-only.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  void free();
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  bool mapped_ = false;
};

}  // namespace cadre
