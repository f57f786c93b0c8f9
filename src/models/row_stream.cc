#include "models/row_stream.h"

#include <algorithm>

#include "base/check.h"

namespace cadre {

RowStream::RowStream(Group& group, int64_t hidden, int64_t max_rows)
    : group_(group), hidden_(hidden), padded_(static_cast<size_t>(max_rows * hidden)), all_(padded_.size()), parts_(static_cast<size_t>(group.size())), counts_(parts_.size()) {}

float* RowStream::gather(Purpose purpose, std::span<const int64_t> rows, const float* mine) {
  const GatherMode mode = choose_gather_mode(rows);
  int64_t at = 0;
  for (int r = 0; r < group_.size(); ++r) {
    const int64_t count = part_rows(mode, rows, r);
    parts_[static_cast<size_t>(r)] = {reinterpret_cast<std::byte*>(padded_.data() + at * hidden_), count * hidden_ * 4};
    at += count;
  }
  CADRE_CHECK(at * hidden_ <= static_cast<int64_t>(padded_.size()), "{} rows, room for {}", at, static_cast<int64_t>(padded_.size()) / hidden_);
  const int64_t own = rows[static_cast<size_t>(group_.rank())], sent = part_rows(mode, rows, group_.rank());
  if (sent > own) {  // padding is sent from memory of its own
    own_.resize(std::max(own_.size(), static_cast<size_t>(sent * hidden_)));
    std::copy_n(mine, own * hidden_, own_.data());
    mine = own_.data();
  }
  group_.all_gather(purpose, {reinterpret_cast<const std::byte*>(mine), sent * hidden_ * 4}, parts_);
  if (mode == GatherMode::kSumLen) return padded_.data();
  float* out = all_.data();
  for (int r = 0; r < group_.size(); ++r) {
    const int64_t values = rows[static_cast<size_t>(r)] * hidden_;
    std::copy_n(reinterpret_cast<const float*>(parts_[static_cast<size_t>(r)].into), values, out);
    out += values;
  }
  return all_.data();
}

void RowStream::reduce(Purpose purpose, std::span<const int64_t> rows, const float* all, float* mine) {
  const GatherMode mode = choose_gather_mode(rows);
  const float* in = mode == GatherMode::kMaxLen ? padded_.data() : all;
  float* to = padded_.data();
  for (int r = 0; r < group_.size(); ++r) {
    const int64_t values = rows[static_cast<size_t>(r)] * hidden_, padded = part_rows(mode, rows, r) * hidden_;
    if (mode == GatherMode::kMaxLen) std::copy_n(all, values, to);
    counts_[static_cast<size_t>(r)] = padded;
    all += values;
    to += padded;
  }
  const int64_t own = rows[static_cast<size_t>(group_.rank())] * hidden_, received = counts_[static_cast<size_t>(group_.rank())];
  own_.resize(std::max(own_.size(), static_cast<size_t>(received)));
  group_.reduce_scatter(purpose, in, counts_, own_.data());
  std::copy_n(own_.data(), own, mine);
}

}  // namespace cadre
