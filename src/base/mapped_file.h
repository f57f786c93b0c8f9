// A read-only memory mapping of a whole file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace cadre {

class MappedFile {
 public:
  // Throws Error (kNotFound) when the file cannot be opened or mapped. An empty file maps to an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Tells the kernel that the pages wholly inside [offset, offset + size) will not be needed soon: they leave resident
  // memory and come back from the file when touched again. The last page belongs to a range that reaches the end.
  void release(size_t offset, size_t size) const;

 private:
  void unmap();
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cadre
