// Bytes of memory that a rank's weights take once they are loaded: packed for the kernels, vectors as float32, experts in equal
// slots. What stored bytes (rank_bytes.h) are for a device that keeps the checkpoint's form, these are for this engine's CPUs; equal
// to what a Decoder has allocated, to the byte.
#pragma once

#include <optional>

#include "parallel/rank_bytes.h"
#include "tensor/packed_layout.h"

namespace cadre {

// classes: of config (tensor_classes). slots_per_rank: of the expert placement, empty ones too. quantization: what weights of matrix
// products become, but routers, embeddings, latent projections and MXFP4.
RankBytes allocated_bytes(const std::vector<TensorClass>& classes, const ModelConfig& config, const Layout& layout, int64_t slots_per_rank, int world_rank,
                          std::optional<WeightFormat> quantization = {});

}  // namespace cadre
