#include "models/weight_loader.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace cadre {
namespace {

std::vector<float> to_floats(const StoredTensor& t) {
  const size_t n = t.bytes.size() / dtype_bytes(t.dtype);
  std::vector<float> out(n);
  const std::byte* p = t.bytes.data();
  for (size_t i = 0; i < n; ++i) {
    uint16_t half;
    switch (t.dtype) {
      case DType::kF32: std::memcpy(&out[i], p + i * 4, 4); break;
      case DType::kBF16: std::memcpy(&half, p + i * 2, 2); out[i] = bf16_to_float(half); break;
      case DType::kF16: std::memcpy(&half, p + i * 2, 2); out[i] = f16_to_float(half); break;
      case DType::kF8E4M3: out[i] = f8e4m3_to_float(static_cast<uint8_t>(p[i])); break;
      default: throw unsupported("expected a float tensor, found {}; convert the checkpoint", dtype_name(t.dtype));
    }
  }
  return out;
}

WeightFormat format_of_dtype(DType t, const std::string& name) {
  if (!is_packable(t)) throw unsupported("{}: expected F32, F16, BF16 or F8_E4M3, found {}; convert the checkpoint", name, dtype_name(t));
  return packed_format(t);
}

}  // namespace

struct WeightLoader::Source {
  std::string name, scale_name;
  StoredTensor tensor;
  std::vector<float> scales;
  PackSource pack;
};

WeightLoader::Source WeightLoader::open(const std::string& prefix, int64_t n, int64_t k) {
  Source s;
  s.name = prefix + ".weight";
  s.tensor = source_.tensor(s.name);
  if (s.tensor.shape != Shape{n, k})
    throw invalid_input("{}: expected shape [{}, {}], found {}; the checkpoint does not fit its config.json", s.name, n, k, shape_text(s.tensor.shape));
  s.pack = {.format = format_of_dtype(s.tensor.dtype, s.name), .data = s.tensor.bytes.data(), .n = n, .k = k, .stride_n = k, .stride_k = 1};
  if (s.pack.format == WeightFormat::kFp8Block) {
    s.scale_name = prefix + ".weight_scale_inv";
    const StoredTensor scale = source_.tensor(s.scale_name);
    const Shape expected{(n + 127) / 128, (k + 127) / 128};
    if (scale.shape != expected)
      throw invalid_input("{}: expected shape {}, found {}; the checkpoint does not fit its config.json", s.scale_name, shape_text(expected), shape_text(scale.shape));
    s.scales = to_floats(scale);
    s.pack.fp8_scales = s.scales.data();
    s.pack.scale_columns = expected[1];
  }
  return s;
}

void WeightLoader::release(const Source& s) {
  source_.release(s.name);
  if (!s.scale_name.empty()) source_.release(s.scale_name);
}

std::vector<float> WeightLoader::vector(const std::string& name, int64_t count) {
  auto values = to_floats(source_.tensor(name));
  if (static_cast<int64_t>(values.size()) != count)
    throw invalid_input("{}: expected {} values, found {}; the checkpoint does not fit its config.json", name, count, values.size());
  source_.release(name);
  return values;
}

// Rows and columns of a stored matrix. FP8 scales cover 128 x 128 blocks of the whole matrix: a part that does not begin on
// their border becomes float32 (`floats` holds it), as it does when as_float asks for it.
PackSource WeightLoader::part_of(const Source& s, Slice rows, Slice columns, bool as_float, std::vector<float>* floats) {
  PackSource part = s.pack;
  part.n = rows.count;
  part.k = columns.count;
  const bool is_fp8 = part.format == WeightFormat::kFp8Block;
  if (is_fp8 && (as_float || rows.first % 128 != 0 || columns.first % 128 != 0)) {
    floats->resize(static_cast<size_t>(part.n * part.k));
    for (int64_t r = 0; r < part.n; ++r)
      for (int64_t c = 0; c < part.k; ++c) {
        const int64_t row = rows.first + r, column = columns.first + c;
        (*floats)[static_cast<size_t>(r * part.k + c)] =
            f8e4m3_to_float(static_cast<uint8_t>(s.pack.data[row * s.pack.k + column])) * s.scales[static_cast<size_t>(row / 128 * s.pack.scale_columns + column / 128)];
      }
    return {.format = WeightFormat::kF32, .data = reinterpret_cast<const std::byte*>(floats->data()), .n = part.n, .k = part.k, .stride_n = part.k};
  }
  part.data += (rows.first * s.pack.stride_n + columns.first) * static_cast<int64_t>(dtype_bytes(s.tensor.dtype));
  if (is_fp8) part.fp8_scales += rows.first / 128 * s.pack.scale_columns + columns.first / 128;
  return part;
}

