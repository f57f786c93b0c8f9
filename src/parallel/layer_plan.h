// What moves between ranks in a layer, decided once when a model is built: which rows each half of the layer computes on,
// which collective brings them there, and which one owns the reduction of its output.
//
// Between halves the residual stream is SCATTERED: each rank holds its slice of its data-parallel rank's rows, so no row
// is normalised or routed twice. A half that computes on more rows gathers the normed rows first, and its output is
// reduced by exactly one collective, which leaves every rank with the sums for its own slice.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "parallel/layout.h"
#include "parallel/traffic.h"

namespace cadre {

// Rows that a rank holds at a point of a layer.
enum class ScatterMode : uint8_t {
  kScattered,   // its slice of its data-parallel rank's rows
  kTpAttnFull,  // all rows of its data-parallel rank
  kFull,        // all rows of all ranks
  kMoeFull,     // all rows of its MoE group, when that is not the world
};
std::string_view scatter_mode_name(ScatterMode mode);

enum class GroupKind : uint8_t { kNone, kAttnTp, kDenseTp, kWorld };
std::string_view group_kind_name(GroupKind kind);

// Who adds up the parts of a half's output.
enum class ReductionOwner : uint8_t { kNobody, kReduceScatter, kCombine };

struct HalfPlan {
  ScatterMode compute = ScatterMode::kScattered;  // rows its matrix products run on
  GroupKind gather = GroupKind::kNone;            // all-gather of normed rows before
  GroupKind reduce = GroupKind::kNone;            // reduce-scatter of its output after
  ReductionOwner owner = ReductionOwner::kNobody;
  ExchangeKind exchange = ExchangeKind::kNone;    // of a sparse feed-forward
  bool operator==(const HalfPlan&) const = default;
};

struct LayerPlan {
  bool is_sparse = false;
  HalfPlan attention, feed_forward;
  bool operator==(const LayerPlan&) const = default;
};

std::vector<LayerPlan> plan_layers(const ModelConfig& config, const Layout& layout);

// How a gather over ranks with unequal rows is done. kMaxLen: every rank's part is padded to the longest; kSumLen: exact
// parts. As SGLang does it, padding is chosen while it costs at most twice the rows (equal parts let devices use their
// fastest collective).
enum class GatherMode : uint8_t { kMaxLen, kSumLen };
GatherMode choose_gather_mode(std::span<const int64_t> rows);

// Rows of each rank's part of a gather or reduction in this mode.
int64_t part_rows(GatherMode mode, std::span<const int64_t> rows, int rank);

// Bytes of one row on the wire. values: hidden size; float32 activations unless fp8 is asked for (one byte a value and one
// float scale per 128 values). The planner asks for other engines' activations too.
inline constexpr int64_t kActivationBytes = 4;
int64_t row_bytes(int64_t hidden, bool is_fp8, int64_t activation_bytes = kActivationBytes);

}  // namespace cadre
