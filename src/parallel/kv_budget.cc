#include "parallel/kv_budget.h"

#include <algorithm>

#include "base/check.h"
#include "config/bytes.h"

namespace cadre {

int64_t kv_bytes_unless_told(int64_t free_bytes, int64_t fixed_bytes) {
  const double free = static_cast<double>(std::max<int64_t>(free_bytes, 0)), left = static_cast<double>(std::max<int64_t>(free_bytes - std::max<int64_t>(fixed_bytes, 0), 0));
  return static_cast<int64_t>(std::min(kKvShareOfFreeMemory * free, kKvShareOfTheRest * left));
}

int64_t kv_blocks_in(const KvBudget& budget) {
  CADRE_CHECK(budget.num_ranks > 0 && budget.token_bytes > 0 && budget.max_num_seqs > 0 && budget.max_model_len > 0, "{} ranks, {} bytes a token, {} sequences of {} tokens",
              budget.num_ranks, budget.token_bytes, budget.max_num_seqs, budget.max_model_len);
  const int64_t most = budget.max_num_seqs * ((budget.max_model_len + kKvBlockTokens - 1) / kKvBlockTokens);
  return std::clamp<int64_t>(budget.bytes / budget.num_ranks / (budget.token_bytes * kKvBlockTokens), 0, most);
}

}  // namespace cadre
