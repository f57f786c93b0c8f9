#include "moe/experts_backend.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/devices.h"
#include "moe/experts.h"

namespace cadre {
namespace {

// The scalar definition of every product, a row and a pair at a time: for proofs, and for a second opinion.
void compute_reference(const Experts& experts, const ExpertPairs& pairs, ExpertsWorkspace& w, ThreadPool& pool) {
  const ExpertLayout& layout = experts.layout();
  const int64_t hidden = layout.down.n, width = layout.gate_up.n;
  w.up.resize(w.h.size());
  pool.parallel_for(pairs.size(), [&](int64_t p, int) {
    const size_t i = static_cast<size_t>(p);
    const ExpertView e = experts.expert(pairs.slot_of_pair[i]);
    const RowsIn x{pairs.x + pairs.row_of_pair[i] * hidden, hidden};
    float* h = w.h.data() + p * width;
    float* up = w.up.data() + p * width;
    gemm_ref(e.gate, e.gate_bias, x, 1, {h, width});
    gemm_ref(e.up, e.up_bias, x, 1, {up, width});
    experts.activation().apply(h, up, width, h);
    if (layout.rounds_inputs) round_to_fp8_ref(h, width, h);
    gemm_ref(e.down, e.down_bias, {h, width}, 1, {w.partial.data() + p * hidden, hidden});
    w.row_of_pair[i] = static_cast<int32_t>(p);
  });
}

std::string always(const ExpertsNeed&) { return {}; }

std::string needs_cuda(const ExpertsNeed&) {
  if (!is_built_with_cuda()) return "the program was built without CUDA";
  return "it has no expert kernels on devices yet";
}

constexpr ExpertsBackend kBackends[] = {
    {"cuda_grouped", "grouped matrix products on an NVIDIA GPU", needs_cuda, nullptr},
    {"cpu_grouped", "packed panels with the vectors of this CPU, rows grouped by expert", always,
     [](const Experts& experts, const ExpertPairs& pairs, ExpertsWorkspace& w, ThreadPool& pool) { experts.compute_grouped(pairs, w, pool); }},
    {"cpu_reference", "the scalar definition, a row at a time", always, compute_reference},
};

std::string names() {
  std::string out = "auto";
  for (const ExpertsBackend& b : kBackends) out += fmt::format(", {}", b.name);
  return out;
}

}  // namespace

std::span<const ExpertsBackend> experts_backends() { return kBackends; }

ExpertsChoice choose_experts_backend(const ExpertsNeed& need, std::string_view name) {
  ExpertsChoice out;
  const bool is_forced = name != "auto";
  if (is_forced && std::none_of(std::begin(kBackends), std::end(kBackends), [&](const ExpertsBackend& b) { return b.name == name; }))
    throw invalid_input("--moe-backend: expected one of {}, found {}; kernels of other engines are not here, leave it at auto", names(), cadre::quoted(name));
  for (const ExpertsBackend& b : kBackends) {
    const std::string reason = b.refusal(need);
    if (is_forced && b.name == name) {
      if (!reason.empty()) throw unsupported("--moe-backend: expected one that can run here, found {}: {}; leave it at auto", name, reason);
      out.backend = &b;
    } else if (!reason.empty()) {
      out.passed_over.push_back(fmt::format("{}: {}", b.name, reason));
    } else if (is_forced) {
      out.passed_over.push_back(fmt::format("{}: {} was asked for", b.name, name));
    } else if (!out.backend) {
      out.backend = &b;
    } else {
      out.passed_over.push_back(fmt::format("{}: comes after {}", b.name, out.backend->name));
    }
  }
  return out;
}

}  // namespace cadre
