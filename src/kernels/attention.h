// Softmax attention over a paged KV cache, tile by tile of 16 positions with a running maximum (Milakov and Gimelshein
// 2018; Dao et al. 2022). Each query's result depends only on its own position and the keys before it: tiles are taken
// in order from the first visible one, sums run in a fixed order.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "tensor/dtype.h"

namespace cadre {

inline constexpr int64_t kTileTokens = 16;  // equals the tokens of a KV block

// Where tile i lies: base + (blocks ? blocks[i] : i) * tile_stride_bytes.
struct TileTable {
  const std::byte* base = nullptr;
  const int32_t* blocks = nullptr;
  int64_t tile_stride_bytes = 0;
  const std::byte* tile(int64_t i) const { return base + (blocks ? blocks[i] : i) * tile_stride_bytes; }
};

// One KV head: inside a tile, keys at key_offset as [head_dim][16] (position fastest), values at value_offset as
// [16][value_dim]. kF32 or kBF16. Tile contents past a query's position must be finite.
struct HeadCache {
  TileTable tiles;
  int64_t key_offset = 0, value_offset = 0;  // bytes
  int64_t head_dim = 0, value_dim = 0;
  DType dtype = DType::kF32;
};

struct AttentionQuery {
  const float* q = nullptr;  // [head_dim]
  float* out = nullptr;      // [value_dim]
  int64_t position = 0;      // sees keys 0 .. position
  float sink = -std::numeric_limits<float>::infinity();  // logit of a key without value (gpt-oss)
};

// window: keys visible to a query counting itself; 0 = all.
void attend(const HeadCache& kv, float scale, int64_t window, std::span<const AttentionQuery> queries);

// MLA in the absorbed form (DeepSeek-V2, section 2.1.2) for one query row and a group of 16 heads, heads in vector lanes.
// The cache holds [16][latent_dim + rope_dim] per tile; the query is transposed: q_t [latent_dim + rope_dim][16];
// out_t [latent_dim][16] gets softmax(q . c) c per head. Unused lanes of q_t must be finite.
struct LatentCache {
  TileTable tiles;
  int64_t offset = 0;
  int64_t latent_dim = 0, rope_dim = 0;
  DType dtype = DType::kF32;
};
inline constexpr int64_t kMlaHeads = 16;
void attend_latent(const LatentCache& kv, float scale, int64_t position, const float* q_t, float* out_t);

// Two-pass scalar softmax in double, for tests.
void attend_ref(const HeadCache& kv, float scale, int64_t window, const AttentionQuery& query);
void attend_latent_ref(const LatentCache& kv, float scale, int64_t position, const float* q_t, float* out_t);

}  // namespace cadre
