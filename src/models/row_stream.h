// Moving rows of activations between the ranks of a group, as a layer plan asks: all-gather before a half that computes on
// more rows than this rank's, reduce-scatter of its output after it. Parts are padded to the longest or exact, by cost
// (choose_gather_mode); callers see exact rows in rank order either way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/group.h"
#include "parallel/layer_plan.h"

namespace cadre {

class RowStream {
 public:
  // max_rows: of all ranks together, padding included.
  RowStream(Group& group, int64_t hidden, int64_t max_rows);

  // rows: of each rank of the group. mine: [rows[rank], H]. Returns all rows, [sum of rows, H], valid until the next call.
  float* gather(Purpose purpose, std::span<const int64_t> rows, const float* mine);
  // all: [sum of rows, H], this rank's contribution to every row. mine: [rows[rank], H], the sums.
  void reduce(Purpose purpose, std::span<const int64_t> rows, const float* all, float* mine);

 private:
  Group& group_;
  int64_t hidden_;
  std::vector<float> padded_, all_, own_;
  std::vector<RecvPart> parts_;
  std::vector<int64_t> counts_;
};

}  // namespace cadre