bool WeightLoader::rounds_input(const Source& s) const { return rounds_activations_ && s.tensor.dtype == DType::kF8E4M3; }

Linear WeightLoader::linear(const std::string& prefix, int64_t n, int64_t k, bool with_bias) { return linear_rows(prefix, n, k, {0, n}, with_bias); }

Linear WeightLoader::linear_as_stored(const std::string& prefix, int64_t n, int64_t k, bool with_bias) {
  const Source s = open(prefix, n, k);
  Linear out{PackedMatrix(s.pack), {}, rounds_input(s)};
  release(s);
  if (with_bias) out.bias = vector(prefix + ".bias", n);
  return out;
}

Linear WeightLoader::linear_rows(const std::string& prefix, int64_t n, int64_t k, Slice rows, bool with_bias) {
  const Source s = open(prefix, n, k);
  std::vector<float> floats;
  const PackSource part = part_of(s, rows, {0, k}, false, &floats);
  Linear out{PackedMatrix(part, loaded_format(part.format, quantization_)), {}, rounds_input(s)};
  release(s);
  if (with_bias) {
    const auto bias = vector(prefix + ".bias", n);
    out.bias.assign(bias.begin() + rows.first, bias.begin() + rows.first + rows.count);
  }
  return out;
}

Linear WeightLoader::linear_columns(const std::string& prefix, int64_t n, int64_t k, Slice columns, bool with_bias) {
  const Source s = open(prefix, n, k);
  std::vector<float> floats;
  const PackSource part = part_of(s, {0, n}, columns, false, &floats);
  Linear out{PackedMatrix(part, loaded_format(part.format, quantization_)), {}, rounds_input(s)};
  release(s);
  if (with_bias && columns.first == 0) out.bias = vector(prefix + ".bias", n);
  return out;
}

void WeightLoader::latent_projections(const std::string& prefix, MlaWeights& weights) {
  const AttentionConfig& a = config_.attention;
  const int64_t nope = a.qk_nope_head_dim, v = a.v_head_dim, rank = a.kv_lora_rank;
  const Slice heads = shard_.heads.of_total(a.num_heads);
  const Source s = open(prefix, a.num_heads * (nope + v), rank);
  // A head's rows need not line up with the 128-row scale blocks, nor do its transposed columns: FP8 becomes float32
  // here (a fortieth of DeepSeek-V3's weights). Float formats keep their type.
  std::vector<float> values;
  const PackSource mine = part_of(s, {heads.first * (nope + v), heads.count * (nope + v)}, {0, rank}, true, &values);
  const int64_t element = mine.format == WeightFormat::kF32 ? 4 : 2;
  for (int64_t h = 0; h < heads.count; ++h) {
    PackSource part = mine;
    part.data = mine.data + h * (nope + v) * rank * element;
    part.n = rank, part.k = nope, part.stride_n = 1, part.stride_k = rank;
    weights.w_uk_t.emplace_back(part);
    part.n = nope, part.k = rank, part.stride_n = rank, part.stride_k = 1;
    weights.w_uk.emplace_back(part);
    part.data += nope * rank * element;
    part.n = v;
    weights.w_uv.emplace_back(part);
  }
  weights.rounds_latents = rounds_input(s);
  release(s);
}

GatedMlp WeightLoader::gated_mlp(const std::string& gate, const std::string& up, const std::string& down, int64_t intermediate, const Part& part) {
  const int64_t hidden = config_.hidden_size;
  const Slice width = part.of_total(intermediate);
  return {linear_rows(gate, intermediate, hidden, width), linear_rows(up, intermediate, hidden, width), linear_columns(down, hidden, intermediate, width), activation()};
}

ExpertLayout WeightLoader::expert_layout(WeightFormat format, bool has_bias) const {
  return rank_expert_layout(format, config_.hidden_size, config_.moe.expert_intermediate, shard_.expert, has_bias, quantization_);
}

ExpertLayout WeightLoader::expert_layout(const std::string& gate, bool has_bias) {
  const DType dtype = source_.info(gate + ".weight").dtype;
  ExpertLayout out = expert_layout(format_of_dtype(dtype, gate), has_bias);
  out.rounds_inputs = rounds_activations_ && dtype == DType::kF8E4M3;
  return out;
}

