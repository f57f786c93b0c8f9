#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "base/mapped_file.h"
#include "weights/safetensors.h"
#include "weights/shard_index.h"
#include "weights/weight_source.h"

namespace cadre {
namespace {

// A page fault on a mapped file may map this much around it (a large folio), so a neighbour's touch can bring released
// bytes back.
constexpr uint64_t kFaultAroundBytes = uint64_t{2} << 20;

struct Shard {
  MappedFile file;
  std::vector<SafetensorsEntry> tensors;  // by offset
  std::vector<bool> released;
};

struct Place {
  size_t shard_idx, tensor_idx;
};

class Checkpoint final : public WeightSource {
 public:
  explicit Checkpoint(std::vector<Shard> shards) : shards_(std::move(shards)) {
    for (size_t s = 0; s < shards_.size(); ++s) {
      for (size_t t = 0; t < shards_[s].tensors.size(); ++t) {
        const SafetensorsEntry& entry = shards_[s].tensors[t];
        total_bytes_ += entry.end - entry.begin;
        const auto [it, fresh] = places_.emplace(entry.name, Place{s, t});
        if (!fresh)
          throw invalid_input("{}: expected each tensor in one file, found {} here and in {}; remove the stale file",
                              file_name(s), cadre::quoted(entry.name), file_name(it->second.shard_idx));
      }
    }
  }

  bool has(std::string_view name) const override { return places_.find(name) != places_.end(); }

  TensorInfo info(std::string_view name) const override {
    const SafetensorsEntry& entry = entry_at(place_of(name));
    return {entry.dtype, entry.shape};
  }

  StoredTensor tensor(std::string_view name) override {
    const Place place = place_of(name);
    const SafetensorsEntry& entry = entry_at(place);
    Shard& shard = shards_[place.shard_idx];
    std::span<const std::byte> bytes = shard.file.bytes().subspan(entry.begin, entry.end - entry.begin);
    const std::lock_guard lock(mutex_);
    shard.released[place.tensor_idx] = false;
    if (entry.begin % dtype_bytes(entry.dtype) != 0) bytes = aligned_copy(entry.name, bytes);
    return {entry.dtype, entry.shape, bytes};
  }

  void release(std::string_view name) override {
    const Place place = place_of(name);
    const std::lock_guard lock(mutex_);
    copies_.erase(std::string(name));
    Shard& shard = shards_[place.shard_idx];
    shard.released[place.tensor_idx] = true;
    // Over the neighbours that are released too, as far as a page or a fault of theirs may reach.
    const std::vector<SafetensorsEntry>& tensors = shard.tensors;
    const uint64_t own_begin = tensors[place.tensor_idx].begin, own_end = tensors[place.tensor_idx].end;
    size_t first = place.tensor_idx, last = place.tensor_idx;
    while (first > 0 && shard.released[first - 1] && tensors[first].begin + kFaultAroundBytes > own_begin) --first;
    while (last + 1 < tensors.size() && shard.released[last + 1] && tensors[last].end < own_end + kFaultAroundBytes)
      ++last;
    const uint64_t begin = first == 0 ? 0 : tensors[first].begin;  // nothing before the first but the header
    const uint64_t end = tensors[last].end;
    shard.file.release(begin, end - begin);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> result;
    for (const Shard& shard : shards_)
      for (const SafetensorsEntry& entry : shard.tensors) result.push_back(entry.name);
    return result;
  }

  uint64_t total_bytes() const override { return total_bytes_; }

  // Name of the file that holds the tensor.
  std::string file_of(std::string_view name) const { return file_name(place_of(name).shard_idx); }

 private:
  // Finds a std::string key by a string_view.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };

  std::string file_name(size_t shard_idx) const { return shards_[shard_idx].file.path().filename().string(); }
  const SafetensorsEntry& entry_at(Place p) const { return shards_[p.shard_idx].tensors[p.tensor_idx]; }
  Place place_of(std::string_view name) const {
    const auto it = places_.find(name);
    if (it == places_.end())
      throw Error(
          ErrorKind::kNotFound,
          fmt::format(
              "expected a tensor {} in the checkpoint, found none; the checkpoint is incomplete or of another model",
              cadre::quoted(name)));
    return it->second;
  }

  // Old writers did not align: kernels read whole elements, so these few tensors are copied. Needs the lock.
  std::span<const std::byte> aligned_copy(const std::string& name, std::span<const std::byte> bytes) {
    Buffer& copy = copies_[name];
    if (copy.size() != bytes.size()) {
      copy = Buffer(bytes.size());
      std::memcpy(copy.data(), bytes.data(), bytes.size());
    }
    return copy.as<const std::byte>();
  }

  std::vector<Shard> shards_;
  std::unordered_map<std::string, Place, Hash, std::equal_to<>> places_;
  uint64_t total_bytes_ = 0;
  std::mutex mutex_;  // guards copies_ and the released flags
  std::map<std::string, Buffer> copies_;
};

Shard open_shard(const std::filesystem::path& path) {
  MappedFile file(path);
  std::vector<SafetensorsEntry> tensors = read_safetensors_header(file.bytes(), path.filename().string());
  file.release(0, file.bytes().size());  // the header is read and will not be again
  std::vector<bool> released(tensors.size(), false);
  return {std::move(file), std::move(tensors), std::move(released)};
}

std::string read_text(const std::filesystem::path& path, uint64_t max_bytes) {
  const MappedFile file(path);
  if (file.bytes().size() > max_bytes)
    throw invalid_input("{}: expected at most {} bytes, found {}; this is not the file it should be", path.string(),
                        max_bytes, file.bytes().size());
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

std::unique_ptr<WeightSource> open_sharded(const std::filesystem::path& dir, const std::filesystem::path& index_path) {
  const std::string index_name = index_path.filename().string();
  const ShardIndex index = read_shard_index(read_text(index_path, uint64_t{256} << 20), index_name);
  std::vector<Shard> shards;
  for (const std::string& file : index.files()) {
    if (!std::filesystem::exists(dir / file))
      throw Error(ErrorKind::kNotFound, fmt::format("{}: expected the file {} beside it, found none; download it",
                                                    index_name, cadre::quoted(file)));
    shards.push_back(open_shard(dir / file));
  }
  auto checkpoint = std::make_unique<Checkpoint>(std::move(shards));
  for (const auto& [name, file] : index.file_of) {
    if (!checkpoint->has(name))
      throw invalid_input(
          "{}: expected tensor {} in {}, found no such tensor there; the files are not of one checkpoint: download "
          "them again",
          index_name, cadre::quoted(name), file);
    if (checkpoint->file_of(name) != file)
      throw invalid_input(
          "{}: expected tensor {} in {}, found it in {}; the files are not of one checkpoint: download them again",
          index_name, cadre::quoted(name), file, checkpoint->file_of(name));
  }
  return checkpoint;
}

}  // namespace

std::unique_ptr<WeightSource> open_checkpoint(const std::filesystem::path& model_dir) {
  const auto single = model_dir / "model.safetensors", index = model_dir / "model.safetensors.index.json";
  if (std::filesystem::exists(single)) {
    std::vector<Shard> shards;
    shards.push_back(open_shard(single));
    return std::make_unique<Checkpoint>(std::move(shards));
  }
  if (std::filesystem::exists(index)) return open_sharded(model_dir, index);
  throw Error(ErrorKind::kNotFound,
              fmt::format("expected model.safetensors or model.safetensors.index.json in {}, found neither; check the "
                          "path, or convert the checkpoint to safetensors",
                          model_dir.string()));
}

}  // namespace cadre
