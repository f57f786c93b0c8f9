#include "comm/ucx/ucx_world.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/ucx/ucx_transport.h"

namespace cadre {
namespace {

class UcxWorld final : public CommWorld {
 public:
  UcxWorld(std::shared_ptr<UcxHub> hub, int64_t timeout_us) : hub_(std::move(hub)), timeout_us_(timeout_us) {}
  int rank() const override { return hub_->rank(); }
  int size() const override { return hub_->size(); }
  std::unique_ptr<Transport> make_transport(const std::string& name, const std::vector<int>& members) override {
    return std::make_unique<UcxTransport>(hub_, name, members, group_rank(members, rank(), size()), timeout_us_);
  }

 private:
  std::shared_ptr<UcxHub> hub_;
  const int64_t timeout_us_;
};

}  // namespace

std::unique_ptr<CommWorld> make_ucx_world(int rank, int size, const StoreAddress& store_address,
                                          const UcxOptions& options) {
  CADRE_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  auto hub = std::make_shared<UcxHub>(rank, size, options);
  std::lock_guard lock(hub->worker().mutex());
  StoreClient store(store_address);
  const int64_t deadline_us = SteadyClock().now_us() + options.connect_timeout_us;
  const auto left_us = [&] { return std::max<int64_t>(deadline_us - SteadyClock().now_us(), 1); };
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  // Host name and address in one value, apart by a byte that no host name holds.
  const std::string mine = std::string(host) + '\0' + hub->worker().address();
  store.set(fmt::format("ucx/address/{}", rank), mine, left_us());
  int num_here = 0;
  for (int r = 0; r < size; ++r) {
    const std::string theirs = store.get(fmt::format("ucx/address/{}", r), left_us());
    const size_t end = theirs.find('\0');
    CADRE_CHECK(end != std::string::npos, "the address of rank {} is {} bytes without a host", r, theirs.size());
    num_here += theirs.substr(0, end) == host;
    if (r != rank) hub->worker().set_peer_address(r, theirs.substr(end + 1));
  }
  hub->worker().set_ranks_here(num_here);
  return std::make_unique<UcxWorld>(std::move(hub), options.connect_timeout_us);
}

}  // namespace cadre
