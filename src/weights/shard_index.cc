#include "weights/shard_index.h"

#include <set>

#include "base/error.h"
#include "weights/json_events.h"

namespace cadre {
namespace {

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

class IndexReader final : public JsonEvents {
 public:
  explicit IndexReader(std::string_view what) : what_(what) {}
  ShardIndex index;
  bool has_map = false;

  void begin_object() override {
    ++depth_;
    in_map_ = depth_ == 2 && top_key_ == "weight_map";
    if (in_map_ && has_map)
      throw invalid_input("{}: expected 'weight_map' once, found it twice; the file is damaged", what_);
    has_map = has_map || in_map_;
    if (depth_ > 2 && top_key_ == "weight_map") throw surprise("an object");
  }
  void end_object() override {
    --depth_;
    in_map_ = false;
  }
  void begin_array() override {
    if (depth_ == 0 || top_key_ == "weight_map") throw surprise("an array");
    ++depth_;
  }
  void end_array() override { --depth_; }
  void key(std::string_view text) override {
    if (depth_ == 1) top_key_ = text;
    tensor_ = text;
  }
  void string(std::string_view text) override {
    if (!in_map_) return scalar("a string");
    if (!is_plain_file_name(text))
      throw invalid_input("{}: expected the file of tensor {} beside the index, found {}; correct the index", what_,
                          cadre::quoted(tensor_), cadre::quoted(text));
    if (!index.file_of.emplace(tensor_, text).second)
      throw invalid_input("{}: expected each tensor once, found {} twice; the file is damaged", what_,
                          cadre::quoted(tensor_));
  }
  void integer(int64_t) override { scalar("a number"); }
  void other(std::string_view found) override { scalar(found); }

 private:
  void scalar(std::string_view found) const {
    if (in_map_ || depth_ == 0 || (depth_ == 1 && top_key_ == "weight_map")) throw surprise(found);
  }
  Error surprise(std::string_view found) const {
    return invalid_input(
        "{}: expected 'weight_map' to give a file name for each tensor, found {}; this is not an index of safetensors",
        what_, found);
  }

  std::string_view what_;
  int depth_ = 0;
  bool in_map_ = false;
  std::string top_key_, tensor_;
};

}  // namespace

std::vector<std::string> ShardIndex::files() const {
  std::set<std::string> unique;
  for (const auto& [tensor, file] : file_of) unique.insert(file);
  return {unique.begin(), unique.end()};
}

ShardIndex read_shard_index(std::string_view text, std::string_view what) {
  IndexReader reader(what);
  read_json_events(text, what, 16, reader);
  if (!reader.has_map || reader.index.file_of.empty())
    throw invalid_input(
        "{}: expected 'weight_map' to name the files of the tensors, found none; this is not an index of safetensors",
        what);
  return std::move(reader.index);
}

}  // namespace cadre
