// Element types as checkpoints store them, and exact conversions to float.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace cadre {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kU16,
  kU32,
  kU64,
  kF64,
  kF8E5M2,
  kBool
};

// Bytes of one element.
constexpr size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32:
    case DType::kU32: return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16: return 2;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64: return 8;
    default: return 1;
  }
}

// The name safetensors uses ("F32", "BF16", "F8_E4M3", ...).
constexpr std::string_view dtype_name(DType t) {
  constexpr std::string_view kNames[] = {"F32", "F16", "BF16", "F8_E4M3", "U8",  "I8",      "I16", "I32",
                                         "I64", "U16", "U32",  "U64",     "F64", "F8_E5M2", "BOOL"};
  return kNames[static_cast<size_t>(t)];
}

inline float bf16_to_float(uint16_t v) { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }

// Round to nearest even; NaN stays NaN.
inline uint16_t float_to_bf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float f16_to_float(uint16_t v) {
  const uint32_t sign = static_cast<uint32_t>(v & 0x8000) << 16, exponent = (v >> 10) & 31, mantissa = v & 0x3FF;
  if (exponent == 0)
    return std::bit_cast<float>(sign) + (sign ? -1.0f : 1.0f) * static_cast<float>(mantissa) * 0x1p-24f;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Round to nearest even; too large becomes infinity; NaN stays NaN.
inline uint16_t float_to_f16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00;  // from 65520 on
  if (magnitude < 0x38800000u) {                       // below 2^-14: subnormal, in steps of 2^-24
    const float steps = std::bit_cast<float>(magnitude) * 0x1p24f;
    return sign | static_cast<uint16_t>(std::nearbyint(steps));
  }
  return sign | static_cast<uint16_t>((magnitude - (112u << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13);
}

// OCP FP8 E4M3 (finite only): bias 7, largest 448, 0x7F and 0xFF are NaN.
inline float f8e4m3_to_float(uint8_t v) {
  const int exponent = (v >> 3) & 15, mantissa = v & 7;
  const float sign = (v & 0x80) ? -1.0f : 1.0f;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-9f;
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

// Round to nearest even, saturating at 448; NaN stays NaN.
inline uint8_t float_to_f8e4m3(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7F;
  if (magnitude >= 0x43E00000u) return sign | 0x7E;  // from 448 on
  if (magnitude < 0x3C800000u) {                     // below 2^-6: subnormal, in steps of 2^-9
    const float steps = std::bit_cast<float>(magnitude) * 0x1p9f;
    return sign | static_cast<uint8_t>(std::nearbyint(steps));
  }
  return sign | static_cast<uint8_t>((magnitude - (120u << 23) + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20);
}

// OCP MX E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives (low nibble of v).
inline float fp4_to_float(uint8_t v) {
  constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return (v & 8) ? -kValues[v & 7] : kValues[v & 7];
}

// OCP MX E8M0 scale: 2^(v - 127); 255 is NaN.
inline float e8m0_to_float(uint8_t v) {
  return v == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, static_cast<int>(v) - 127);
}

}  // namespace cadre
