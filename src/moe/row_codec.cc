#include "moe/row_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/dtype.h"

namespace cadre {
namespace {

constexpr float kFp8Max = 448.0f;

float group_scale(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) return x[i];
    largest = std::max(largest, std::abs(x[i]));
  }
  return largest / kFp8Max;
}

}  // namespace

void encode_fp8_row(const float* x, int64_t n, std::byte* out) {
  for (int64_t first = 0; first < n; first += kCodecGroup) {
    const int64_t count = std::min(kCodecGroup, n - first);
    const float scale = group_scale(x + first, count);
    std::memcpy(out + n + first / kCodecGroup * 4, &scale, 4);
    for (int64_t i = first; i < first + count; ++i) out[i] = static_cast<std::byte>(scale == 0 ? uint8_t{0} : float_to_f8e4m3(x[i] / scale));
  }
}

void decode_fp8_row(const std::byte* in, int64_t n, float* x) {
  for (int64_t first = 0; first < n; first += kCodecGroup) {
    float scale;
    std::memcpy(&scale, in + n + first / kCodecGroup * 4, 4);
    for (int64_t i = first; i < std::min(n, first + kCodecGroup); ++i) x[i] = f8e4m3_to_float(static_cast<uint8_t>(in[i])) * scale;
  }
}

void round_to_fp8(float* x, int64_t n, std::byte* scratch) {
  for (int64_t first = 0; first < n; first += kCodecGroup) {
    const int64_t count = std::min(kCodecGroup, n - first);
    const float scale = group_scale(x + first, count);
    for (int64_t i = first; i < first + count; ++i) scratch[i] = static_cast<std::byte>(scale == 0 ? uint8_t{0} : float_to_f8e4m3(x[i] / scale));
    for (int64_t i = first; i < first + count; ++i) x[i] = f8e4m3_to_float(static_cast<uint8_t>(scratch[i])) * scale;
  }
}

void RowCodec::write(const float* x, std::byte* out) const {
  if (is_fp8_wire) return encode_fp8_row(x, hidden, out);
  std::memcpy(out, x, static_cast<size_t>(hidden) * 4);
  if (rounds) {
    std::byte scratch[kCodecGroup];
    for (int64_t first = 0; first < hidden; first += kCodecGroup) {
      float group[kCodecGroup];
      const int64_t count = std::min(kCodecGroup, hidden - first);
      std::copy_n(x + first, count, group);
      round_to_fp8(group, count, scratch);
      std::memcpy(out + first * 4, group, static_cast<size_t>(count) * 4);
    }
  }
}

void RowCodec::read(const std::byte* in, float* x) const {
  if (is_fp8_wire) return decode_fp8_row(in, hidden, x);
  std::memcpy(x, in, static_cast<size_t>(hidden) * 4);
}

}  // namespace cadre
