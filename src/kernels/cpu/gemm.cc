#include "kernels/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/int_gemm.h"
#include "kernels/int_rows.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cadre {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 16>;
using V = hn::Vec<F>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(F()));
constexpr int kVecs = static_cast<int>(kPanelColumns) / kLanes;
// Rows of one register tile: rows * kVecs accumulators, kVecs weights and one broadcast fit the register file
// (AVX-512: 32 registers, AVX2: 16 with the weights loaded one at a time).
constexpr int kTileRows = kLanes >= 16 ? 12 : kLanes == 8 ? 3 : 1;
// From this many rows on, a block of weights is converted to float once, into a buffer that stays in L1, for all rows.
constexpr int64_t kConvertRows = 2 * kTileRows;

// One loader per format: vector v of the 32 columns at input k, without its scale (times kUnit).
struct LoadF32 {
  static constexpr float kUnit = 1.0f;
  const float* p;
  HWY_INLINE V operator()(int64_t k, int v) const { return hn::LoadU(F(), p + k * kPanelColumns + v * kLanes); }
};
struct LoadBF16 {
  static constexpr float kUnit = 1.0f;
  const uint16_t* p;
  HWY_INLINE V operator()(int64_t k, int v) const {
    const hn::Rebind<uint16_t, F> du;
    const hn::RebindToUnsigned<F> d32;
    return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(du, p + k * kPanelColumns + v * kLanes))));
  }
};
struct LoadF16 {
  static constexpr float kUnit = 1.0f;
  const uint16_t* p;
  HWY_INLINE V operator()(int64_t k, int v) const {
    const hn::Rebind<uint16_t, F> du;
    const hn::Rebind<hwy::float16_t, F> dh;
    return hn::PromoteTo(F(), hn::BitCast(dh, hn::LoadU(du, p + k * kPanelColumns + v * kLanes)));
  }
};
// e4m3 bits moved into the exponent and mantissa fields of a float16 read 2^8 too small, subnormals included: the
// conversion is exact and the 2^8 goes into the scale.
struct LoadFp8 {
  static constexpr float kUnit = 256.0f;
  const uint8_t* p;
  HWY_INLINE V operator()(int64_t k, int v) const {
    const hn::Rebind<uint8_t, F> d8;
    const hn::Rebind<uint16_t, F> d16;
    const hn::Rebind<hwy::float16_t, F> dh;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, p + k * kPanelColumns + v * kLanes));
    const auto magnitude = hn::ShiftLeft<7>(hn::And(wide, hn::Set(d16, 0x7F)));
    const auto sign = hn::ShiftLeft<8>(hn::And(wide, hn::Set(d16, 0x80)));
    return hn::PromoteTo(F(), hn::BitCast(dh, hn::Or(magnitude, sign)));
  }
};
// Twice the e2m1 values are small integers; the factor 1/2 goes into the scale.
struct LoadMxfp4 {
  static constexpr float kUnit = 0.5f;
  const uint8_t* p;
  HWY_INLINE V operator()(int64_t k, int v) const {
    const hn::Rebind<int8_t, F> d8;
    const hn::Rebind<int32_t, F> d32;
    alignas(16) static constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const hn::FixedTag<uint8_t, 16> du;
    const auto bytes = hn::LoadU(du, p + k * 16);
    const int column = v * kLanes;
    const auto nibbles = column < 16 ? hn::And(bytes, hn::Set(du, 15)) : hn::ShiftRight<4>(bytes);
    const auto values = hn::TableLookupBytes(hn::Load(hn::FixedTag<int8_t, 16>(), kTwice), hn::BitCast(hn::FixedTag<int8_t, 16>(), nibbles));
    alignas(16) int8_t lanes[16];
    hn::Store(values, hn::FixedTag<int8_t, 16>(), lanes);
    return hn::ConvertTo(F(), hn::PromoteTo(d32, hn::LoadU(d8, lanes + column % 16)));
  }
};

struct Block {
  int64_t k0, k1;        // inputs of this block
  float scale;           // for all columns, when column_scales is null
  const float* column_scales;
  const float* initial;  // what y starts from in the first block (32 floats)
  bool is_first;
};

