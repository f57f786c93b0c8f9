// Which implementation computes the routed experts: a table in order of preference. The first that can serve a weight
// format, device and exchange is taken, or the one that is asked for by name; why others were passed over is told.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/packed_matrix.h"
#include "parallel/layout.h"

namespace cadre {

class Experts;
struct ExpertPairs;
struct ExpertsWorkspace;

struct ExpertsNeed {
  WeightFormat format = WeightFormat::kBF16;
  ExchangeKind exchange = ExchangeKind::kNone;
};

struct ExpertsBackend {
  std::string_view name;
  std::string_view what;                        // one line for people
  std::string (*refusal)(const ExpertsNeed&);   // why it cannot; empty: it can
  void (*compute)(const Experts&, const ExpertPairs&, ExpertsWorkspace&, ThreadPool&);
};

std::span<const ExpertsBackend> experts_backends();

struct ExpertsChoice {
  const ExpertsBackend* backend = nullptr;
  std::vector<std::string> passed_over;  // "cuda_grouped: ..." for each, in the order of the table
};

// name: "auto" or one of the table. Throws Error for an unknown name (with the list), or one that cannot serve the need
// (with its reason).
ExpertsChoice choose_experts_backend(const ExpertsNeed& need, std::string_view name);

}  // namespace cadre
