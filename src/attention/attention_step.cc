#include "attention/attention_step.h"

#include <cstring>

namespace cadre {

void AttentionStep::clear_new_blocks() const {
  for (int64_t row = 0; row < num_rows(); ++row)
    if (positions[static_cast<size_t>(row)] % 16 == 0)
      std::memset(kv->block(layer, block_of_row(row)), 0, static_cast<size_t>(kv->layout().block_bytes));
}

}  // namespace cadre
