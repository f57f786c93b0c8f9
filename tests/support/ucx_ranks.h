// Ranks over UCX as threads of a test: they share nothing but their connections. Making a world takes long, groups do not, so
// the worlds of a size are made once and lent out.
#pragma once

#include <memory>
#include <vector>

#include "comm/transport.h"

namespace cadre::testing {

class UcxRanks {
 public:
  explicit UcxRanks(int size);
  ~UcxRanks();
  int size() const { return static_cast<int>(worlds_.size()); }
  // The world of a rank, which the object must outlive; one borrower at a time.
  std::unique_ptr<CommWorld> lend(int rank);

 private:
  std::vector<std::unique_ptr<CommWorld>> worlds_;
};

}  // namespace cadre::testing
