#include "kernels/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"

namespace cadre {
namespace {

// Scales that are tried for a block of kInt4.
constexpr int kInt4Scales = 12;

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

// values[0 .. count) of row n from input k0 on, scales applied.
void read_values(const PackSource& s, int64_t n, int64_t k0, int64_t count, float* values) {
  const auto element = [&](int64_t k) { return n * s.stride_n + k * s.stride_k; };
  const auto load = [&]<typename T>(T, int64_t k) {
    T v;
    std::memcpy(&v, s.data + element(k) * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return v;
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = k0 + i;
    switch (s.format) {
      case WeightFormat::kF32: values[i] = load(float{}, k); break;
      case WeightFormat::kF16: values[i] = f16_to_float(load(uint16_t{}, k)); break;
      case WeightFormat::kBF16: values[i] = bf16_to_float(load(uint16_t{}, k)); break;
      case WeightFormat::kFp8Block: values[i] = f8e4m3_to_float(load(uint8_t{}, k)) * s.fp8_scales[n / kFp8BlockN * s.scale_columns + k / kBlockK]; break;
      case WeightFormat::kMxfp4: {
        const uint8_t byte = static_cast<uint8_t>(s.data[n * s.stride_n + k / 2]);
        values[i] = fp4_to_float(k & 1 ? byte >> 4 : byte & 15) * e8m0_to_float(s.mx_scales[n * s.mx_scale_stride + k / kMxBlockK]);
        break;
      }
      case WeightFormat::kInt8: case WeightFormat::kInt4: CADRE_CHECK(false, "nothing is stored in integers");
    }
  }
}

// The least bfloat16 that is not below.
uint16_t bf16_up(float x) {
  uint16_t bits = float_to_bf16(x);
  if (bf16_to_float(bits) < x) ++bits;
  return bits;
}

struct Quantised {
  uint16_t scale = 0;  // bfloat16
  std::array<int8_t, kInt8BlockK> values{};
};

void quantise_int8(const float* values, int64_t count, Quantised* out) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(values[i]));
  out->values.fill(0);
  out->scale = bf16_up(most / 127);
  const float scale = bf16_to_float(out->scale);
  if (!(scale > 0)) return;
  const float inverse = 1 / scale;
  for (int64_t i = 0; i < count; ++i) out->values[static_cast<size_t>(i)] = static_cast<int8_t>(std::clamp(std::nearbyint(values[i] * inverse), -127.0f, 127.0f));
}

// Integers -8 to 7: the value of largest magnitude becomes about -8 or 8, whichever sign has the longer side, and scales a little to both
// sides of that are tried.
void quantise_int4(const float* values, int64_t count, Quantised* out) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i)
    if (std::abs(values[i]) > std::abs(most)) most = values[i];
  out->values.fill(0);
  out->scale = 0;
  if (most == 0) return;
  double best = std::numeric_limits<double>::infinity();
  for (int t = 0; t < kInt4Scales; ++t) {
    const uint16_t bits = float_to_bf16(-most / (6.8f + 0.15f * static_cast<float>(t)));
    const float scale = bf16_to_float(bits), inverse = 1 / scale;
    if (!std::isfinite(inverse)) continue;
    double error = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float q = std::clamp(std::nearbyint(values[i] * inverse), -8.0f, 7.0f), d = values[i] - q * scale;
      error += double{d} * d;
    }
    if (error >= best) continue;
    best = error, out->scale = bits;
  }
  if (out->scale == 0) return;
  const float inverse = 1 / bf16_to_float(out->scale);
  for (int64_t i = 0; i < count; ++i) out->values[static_cast<size_t>(i)] = static_cast<int8_t>(std::clamp(std::nearbyint(values[i] * inverse), -8.0f, 7.0f));
}

