#include "tensor/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"

namespace cadre {
namespace {

// From here on, memory comes from mmap in whole huge pages, so that the kernel can back it with them.
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

int64_t num_elements(std::span<const int64_t> shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  if (bytes >= kHugePageBytes) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    ::madvise(p, bytes, MADV_HUGEPAGE);  // advice only: where the kernel refuses, small pages serve
    data_ = static_cast<std::byte*>(p);
    mapped_ = true;
    return;
  }
  const size_t rounded = (bytes + 63) / 64 * 64;
  data_ = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
  if (!data_) throw std::bad_alloc();
  std::memset(data_, 0, rounded);
}

Buffer::~Buffer() { free(); }

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), mapped_(other.mapped_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    free();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_ = other.mapped_;
  }
  return *this;
}

void Buffer::free() {
  if (!data_) return;
  if (mapped_) ::munmap(data_, bytes_);
  else std::free(data_);
  data_ = nullptr;
}

}  // namespace cadre
