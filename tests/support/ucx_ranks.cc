#include "tests/support/ucx_ranks.h"

#include <exception>
#include <thread>

#include "comm/ucx/ucx_world.h"

namespace cadre::testing {
namespace {

class LentWorld final : public CommWorld {
 public:
  explicit LentWorld(CommWorld& world) : world_(world) {}
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::unique_ptr<Transport> make_transport(const std::string& name, const std::vector<int>& members) override { return world_.make_transport(name, members); }

 private:
  CommWorld& world_;
};

}  // namespace

UcxRanks::UcxRanks(int size) : worlds_(static_cast<size_t>(size)) {
  const StoreServer store({"127.0.0.1", 0});
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(worlds_.size());
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      try {
        worlds_[static_cast<size_t>(r)] = make_ucx_world(r, size, {"127.0.0.1", store.port()}, {.net_devices = "lo"});
      } catch (...) {
        failures[static_cast<size_t>(r)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

// At once, as processes that end together do: a world that goes alone waits for peers that are gone.
UcxRanks::~UcxRanks() {
  std::vector<std::thread> threads;
  for (auto& world : worlds_) threads.emplace_back([&world] { world.reset(); });
  for (std::thread& thread : threads) thread.join();
}

std::unique_ptr<CommWorld> UcxRanks::lend(int rank) { return std::make_unique<LentWorld>(*worlds_.at(static_cast<size_t>(rank))); }

}  // namespace cadre::testing