void WeightLoader::pack_into(const std::string& prefix, int64_t n, int64_t k, Slice rows, Slice columns, const PackedLayout& layout, std::byte* dst) {
  const Source s = open(prefix, n, k);
  std::vector<float> floats;
  const PackSource part = part_of(s, rows, columns, layout.format == WeightFormat::kF32, &floats);
  if (loaded_format(part.format, quantization_) != layout.format) throw unsupported("{}: expected every routed expert of a layer in one type, found two; convert the checkpoint", s.name);
  CADRE_CHECK(part.n == layout.n && part.k == layout.k, "{} x {} into {} x {}", part.n, part.k, layout.n, layout.k);
  pack_as(layout.format, part, dst);
  release(s);
}

Experts WeightLoader::gpt_oss_experts(const std::string& prefix) {
  const int64_t hidden = config_.hidden_size, width = config_.moe.expert_intermediate, num = config_.moe.router.num_experts;
  const bool is_mx = config_.quant == WeightQuant::kMxfp4;
  const std::string up_name = prefix + ".gate_up_proj", down_name = prefix + ".down_proj";
  const StoredTensor up = source_.tensor(is_mx ? up_name + "_blocks" : up_name), down = source_.tensor(is_mx ? down_name + "_blocks" : down_name);
  const uint8_t *up_scales = nullptr, *down_scales = nullptr;
  if (is_mx) {
    up_scales = reinterpret_cast<const uint8_t*>(source_.tensor(up_name + "_scales").bytes.data());
    down_scales = reinterpret_cast<const uint8_t*>(source_.tensor(down_name + "_scales").bytes.data());
  }
  const WeightFormat format = is_mx ? WeightFormat::kMxfp4 : format_of_dtype(up.dtype, up_name);
  const auto mine = experts();
  const Slice part = shard_.expert.of_total(width);
  Experts experts(expert_layout(format, true), static_cast<int64_t>(mine.size()), activation());
  const ExpertLayout& layout = experts.layout();
  const auto up_bias = vector(prefix + ".gate_up_proj_bias", num * 2 * width), down_bias = vector(prefix + ".down_proj_bias", num * hidden);
  const int64_t element = is_mx ? 1 : static_cast<int64_t>(dtype_bytes(up.dtype));
  for (size_t i = 0; i < mine.size(); ++i) {
    const int64_t e = mine[i];
    if (e == kEmptySlot) continue;
    std::byte* slot = experts.slot(static_cast<int64_t>(i));
    // Gate rows are the even rows of the fused matrix, up rows the odd ones. MXFP4 stores [E, 2F, H / 32] blocks, the
    // float form its transpose [E, H, 2F].
    PackSource s{.format = format, .n = part.count, .k = hidden};
    for (int64_t odd = 0; odd < 2; ++odd) {
      if (is_mx) {
        s.data = up.bytes.data() + (e * 2 * width + 2 * part.first + odd) * hidden / 2;
        s.stride_n = hidden;  // two rows of hidden / 2 bytes
        s.mx_scales = up_scales + (e * 2 * width + 2 * part.first + odd) * hidden / 32;
        s.mx_scale_stride = 2 * hidden / 32;
      } else {
        s.data = up.bytes.data() + (e * hidden * 2 * width + 2 * part.first + odd) * element;
        s.stride_n = 2, s.stride_k = 2 * width;
      }
      pack_as(layout.gate_up.format, s, slot + (odd ? layout.up_offset : 0));
      float* bias = reinterpret_cast<float*>(slot + (odd ? layout.up_bias_offset : layout.gate_bias_offset));
      for (int64_t c = 0; c < part.count; ++c) bias[c] = up_bias[static_cast<size_t>(e * 2 * width + 2 * (part.first + c) + odd)];
    }
    PackSource d{.format = format, .n = hidden, .k = part.count};
    if (is_mx) {  // parts begin on blocks of 32 values
      d.data = down.bytes.data() + e * hidden * width / 2 + part.first / 2;
      d.stride_n = width / 2;
      d.mx_scales = down_scales + e * hidden * width / 32 + part.first / 32;
      d.mx_scale_stride = width / 32;
    } else {
      d.data = down.bytes.data() + (e * width + part.first) * hidden * element;
      d.stride_n = 1, d.stride_k = hidden;
    }
    pack_as(layout.down.format, d, slot + layout.down_offset);
    // Outputs of the parts add up: one of them brings the bias.
    if (part.first == 0) std::memcpy(slot + layout.down_bias_offset, down_bias.data() + e * hidden, static_cast<size_t>(hidden) * 4);
  }
  for (const std::string& name : {up_name, down_name})
    for (const char* suffix : {"", "_blocks", "_scales"})
      if (source_.has(name + suffix)) source_.release(name + suffix);
  return experts;
}

}  // namespace cadre
