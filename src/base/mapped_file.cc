#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace cadre {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const auto fail = [&](const char* step) {
    return Error(ErrorKind::kNotFound,
                 fmt::format("expected a readable file at {}, found: cannot {} ({}); check the path and its permissions", path.string(), step, std::strerror(errno)));
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw fail("open");
  struct stat st {};
  if (::fstat(fd, &st) != 0) {
    ::close(fd);
    throw fail("stat");
  }
  if (!S_ISREG(st.st_mode)) {
    ::close(fd);
    throw Error(ErrorKind::kNotFound, fmt::format("expected a regular file at {}, found something else; check the path", path.string()));
  }
  size_ = static_cast<size_t>(st.st_size);
  if (size_ > 0) {
    void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      ::close(fd);
      throw fail("map");
    }
    data_ = static_cast<const std::byte*>(data);
  }
  ::close(fd);
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void MappedFile::release(size_t offset, size_t size) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  // The page that holds the end of the file has nothing after it.
  const size_t end = offset + size >= size_ ? (size_ + page - 1) / page * page : (offset + size) / page * page;
  if (data_ && end > begin) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::unmap() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
}

}  // namespace cadre
