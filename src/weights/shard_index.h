// model.safetensors.index.json: which file holds which tensor.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cadre {

struct ShardIndex {
  std::map<std::string, std::string> file_of;  // by tensor
  std::vector<std::string> files() const;      // each once, sorted
};

// Throws Error, naming `what`, unless text is {"weight_map": {tensor: file, ...}, ...} with each tensor once and plain
// names of files (no folders).
ShardIndex read_shard_index(std::string_view text, std::string_view what);

}  // namespace cadre