// y rows [kRows][32] += scale * (W block * x), see gemm.h. Weights are read from k 0 of `load`.
template <int kRows, class Load>
HWY_INLINE void tile(const Load& load, const Block& b, const float* const* x, float* const* y) {
  const F df;
  V acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::Zero(df);
  for (int64_t k = b.k0; k < b.k1; ++k) {
    V xs[kRows];
    for (int r = 0; r < kRows; ++r) xs[r] = hn::Set(df, x[r][k]);
    for (int v = 0; v < kVecs; ++v) {
      const V w = load(k - b.k0, v);
      for (int r = 0; r < kRows; ++r) acc[r][v] = hn::MulAdd(xs[r], w, acc[r][v]);
    }
  }
  for (int v = 0; v < kVecs; ++v) {
    const V scale = b.column_scales ? hn::LoadU(df, b.column_scales + v * kLanes) : hn::Set(df, b.scale);
    for (int r = 0; r < kRows; ++r) {
      float* out = y[r] + v * kLanes;
      const V before = b.is_first ? hn::LoadU(df, b.initial + v * kLanes) : hn::LoadU(df, out);
      hn::StoreU(hn::MulAdd(acc[r][v], scale, before), df, out);
    }
  }
}

template <class Load>
void block_rows(const Load& load, const Block& b, RowsIn x, int64_t num_rows, float* y, int64_t y_stride) {
  const float* xs[kTileRows];
  float* ys[kTileRows];
  for (int64_t m = 0; m < num_rows;) {
    const int rows = static_cast<int>(std::min<int64_t>(kTileRows, num_rows - m));
    for (int r = 0; r < rows; ++r) {
      xs[r] = x.row(m + r);
      ys[r] = y + (m + r) * y_stride;
    }
    int done = rows;
    if constexpr (kTileRows >= 12) {
      if (rows >= 12) tile<12>(load, b, xs, ys), done = 12;
      else if (rows >= 8) tile<8>(load, b, xs, ys), done = 8;
      else if (rows >= 6) tile<6>(load, b, xs, ys), done = 6;
      else if (rows >= 4) tile<4>(load, b, xs, ys), done = 4;
    }
    if constexpr (kTileRows >= 3) {
      if (rows == 3) tile<3>(load, b, xs, ys);
      else if (rows == 2) tile<2>(load, b, xs, ys);
    }
    if (rows == 1) tile<1>(load, b, xs, ys);
    m += done;
  }
}

template <class Load>
void convert_block(const Load& load, int64_t num_k, float* out) {
  for (int64_t k = 0; k < num_k; ++k)
    for (int v = 0; v < kVecs; ++v) hn::Store(load(k, v), F(), out + k * kPanelColumns + v * kLanes);
}

template <class Load, class T>
void panel_of(const PackedView& w, int64_t panel, const float* initial, RowsIn x, int64_t num_rows, float* y, int64_t y_stride) {
  HWY_ALIGN float converted[kBlockK * kPanelColumns];
  HWY_ALIGN float column_scales[kPanelColumns];
  const WeightFormat format = w.layout.format;
  const int64_t step = block_k(format), num_blocks = w.layout.num_blocks_k();
  const int64_t elements_per_k = format == WeightFormat::kMxfp4 ? 16 : kPanelColumns;
  const T* data = reinterpret_cast<const T*>(w.panel(panel));
  for (int64_t i = 0; i < num_blocks; ++i) {
    Block b{.k0 = i * step, .k1 = std::min(w.k(), (i + 1) * step), .scale = Load::kUnit, .column_scales = nullptr, .initial = initial, .is_first = i == 0};
    if (format == WeightFormat::kFp8Block) {
      b.scale = reinterpret_cast<const float*>(w.scales())[panel * kPanelColumns / kFp8BlockN * num_blocks + i] * Load::kUnit;
    } else if (format == WeightFormat::kMxfp4) {
      const uint8_t* s = reinterpret_cast<const uint8_t*>(w.scales()) + (panel * num_blocks + i) * kPanelColumns;
      for (int64_t c = 0; c < kPanelColumns; ++c) column_scales[c] = e8m0_to_float(s[c]) * Load::kUnit;
      b.column_scales = column_scales;
    }
    const Load load{data + b.k0 * elements_per_k};
    if (format != WeightFormat::kF32 && num_rows >= kConvertRows) {
      convert_block(load, b.k1 - b.k0, converted);
      block_rows(LoadF32{converted}, b, x, num_rows, y, y_stride);
    } else {
      block_rows(load, b, x, num_rows, y, y_stride);
    }
  }
}

