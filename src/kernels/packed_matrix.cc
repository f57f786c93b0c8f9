#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cadre {
namespace {

template <typename T>
void pack_elements(const PackSource& s, const PackedLayout& layout, std::byte* dst) {
  const T* data = reinterpret_cast<const T*>(s.data);
  for (int64_t p = 0; p < layout.num_panels(); ++p) {
    T* out = reinterpret_cast<T*>(dst + p * layout.panel_bytes);
    const int64_t n0 = p * kPanelColumns, columns = std::min(kPanelColumns, s.n - n0);
    // 16 k at a time: reads stay within a cache line of each of the 32 rows, writes within a few of the panel.
    for (int64_t k0 = 0; k0 < s.k; k0 += 16) {
      const int64_t k1 = std::min(k0 + 16, s.k);
      for (int64_t c = 0; c < columns; ++c) {
        const T* row = data + (n0 + c) * s.stride_n;
        for (int64_t k = k0; k < k1; ++k) out[k * kPanelColumns + c] = row[k * s.stride_k];
      }
    }
    if (columns < kPanelColumns)
      for (int64_t k = 0; k < s.k; ++k) std::fill(out + k * kPanelColumns + columns, out + (k + 1) * kPanelColumns, T{0});
  }
}

void pack_mxfp4(const PackSource& s, const PackedLayout& layout, std::byte* dst) {
  const uint8_t* data = reinterpret_cast<const uint8_t*>(s.data);
  uint8_t* scales = reinterpret_cast<uint8_t*>(dst + layout.scales_offset);
  const int64_t num_blocks = s.k / kMxBlockK;
  const auto nibble = [&](int64_t n, int64_t k) -> uint8_t {
    if (n >= s.n) return 0;
    const uint8_t byte = data[n * s.stride_n + k / 2];
    return (k & 1) ? byte >> 4 : byte & 15;
  };
  for (int64_t p = 0; p < layout.num_panels(); ++p) {
    uint8_t* out = reinterpret_cast<uint8_t*>(dst + p * layout.panel_bytes);
    const int64_t n0 = p * kPanelColumns;
    for (int64_t k = 0; k < s.k; ++k)
      for (int64_t c = 0; c < 16; ++c)
        out[k * 16 + c] = static_cast<uint8_t>(nibble(n0 + c, k) | (nibble(n0 + c + 16, k) << 4));
    for (int64_t b = 0; b < num_blocks; ++b)
      for (int64_t c = 0; c < kPanelColumns; ++c)
        scales[(p * num_blocks + b) * kPanelColumns + c] = n0 + c < s.n ? s.mx_scales[(n0 + c) * s.mx_scale_stride + b] : 127;
  }
}

}  // namespace

void pack(const PackSource& s, std::byte* dst) {
  const PackedLayout layout(s.format, s.n, s.k);
  switch (s.format) {
    case WeightFormat::kF32: pack_elements<uint32_t>(s, layout, dst); break;
    case WeightFormat::kF16: case WeightFormat::kBF16: pack_elements<uint16_t>(s, layout, dst); break;
    case WeightFormat::kFp8Block: {
      pack_elements<uint8_t>(s, layout, dst);
      float* scales = reinterpret_cast<float*>(dst + layout.scales_offset);
      const int64_t columns = layout.num_blocks_k();
      for (int64_t r = 0; r < (s.n + kFp8BlockN - 1) / kFp8BlockN; ++r)
        std::copy_n(s.fp8_scales + r * s.scale_columns, columns, scales + r * columns);
      break;
    }
    case WeightFormat::kMxfp4:
      CADRE_CHECK(s.k % kMxBlockK == 0 && s.stride_k == 1, "k {} stride {}", s.k, s.stride_k);
      pack_mxfp4(s, layout, dst);
      break;
  }
}

float packed_element(const PackedView& w, int64_t n, int64_t k) {
  const std::byte* panel = w.panel(n / kPanelColumns);
  const int64_t c = n % kPanelColumns, at = k * kPanelColumns + c;
  const auto load = [&]<typename T>(T) {
    T v;
    std::memcpy(&v, panel + at * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return v;
  };
  switch (w.layout.format) {
    case WeightFormat::kF32: return load(float{});
    case WeightFormat::kF16: return f16_to_float(load(uint16_t{}));
    case WeightFormat::kBF16: return bf16_to_float(load(uint16_t{}));
    case WeightFormat::kFp8Block: {
      const float* scales = reinterpret_cast<const float*>(w.scales());
      return f8e4m3_to_float(load(uint8_t{})) * scales[n / kFp8BlockN * w.layout.num_blocks_k() + k / kBlockK];
    }
    case WeightFormat::kMxfp4: {
      const uint8_t byte = static_cast<uint8_t>(panel[k * 16 + c % 16]);
      const uint8_t* scales = reinterpret_cast<const uint8_t*>(w.scales());
      const uint8_t scale = scales[(n / kPanelColumns * w.layout.num_blocks_k() + k / kMxBlockK) * kPanelColumns + c];
      return fp4_to_float(c < 16 ? byte & 15 : byte >> 4) * e8m0_to_float(scale);
    }
  }
  return 0;
}

void unpack_row(const PackedView& w, int64_t n, float* out) {
  CADRE_CHECK(n >= 0 && n < w.n(), "row {} of {}", n, w.n());
  for (int64_t k = 0; k < w.k(); ++k) out[k] = packed_element(w, n, k);
}

PackedMatrix::PackedMatrix(const PackSource& source)
    : memory_(static_cast<size_t>(PackedLayout(source.format, source.n, source.k).total_bytes)) {
  pack(source, memory_.data());
  view_ = {PackedLayout(source.format, source.n, source.k), memory_.data()};
}

}  // namespace cadre
