// Integer products by the vectors there are: AVX-512 with VNNI adds four 8-bit products in one instruction, AVX2 in two to four, everything else in
// plain loops. Integers are exact, so all give the same bits.
#include "kernels/cpu/int_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/int_rows.h"
#include "kernels/ref/int_rows.h"

#define HWY_WANT_AVX3_DL 1
#include "hwy/detect_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_AVX3)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/int_gemm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cadre {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of 32-bit sums: kLanes columns each, kVecs of them a panel.
using I = hn::CappedTag<int32_t, 16>;
using F = hn::Rebind<float, I>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(I()));
[[maybe_unused]] constexpr int kVecs = static_cast<int>(kPanelColumns) / kLanes;  // not by plain loops
constexpr int kTileRows = kLanes >= 16 ? 8 : kLanes == 8 ? 3 : 1;

#if HWY_TARGET == HWY_AVX3_DL
using Ints = __m512i;
HWY_INLINE Ints load_weights(const uint8_t* p) { return _mm512_loadu_si512(p); }
HWY_INLINE Ints broadcast(const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}
HWY_INLINE Ints low_nibbles(Ints v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
HWY_INLINE Ints high_nibbles(Ints v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
// A vector of weights as sums take it; sums += four products each of unsigned weights and signed inputs.
template <bool kIsInt4>
struct Sums {
  static constexpr bool kHasOffset = true;
  using Weights = Ints;
  static HWY_INLINE Weights prepare(Ints w) { return w; }
  Ints v;
  HWY_INLINE void clear(int32_t initial) { v = _mm512_set1_epi32(initial); }
  // _mm512_dpbusd_epi32, which the options that this target is compiled with do not include.
  HWY_INLINE void add(Ints w, Ints x) { asm("vpdpbusd %2, %1, %0" : "+v"(v) : "v"(w), "v"(x)); }
  HWY_INLINE hn::Vec<I> get() const { return hn::Vec<I>{v}; }
};
#elif HWY_TARGET == HWY_AVX2
using Ints = __m256i;
HWY_INLINE Ints load_weights(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
HWY_INLINE Ints broadcast(const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}
HWY_INLINE Ints low_nibbles(Ints v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
HWY_INLINE Ints high_nibbles(Ints v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); }
// Two products at a time are added in 16 bits. Those of a whole block of kInt4, 16 * 15 * 127, stay below 2^15; of kInt8 with offset weights not even two
// would, so the weight's sign goes to the input: 2 * 127 * 127.
template <bool kIsInt4>
struct Sums;
template <>
struct Sums<true> {
  static constexpr bool kHasOffset = true;
  using Weights = Ints;
  static HWY_INLINE Weights prepare(Ints w) { return w; }
  Ints v, narrow;
  HWY_INLINE void clear(int32_t initial) { v = _mm256_set1_epi32(initial), narrow = _mm256_setzero_si256(); }
  HWY_INLINE void add(Weights w, Ints x) { narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(w, x)); }
  HWY_INLINE hn::Vec<I> get() const { return hn::Vec<I>{_mm256_add_epi32(v, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)))}; }
};
template <>
struct Sums<false> {
  static constexpr bool kHasOffset = false;
  struct Weights {
    Ints value, magnitude;
  };
  static HWY_INLINE Weights prepare(Ints w) {
    const Ints value = _mm256_xor_si256(w, _mm256_set1_epi8(-128));  // less 128
    return {value, _mm256_abs_epi8(value)};
  }
  Ints v;
  HWY_INLINE void clear(int32_t initial) { v = _mm256_set1_epi32(initial); }
  HWY_INLINE void add(Weights w, Ints x) {
    v = _mm256_add_epi32(v, _mm256_madd_epi16(_mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x, w.value)), _mm256_set1_epi16(1)));
  }
  HWY_INLINE hn::Vec<I> get() const { return hn::Vec<I>{v}; }
};
#else
#define CADRE_PLAIN_INTS 1
#endif

// What a tile needs of a block of k.
struct Block {
  const uint8_t* weights;
  const uint16_t* scales;  // bfloat16 of the 32 columns
  const float* initial;
  int64_t k0, idx;
  bool is_first;
};

HWY_INLINE hn::Vec<F> load_scales(const uint16_t* scales) {
  const hn::Rebind<uint16_t, I> du;
  const hn::RebindToUnsigned<F> d32;
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(du, scales))));
}

struct RowView {
  const int8_t* values;
  const float* scales;
  const int32_t* sums;
};

