// Rows of activations as they cross the wire: float32, or FP8 e4m3 with one float scale per 128 values (1.03125 bytes a
// value), as block-FP8 models quantise the inputs of their matrix products (DeepSeek-V3 report, section 3.3).
#pragma once

#include <cstddef>
#include <cstdint>

namespace cadre {

inline constexpr int64_t kCodecGroup = 128;

// Bytes: n values, then ceil(n / 128) scales. A group's scale is its largest magnitude / 448, so the largest value keeps its
// bits; a group of zeros has scale 0. NaN stays NaN.
void encode_fp8_row(const float* x, int64_t n, std::byte* out);
void decode_fp8_row(const std::byte* in, int64_t n, float* x);
// x := decode(encode(x)); scratch: n bytes.
void round_to_fp8(float* x, int64_t n, std::byte* scratch);

// How a layer's rows are written and read. rounds: experts see values rounded to FP8 whatever the wire; a wire of FP8
// rounds them anyway, so the two then agree to the bit.
struct RowCodec {
  int64_t hidden = 0;
  bool is_fp8_wire = false;
  bool rounds = false;

  int64_t bytes() const { return is_fp8_wire ? hidden + (hidden + kCodecGroup - 1) / kCodecGroup * 4 : hidden * 4; }
  void write(const float* x, std::byte* out) const;
  void read(const std::byte* in, float* x) const;
};

}  // namespace cadre
