// What `cadre inspect MODEL` says: parameters by kind, bytes per element type, cache and expert sizes. Reads headers
// only. A folder with a config.json and no weights is described as its configuration has it.
#pragma once

#include <filesystem>
#include <string>

namespace cadre {

// For people. Throws Error when the configuration or a header cannot be read; weights that do not fit the configuration
// are described, with the misfit named.
std::string inspect_text(const std::filesystem::path& model_dir);

// The same as one JSON object.
std::string inspect_json(const std::filesystem::path& model_dir);

}  // namespace cadre