void gemm_panel_impl(const PackedView& w, int64_t panel, const float* initial, RowsIn x, int64_t num_rows, float* y, int64_t y_stride) {
  switch (w.layout.format) {
    case WeightFormat::kF32: return panel_of<LoadF32, float>(w, panel, initial, x, num_rows, y, y_stride);
    case WeightFormat::kF16: return panel_of<LoadF16, uint16_t>(w, panel, initial, x, num_rows, y, y_stride);
    case WeightFormat::kBF16: return panel_of<LoadBF16, uint16_t>(w, panel, initial, x, num_rows, y, y_stride);
    case WeightFormat::kFp8Block: return panel_of<LoadFp8, uint8_t>(w, panel, initial, x, num_rows, y, y_stride);
    case WeightFormat::kMxfp4: return panel_of<LoadMxfp4, uint8_t>(w, panel, initial, x, num_rows, y, y_stride);
    case WeightFormat::kInt8: case WeightFormat::kInt4: return;  // int_gemm.cc
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cadre
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cadre {

HWY_EXPORT(gemm_panel_impl);

void gemm_panel(const PackedView& w, int64_t panel, const float* bias, RowsIn x, int64_t num_rows, RowsOut y) {
  CADRE_CHECK(panel >= 0 && panel < w.layout.num_panels(), "panel {} of {}", panel, w.layout.num_panels());
  const bool has_integers = is_int(w.layout.format);
  CADRE_CHECK(!has_integers || x.quantised || num_rows == 0 || w.k() == 0, "rows for integer weights that are not quantised");
  const auto run = [&](const float* initial, RowsIn rows_in, int64_t rows, float* out, int64_t stride) {
    if (has_integers) int_gemm_panel(w, panel, initial, rows_in, rows, out, stride);
    else HWY_DYNAMIC_DISPATCH(gemm_panel_impl)(w, panel, initial, rows_in, rows, out, stride);
  };
  const int64_t n0 = panel * kPanelColumns, columns = std::min(kPanelColumns, w.n() - n0), at = n0 - y.first_column;
  HWY_ALIGN float initial[kPanelColumns] = {};
  if (bias) std::copy(bias + n0, bias + n0 + columns, initial);
  if (w.k() == 0) {
    for (int64_t m = 0; m < num_rows; ++m) std::copy(initial, initial + columns, y.row(m) + at);
    return;
  }
  if (columns == kPanelColumns) {
    run(initial, x, num_rows, y.base + at, y.stride);
    return;
  }
  // The last panel of an N that is not a multiple of 32: through a buffer, a few rows at a time.
  constexpr int64_t kRows = 48;
  HWY_ALIGN float narrow[kRows * kPanelColumns];
  for (int64_t m0 = 0; m0 < num_rows; m0 += kRows) {
    const int64_t rows = std::min(kRows, num_rows - m0);
    run(initial, x.from(m0, has_integers ? IntRowLayout(w.layout.format, w.k()).bytes : 0), rows, narrow, kPanelColumns);
    for (int64_t m = 0; m < rows; ++m) std::copy(narrow + m * kPanelColumns, narrow + m * kPanelColumns + columns, y.row(m0 + m) + at);
  }
}

void gemm(const PackedView& w, const float* bias, RowsIn x, int64_t num_rows, RowsOut y, ThreadPool& pool) {
  if (num_rows == 0) return;
  if (is_int(w.layout.format) && !x.quantised && w.k() > 0) {
    CADRE_CHECK(!x.index, "rows by index, not quantised");
    x.quantised = quantise_into_scratch(w.layout, x.base, x.stride, num_rows, pool);
  }
  pool.parallel_for(w.layout.num_panels(), [&](int64_t panel, int) { gemm_panel(w, panel, bias, x, num_rows, y); });
}

}  // namespace cadre
#endif  // HWY_ONCE