template <int kRows, bool kIsInt4>
HWY_INLINE void tile(const Block& b, const RowView* x, float* const* y) {
#ifdef CADRE_PLAIN_INTS
  constexpr int64_t kBlock = kIsInt4 ? kInt4BlockK : kInt8BlockK;
  for (int r = 0; r < kRows; ++r) {
    int32_t sums[kPanelColumns];
    std::fill_n(sums, kPanelColumns, -x[r].sums[b.idx]);
    const int8_t* in = x[r].values + b.k0;
    for (int64_t k = 0; k < kBlock; k += 4)
      for (int64_t c = 0; c < kPanelColumns; ++c)
        for (int64_t j = 0; j < 4; ++j) {
          const uint8_t byte = kIsInt4 ? b.weights[(k / 8 * kPanelColumns + c) * 4 + j] : b.weights[(k / 4 * kPanelColumns + c) * 4 + j];
          sums[c] += in[k + j] * (!kIsInt4 ? byte : k % 8 == 0 ? byte & 15 : byte >> 4);
        }
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      const float scale = bf16_to_float(b.scales[c]);
      y[r][c] = std::fma(static_cast<float>(sums[c]) * scale, x[r].scales[b.idx], b.is_first ? b.initial[c] : y[r][c]);
    }
  }
#else
  Sums<kIsInt4> sums[kRows][kVecs];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVecs; ++v) sums[r][v].clear(Sums<kIsInt4>::kHasOffset ? -x[r].sums[b.idx] : 0);
  if constexpr (kIsInt4) {
    for (int64_t k = 0; k < kInt4BlockK; k += 8) {
      Ints low[kRows], high[kRows];
      for (int r = 0; r < kRows; ++r) low[r] = broadcast(x[r].values + b.k0 + k), high[r] = broadcast(x[r].values + b.k0 + k + 4);
      for (int v = 0; v < kVecs; ++v) {
        const Ints w = load_weights(b.weights + k / 8 * kPanelColumns * 4 + v * kLanes * 4);
        const Ints w_low = low_nibbles(w), w_high = high_nibbles(w);
        for (int r = 0; r < kRows; ++r) sums[r][v].add(w_low, low[r]), sums[r][v].add(w_high, high[r]);
      }
    }
  } else {
    for (int64_t k = 0; k < kInt8BlockK; k += 4) {
      Ints in[kRows];
      for (int r = 0; r < kRows; ++r) in[r] = broadcast(x[r].values + b.k0 + k);
      for (int v = 0; v < kVecs; ++v) {
        const auto w = Sums<false>::prepare(load_weights(b.weights + k / 4 * kPanelColumns * 4 + v * kLanes * 4));
        for (int r = 0; r < kRows; ++r) sums[r][v].add(w, in[r]);
      }
    }
  }
  const F df;
  for (int v = 0; v < kVecs; ++v) {
    const auto scale = load_scales(b.scales + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      float* out = y[r] + v * kLanes;
      const auto before = b.is_first ? hn::LoadU(df, b.initial + v * kLanes) : hn::LoadU(df, out);
      hn::StoreU(hn::MulAdd(hn::Mul(hn::ConvertTo(df, sums[r][v].get()), scale), hn::Set(df, x[r].scales[b.idx]), before), df, out);
    }
  }
#endif
}

template <bool kIsInt4>
void block_rows(const Block& b, const RowView* x, int64_t num_rows, float* const* y) {
  int64_t m = 0;
  for (; m + kTileRows <= num_rows; m += kTileRows) tile<kTileRows, kIsInt4>(b, x + m, y + m);
  if constexpr (kTileRows > 4)
    for (; m + 4 <= num_rows; m += 4) tile<4, kIsInt4>(b, x + m, y + m);
  if constexpr (kTileRows > 2)
    for (; m + 2 <= num_rows; m += 2) tile<2, kIsInt4>(b, x + m, y + m);
  for (; m < num_rows; ++m) tile<1, kIsInt4>(b, x + m, y + m);
}

void int_panel_impl(const PackedView& w, int64_t panel, const float* initial, RowsIn x, int64_t num_rows, float* y, int64_t y_stride) {
  // Rows at a time: their pointers on the stack, their outputs in the first-level cache.
  constexpr int64_t kRowsAtOnce = 48;
  const bool is_int4 = w.layout.format == WeightFormat::kInt4;
  const IntRowLayout layout(w.layout.format, w.k());
  const int64_t block_bytes = layout.block * kPanelColumns / (is_int4 ? 2 : 1);
  const uint8_t* weights = reinterpret_cast<const uint8_t*>(w.panel(panel));
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(w.scales()) + panel * layout.num_blocks * kPanelColumns;
  for (int64_t m0 = 0; m0 < num_rows; m0 += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, num_rows - m0);
    RowView in[kRowsAtOnce];
    float* out[kRowsAtOnce];
    for (int64_t r = 0; r < rows; ++r) {
      const std::byte* row = x.quantised + (x.index ? x.index[m0 + r] : m0 + r) * layout.bytes;
      in[r] = {reinterpret_cast<const int8_t*>(row), reinterpret_cast<const float*>(row + layout.scales_offset), reinterpret_cast<const int32_t*>(row + layout.sums_offset)};
      out[r] = y + (m0 + r) * y_stride;
    }
    for (int64_t i = 0; i < layout.num_blocks; ++i) {
      const Block b{.weights = weights + i * block_bytes, .scales = scales + i * kPanelColumns, .initial = initial, .k0 = i * layout.block, .idx = i, .is_first = i == 0};
      is_int4 ? block_rows<true>(b, in, rows, out) : block_rows<false>(b, in, rows, out);
    }
  }
}

