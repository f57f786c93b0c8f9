// A model on all ranks of a layout, as threads of this process: loads every rank's part at once, gives the controller an
// engine for each data-parallel rank, and runs the ranks that follow them.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "dp/controller.h"
#include "models/decoder.h"
#include "tokenizer/tokenizer.h"

namespace cadre {

// This process's place among ranks that are processes: connected to the others, and, where it leads an attention group, to
// the process of rank 0 that serves clients.
struct ProcessRank {
  std::unique_ptr<CommWorld> comm;
  std::vector<int> leader_sockets;  // rank 0: of data-parallel ranks 1, 2, ...
  int front_socket = -1;            // other leaders
  int comm_rank = 0;                // set by the deployment
};

struct DeploymentOptions {
  ModelConfig config;
  Layout layout;
  std::function<std::unique_ptr<WeightSource>()> open_weights;  // called once a rank, on its thread
  DecoderOptions decoder;                                       // num_threads: of each rank
  EngineOptions engine;
  ControllerOptions controller;
  RouteObserver route_observer;          // of all ranks, called on their threads; may be empty
  int64_t step_timeout_us = 60'000'000;  // of each wait for another rank
  std::function<void(int64_t done, int64_t total)> progress;    // layers loaded, of all ranks; may throw to give up
  // Tests put faults between a rank (a thread) and its world.
  std::function<std::unique_ptr<CommWorld>(int world_rank, std::unique_ptr<CommWorld>)> wrap_comm;
  std::shared_ptr<ProcessRank> process;  // null: all ranks are threads of this process
};

class Deployment {
 public:
  // Throws what the first rank that failed threw.
  Deployment(DeploymentOptions options, std::shared_ptr<const Tokenizer> tokenizer, const Clock& clock);
  ~Deployment();  // cancels what runs and joins all threads
  Deployment(const Deployment&) = delete;

  // Of the process that has world rank 0.
  Controller& controller() { return *controller_; }
  // The other processes: takes part until rank 0 stops. False when it was lost instead.
  bool run_until_stopped();
  const Layout& layout() const { return options_.layout; }
  // What a rank sent since the start. Read between steps only.
  const TrafficCounters* counters(int world_rank) const;
  // Of world rank 0; null in other processes and where experts do not move.
  eplb::Balancer* balancer() const { return balancer_; }
  // Of world rank 0; null in other processes and for dense models.
  eplb::LoadRecorder* recorder() const { return recorder_; }

 private:
  struct Rank;
  struct Loading;
  struct Front;
  void load(int world_rank, Loading& loading);
  void start(std::shared_ptr<const Tokenizer> tokenizer, const Clock& clock);
  void agree_on_blocks();

  DeploymentOptions options_;
  const Clock* clock_;
  eplb::Balancer* balancer_ = nullptr;
  eplb::LoadRecorder* recorder_ = nullptr;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::thread> followers_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<Front> front_;  // of a leader in another process than rank 0
};

}  // namespace cadre
