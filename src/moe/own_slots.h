// The slots that this rank's rows of a round go to. Where the choice of replicas depends on the rows of all ranks, they
// first tell each other how many of their rows chose each expert.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/exchange.h"

namespace cadre {

class OwnSlots {
 public:
  // max_rows: of this rank in a round. options outlive the object.
  OwnSlots(const ExchangeOptions& options, int64_t max_rows);

  // One for each of rows.ids, valid until the next call. A collective of the world where replicas.needs_counts(). Between
  // two other exchanges of the group.
  std::span<const int32_t> choose(ReplicaSplit& replicas, const RoutedRows& rows);

 private:
  void agree(ReplicaSplit& replicas, const RoutedRows& rows);

  const ExchangeOptions& options_;
  std::vector<uint16_t> own_rows_;                // by expert
  std::vector<int32_t> first_row_, rows_;         // by expert: of lower ranks, and of all
  std::vector<int32_t> slots_;
  std::vector<SendPart> send_;
  std::vector<RecvPart> recv_;
};

}  // namespace cadre
