// Rows of activations as they cross the wire: float32, or FP8 e4m3 with one float scale per 128 values (1.03125 bytes a
// value), as block-FP8 models quantise the inputs of their matrix products. Rows that are rounded to FP8 already
// (kernels/activation_quant.h) cross either wire without losing a bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/activation_quant.h"

namespace cadre {

// Bytes: n values, then ceil(n / 128) scales. decode(encode(x)) is round_to_fp8(x).
void encode_fp8_row(const float* x, int64_t n, std::byte* out);
void decode_fp8_row(const std::byte* in, int64_t n, float* x);

// How a layer's rows are written and read.
struct RowCodec {
  int64_t hidden = 0;
  bool is_fp8_wire = false;

  int64_t bytes() const { return is_fp8_wire ? hidden + (hidden + kActivationGroup - 1) / kActivationGroup * 4 : hidden * 4; }
  void write(const float* x, std::byte* out) const;
  void read(const std::byte* in, float* x) const;
};

}  // namespace cadre
