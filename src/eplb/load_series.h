// Recorded expert loads: rows that chose each expert of each layer, step by step or over windows. Reads the forms there
// are (docs/eplb.md lists them) into one, and writes our own. What it returns is checked: same shape throughout, no
// number below 0, some load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cadre::eplb {

struct LoadStep {
  std::string name;          // "step 12", or what the file calls it; empty where it has only one
  int64_t num_steps = 1;     // forward passes it sums
  std::vector<double> rows;  // [layers, experts]
};

struct LoadSeries {
  int64_t num_experts = 0;
  std::vector<int64_t> layers;  // ids in the model, ascending
  std::vector<LoadStep> steps;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  std::span<const double> of(int64_t step, int64_t layer_idx) const {
    return std::span(steps[static_cast<size_t>(step)].rows)
        .subspan(static_cast<size_t>(layer_idx * num_experts), static_cast<size_t>(num_experts));
  }
  // Sum over steps [first, first + count): [layers, experts].
  std::vector<double> sum(int64_t first, int64_t count) const;
  int64_t num_passes(int64_t first, int64_t count) const;
};

struct LoadFilter {
  // Records of JSON lines whose KEY is VALUE: of a file with several models.
  std::vector<std::pair<std::string, std::string>> only;
  // Shape of a file of bare expert ids, one byte each, [tokens, layers, top_k].
  struct Routes {
    int64_t layers = 0, top_k = 0, num_experts = 0, tokens_per_step = 256;
  };
  std::optional<Routes> routes;
};

// Throws Error: expected, found, what to do. Layers that no step loads are dropped (files of models whose first layers
// are dense have rows of zeros for them).
LoadSeries read_load(const std::filesystem::path& file, const LoadFilter& filter = {});
// The same of a text of JSON or JSON lines, named `what` in messages.
LoadSeries parse_load(std::string_view text, std::string_view what, const LoadFilter& filter = {});

// What is odd about a load but legal, a sentence each: layers in which one expert has every row.
std::vector<std::string> remarks(const LoadSeries& series);

// Our own form: a line that names the shape, then a line for each step. Reads back as it was.
std::string to_json_lines(const LoadSeries& series);

}  // namespace cadre::eplb