// One block of up to layout.block inputs, of which `count` are there.
void quantise_block(const float* x, int64_t count, int64_t block, int32_t offset, int8_t* values, float* scale, int32_t* sum) {
  const F df;
  const I di;
  HWY_ALIGN float padded[kInt8BlockK];
  if (count < block) {
    std::copy_n(x, count, padded);
    std::fill(padded + count, padded + block, 0.0f);
    x = padded;
  }
  auto most = hn::Zero(df);
  auto not_finite = hn::FirstN(df, 0);
  for (int64_t i = 0; i < block; i += kLanes) {
    const auto v = hn::Abs(hn::LoadU(df, x + i));
    not_finite = hn::Or(not_finite, hn::Not(hn::Lt(v, hn::Set(df, std::numeric_limits<float>::infinity()))));
    most = hn::Max(most, v);
  }
  *sum = 0;
  const float top = hn::GetLane(hn::MaxOfLanes(df, most));
  const bool is_finite = hn::AllFalse(df, not_finite);
  if (!is_finite || top < kLeastQuantised) {
    *scale = is_finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    std::memset(values, 0, static_cast<size_t>(block));
    return;
  }
  *scale = top / kLargestInput;
  const auto inverse = hn::Set(df, kLargestInput / top);
  auto sums = hn::Zero(di);
  for (int64_t i = 0; i < block; i += kLanes) {
    const auto q = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverse));
    sums = hn::Add(sums, q);
    hn::StoreU(hn::DemoteTo(hn::Rebind<int8_t, I>(), q), hn::Rebind<int8_t, I>(), values + i);
  }
  *sum = hn::GetLane(hn::SumOfLanes(di, sums)) * offset;
}

void quantise_row_impl(WeightFormat weights, const float* x, int64_t k, std::byte* out) {
  const IntRowLayout layout(weights, k);
  const int32_t offset = weight_offset(weights);
  for (int64_t b = 0; b < layout.num_blocks; ++b) {
    const int64_t first = b * layout.block;
    quantise_block(x + first, std::min(layout.block, k - first), layout.block, offset, reinterpret_cast<int8_t*>(out) + first,
                   reinterpret_cast<float*>(out + layout.scales_offset) + b, reinterpret_cast<int32_t*>(out + layout.sums_offset) + b);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cadre
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cadre {

HWY_EXPORT(int_panel_impl);
HWY_EXPORT(quantise_row_impl);

void int_gemm_panel(const PackedView& w, int64_t panel, const float* initial, RowsIn x, int64_t num_rows, float* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(int_panel_impl)(w, panel, initial, x, num_rows, y, y_stride);
}

void quantise_row(WeightFormat weights, const float* x, int64_t k, std::byte* out) { HWY_DYNAMIC_DISPATCH(quantise_row_impl)(weights, x, k, out); }

void quantise_rows(WeightFormat weights, const float* x, int64_t stride, int64_t num_rows, int64_t k, std::byte* out, ThreadPool& pool) {
  const int64_t bytes = IntRowLayout(weights, k).bytes;
  // A row is little work: few of them are done here, without waking anybody.
  constexpr int64_t kRowsPerTask = 8;
  const auto rows = [&](int64_t first) {
    for (int64_t m = first; m < std::min(first + kRowsPerTask, num_rows); ++m) quantise_row(weights, x + m * stride, k, out + m * bytes);
  };
  if (num_rows <= kRowsPerTask) return rows(0);
  pool.parallel_for((num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) { rows(task * kRowsPerTask); });
}

const std::byte* quantise_into_scratch(const PackedLayout& weights, const float* x, int64_t stride, int64_t num_rows, ThreadPool& pool) {
  std::byte* out = pool.scratch(static_cast<size_t>(num_rows * IntRowLayout(weights.format, weights.k).bytes));
  quantise_rows(weights.format, x, stride, num_rows, weights.k, out, pool);
  return out;
}

}  // namespace cadre
#endif  // HWY_ONCE
