#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace cadre {
namespace {

float load(const std::byte* p, int64_t i, DType t) {
  if (t == DType::kBF16) {
    uint16_t v;
    std::memcpy(&v, p + i * 2, 2);
    return bf16_to_float(v);
  }
  float v;
  std::memcpy(&v, p + i * 4, 4);
  return v;
}

}  // namespace

void attend_ref(const HeadCache& kv, float scale, int64_t window, const AttentionQuery& query) {
  const int64_t first = window > 0 ? std::max<int64_t>(0, query.position - window + 1) : 0;
  std::vector<double> p;
  double top = query.sink;
  for (int64_t j = first; j <= query.position; ++j) {
    const std::byte* keys = kv.tiles.tile(j / kTileTokens) + kv.key_offset;
    double s = 0;
    for (int64_t d = 0; d < kv.head_dim; ++d) s += double{query.q[d]} * load(keys, d * kTileTokens + j % kTileTokens, kv.dtype);
    p.push_back(s * scale);
    top = std::max(top, p.back());
  }
  double sum = std::exp(query.sink - top);
  for (double& v : p) sum += v = std::exp(v - top);
  for (int64_t d = 0; d < kv.value_dim; ++d) {
    double o = 0;
    for (int64_t j = first; j <= query.position; ++j)
      o += p[static_cast<size_t>(j - first)] * load(kv.tiles.tile(j / kTileTokens) + kv.value_offset, j % kTileTokens * kv.value_dim + d, kv.dtype);
    query.out[d] = static_cast<float>(o / sum);
  }
}

void attend_latent_ref(const LatentCache& kv, float scale, int64_t position, const float* q_t, float* out_t) {
  const int64_t width = kv.latent_dim + kv.rope_dim;
  const auto at = [&](int64_t j, int64_t d) { return load(kv.tiles.tile(j / kTileTokens) + kv.offset, j % kTileTokens * width + d, kv.dtype); };
  for (int64_t h = 0; h < kMlaHeads; ++h) {
    std::vector<double> p;
    for (int64_t j = 0; j <= position; ++j) {
      double s = 0;
      for (int64_t d = 0; d < width; ++d) s += double{q_t[d * kMlaHeads + h]} * at(j, d);
      p.push_back(s * scale);
    }
    const double top = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& v : p) sum += v = std::exp(v - top);
    for (int64_t d = 0; d < kv.latent_dim; ++d) {
      double o = 0;
      for (int64_t j = 0; j <= position; ++j) o += p[static_cast<size_t>(j)] * at(j, d);
      out_t[d * kMlaHeads + h] = static_cast<float>(o / sum);
    }
  }
}

}  // namespace cadre
