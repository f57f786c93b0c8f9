#include "moe/row_codec.h"

#include <algorithm>
#include <cstring>

#include "tensor/dtype.h"

namespace cadre {

void encode_fp8_row(const float* x, int64_t n, std::byte* out) {
  for (int64_t first = 0; first < n; first += kActivationGroup) {
    const int64_t end = std::min(n, first + kActivationGroup);
    const float scale = fp8_group_scale(x + first, end - first);
    std::memcpy(out + n + first / kActivationGroup * 4, &scale, 4);
    for (int64_t i = first; i < end; ++i) out[i] = static_cast<std::byte>(float_to_f8e4m3(x[i] / scale));
  }
}

void decode_fp8_row(const std::byte* in, int64_t n, float* x) {
  for (int64_t first = 0; first < n; first += kActivationGroup) {
    float scale;
    std::memcpy(&scale, in + n + first / kActivationGroup * 4, 4);
    for (int64_t i = first; i < std::min(n, first + kActivationGroup); ++i) x[i] = f8e4m3_to_float(static_cast<uint8_t>(in[i])) * scale;
  }
}

void RowCodec::write(const float* x, std::byte* out) const {
  if (is_fp8_wire) return encode_fp8_row(x, hidden, out);
  std::memcpy(out, x, static_cast<size_t>(hidden) * 4);
}

void RowCodec::read(const std::byte* in, float* x) const {
  if (is_fp8_wire) return decode_fp8_row(in, hidden, x);
  std::memcpy(x, in, static_cast<size_t>(hidden) * 4);
}

}  // namespace cadre
