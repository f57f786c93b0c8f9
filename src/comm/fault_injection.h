// A world whose ranks fail on purpose: at the n-th start() or finish() of a group this rank is late, stands still or
// drops out. For tests of whatever runs on ranks; it sleeps nowhere and costs one comparison per call. Faults that are
// not reached do nothing.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace cadre {

// What a frozen rank waits at. Once open it stays open.
class FaultGate {
 public:
  void open();
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

// Thrown by a rank that drops out, in place of what it was doing: its peers get PeerLost at once.
class InjectedDrop : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Fault {
  enum class At { kStart, kFinish };
  enum class Kind {
    kDelay,   // runs hook() first, for instance to wait until others got further, then goes on as if nothing were
    kFreeze,  // stands still until the gate opens or somebody aborts this transport, then goes on
    kDrop,    // aborts the group and throws InjectedDrop
  };
  At at = At::kStart;
  int64_t call = 0;  // which start() or finish() of the group, from 0
  Kind kind = Kind::kDrop;
  std::string group;  // name; empty: every group
  std::function<void()> hook;
  std::shared_ptr<FaultGate> gate;
};

std::unique_ptr<Transport> inject_faults(std::unique_ptr<Transport> inner, std::vector<Fault> faults);

// The same for the groups that the world makes from now on.
std::unique_ptr<CommWorld> inject_faults(std::unique_ptr<CommWorld> inner, std::vector<Fault> faults);

}  // namespace cadre
