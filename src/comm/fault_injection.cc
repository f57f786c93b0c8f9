#include "comm/fault_injection.h"

#include <fmt/format.h>

#include "base/check.h"

namespace cadre {

void FaultGate::open() {
  std::lock_guard lock(mutex_);
  is_open_ = true;
  opened_.notify_all();
}

void FaultGate::wait() {
  std::unique_lock lock(mutex_);
  opened_.wait(lock, [&] { return is_open_; });
}

namespace {

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, std::vector<Fault> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {
    for (const Fault& f : faults_) {
      CADRE_CHECK(f.kind != Fault::Kind::kDelay || f.hook, "a delay without a hook");
      CADRE_CHECK(f.kind != Fault::Kind::kFreeze || f.gate, "a freeze without a gate");
    }
  }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void start(std::span<const SendPart> send, std::span<const RecvPart> recv) override {
    run_faults(Fault::At::kStart, num_starts_++);
    inner_->start(send, recv);
  }
  void finish(Receive receive) override {
    run_faults(Fault::At::kFinish, num_finishes_++);
    inner_->finish(receive);
  }
  void set_timeout_us(int64_t timeout_us) override { inner_->set_timeout_us(timeout_us); }
  void set_step(int64_t step) override { inner_->set_step(step); }
  void abort(const std::string& reason) override {
    inner_->abort(reason);
    for (const Fault& f : faults_)
      if (f.gate) f.gate->open();
  }

 private:
  void run_faults(Fault::At at, int64_t call) {
    for (const Fault& f : faults_) {
      if (f.call != call || f.at != at) continue;
      switch (f.kind) {
        case Fault::Kind::kDelay:
          f.hook();
          break;
        case Fault::Kind::kFreeze:
          f.gate->wait();
          break;
        case Fault::Kind::kDrop: {
          const std::string what =
              fmt::format("injected fault at {} {}", at == Fault::At::kStart ? "start" : "finish", call);
          inner_->abort(what);
          throw InjectedDrop(what);
        }
      }
    }
  }

  std::unique_ptr<Transport> inner_;
  std::vector<Fault> faults_;
  int64_t num_starts_ = 0, num_finishes_ = 0;
};

class FaultyWorld final : public CommWorld {
 public:
  FaultyWorld(std::unique_ptr<CommWorld> inner, std::vector<Fault> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Transport> make_transport(const std::string& name, const std::vector<int>& members) override {
    std::vector<Fault> faults;
    for (const Fault& f : faults_)
      if (f.group.empty() || f.group == name) faults.push_back(f);
    return inject_faults(inner_->make_transport(name, members), std::move(faults));
  }

 private:
  std::unique_ptr<CommWorld> inner_;
  std::vector<Fault> faults_;
};

}  // namespace

std::unique_ptr<Transport> inject_faults(std::unique_ptr<Transport> inner, std::vector<Fault> faults) {
  return std::make_unique<FaultyTransport>(std::move(inner), std::move(faults));
}

std::unique_ptr<CommWorld> inject_faults(std::unique_ptr<CommWorld> inner, std::vector<Fault> faults) {
  return std::make_unique<FaultyWorld>(std::move(inner), std::move(faults));
}

}  // namespace cadre
