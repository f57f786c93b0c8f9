// What stands before each message between ranks.
#pragma once

#include <cstdint>

#include "comm/ucx/ucx_transport.h"

namespace cadre {

struct UcxHub::Header {
  enum Kind : uint32_t {
    kData,   // part of an exchange
    kHello,  // the sender makes a group; data: its key
    kAbort,  // the group is lost; data: the lost rank (int32) and why
    kLeave,  // the sender destroyed its end
    kWaits,  // the sender has waited for half its timeout; of no group
  };
  uint32_t kind = kData;
  uint32_t group_id = 0;  // kData: the receiver's number of the group, else the sender's
  uint32_t source = 0;    // kData: rank in the group, else in the world
  uint32_t exchange = 0;
  int64_t total = 0;   // bytes of the part
  int64_t offset = 0;  // of this message's bytes in it
};

}  // namespace cadre
