#include "tensor/packed_layout.h"

namespace cadre {
namespace {

int64_t element_bytes(WeightFormat f) {
  switch (f) {
    case WeightFormat::kF32: return 4;
    case WeightFormat::kF16: case WeightFormat::kBF16: return 2;
    default: return 1;
  }
}

}  // namespace

PackedLayout::PackedLayout(WeightFormat f, int64_t n_, int64_t k_) : format(f), n(n_), k(k_) {
  const bool is_half = f == WeightFormat::kMxfp4 || f == WeightFormat::kInt4;
  const int64_t per_k = is_half ? kPanelColumns / 2 : kPanelColumns * element_bytes(f);
  panel_bytes = (per_k * (is_int(f) ? num_blocks_k() * block_k(f) : k) + 63) / 64 * 64;
  scales_offset = panel_bytes * num_panels();
  int64_t scale_bytes = 0;
  if (f == WeightFormat::kFp8Block) scale_bytes = (n + kFp8BlockN - 1) / kFp8BlockN * num_blocks_k() * 4;
  if (f == WeightFormat::kMxfp4) scale_bytes = num_panels() * num_blocks_k() * kPanelColumns;
  if (is_int(f)) scale_bytes = num_panels() * num_blocks_k() * kPanelColumns * 2;
  total_bytes = (scales_offset + scale_bytes + 63) / 64 * 64;
}

}  // namespace cadre