void pack_integers(WeightFormat format, const PackSource& s, std::byte* dst) {
  const PackedLayout layout(format, s.n, s.k);
  const bool is_8 = format == WeightFormat::kInt8;
  const int64_t block = block_k(format), blocks = layout.num_blocks_k();
  Quantised q;
  std::array<float, kInt8BlockK> values;
  for (int64_t n = 0; n < layout.num_panels() * kPanelColumns; ++n) {
    const int64_t p = n / kPanelColumns, c = n % kPanelColumns;
    uint8_t* panel = reinterpret_cast<uint8_t*>(dst + p * layout.panel_bytes);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t count = n < s.n ? std::min(block, s.k - b * block) : 0;
      read_values(s, n, b * block, count, values.data());
      is_8 ? quantise_int8(values.data(), count, &q) : quantise_int4(values.data(), count, &q);
      std::memcpy(dst + layout.scales_offset + ((p * blocks + b) * kPanelColumns + c) * 2, &q.scale, 2);
      if (is_8) {
        for (int64_t i = 0; i < block; ++i) panel[((b * block + i) / 4 * kPanelColumns + c) * 4 + i % 4] = static_cast<uint8_t>(q.values[static_cast<size_t>(i)] + 128);
      } else {
        for (int64_t i = 0; i < block; i += 8)
          for (int64_t j = 0; j < 4; ++j)
            panel[((b * block + i) / 8 * kPanelColumns + c) * 4 + j] =
                static_cast<uint8_t>((q.values[static_cast<size_t>(i + j)] + 8) | (q.values[static_cast<size_t>(i + j + 4)] + 8) << 4);
      }
    }
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
    case WeightFormat::kInt8: case WeightFormat::kInt4: CADRE_CHECK(false, "nothing is stored in integers"); break;
  }
}

void pack_as(WeightFormat format, const PackSource& source, std::byte* dst) {
  if (format == source.format) return pack(source, dst);
  if (is_int(format)) return pack_integers(format, source, dst);
  CADRE_CHECK(format == WeightFormat::kF32 || format == WeightFormat::kBF16, "no conversion into this format");
  std::vector<float> values(static_cast<size_t>(source.n * source.k));
  for (int64_t n = 0; n < source.n; ++n) read_values(source, n, 0, source.k, values.data() + n * source.k);
  PackSource plain{.format = format, .data = reinterpret_cast<const std::byte*>(values.data()), .n = source.n, .k = source.k, .stride_n = source.k};
  std::vector<uint16_t> narrow;
  if (format == WeightFormat::kBF16) {
    narrow.resize(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), float_to_bf16);
    plain.data = reinterpret_cast<const std::byte*>(narrow.data());
  }
  pack(plain, dst);
}

int32_t packed_integer(const PackedView& w, int64_t n, int64_t k) {
  const uint8_t* panel = reinterpret_cast<const uint8_t*>(w.panel(n / kPanelColumns));
  const int64_t c = n % kPanelColumns;
  if (w.layout.format == WeightFormat::kInt8) return panel[(k / 4 * kPanelColumns + c) * 4 + k % 4] - 128;
  const uint8_t byte = panel[(k / 8 * kPanelColumns + c) * 4 + k % 4];
  return (k % 8 < 4 ? byte & 15 : byte >> 4) - 8;
}

float packed_scale(const PackedView& w, int64_t n, int64_t block) {
  uint16_t scale;
  std::memcpy(&scale, w.scales() + ((n / kPanelColumns * w.layout.num_blocks_k() + block) * kPanelColumns + n % kPanelColumns) * 2, 2);
  return bf16_to_float(scale);
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
    case WeightFormat::kInt8: case WeightFormat::kInt4: return static_cast<float>(packed_integer(w, n, k)) * packed_scale(w, n, k / block_k(w.layout.format));
  }
  return 0;
}

void unpack_row(const PackedView& w, int64_t n, float* out) {
  CADRE_CHECK(n >= 0 && n < w.n(), "row {} of {}", n, w.n());
  for (int64_t k = 0; k < w.k(); ++k) out[k] = packed_element(w, n, k);
}

PackedMatrix::PackedMatrix(const PackSource& source, WeightFormat format)
    : memory_(static_cast<size_t>(PackedLayout(format, source.n, source.k).total_bytes)) {
  pack_as(format, source, memory_.data());
  view_ = {PackedLayout(format, source.n, source.k), memory_.data()};
}

}  // namespace cadre
