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

struct DeploymentOptions {
  ModelConfig config;
  Layout layout;
  std::function<std::unique_ptr<WeightSource>()> open_weights;  // called once a rank, on its thread
  DecoderOptions decoder;                                       // num_threads: of each rank
  EngineOptions engine;
  ControllerOptions controller;
  int64_t step_timeout_us = 60'000'000;  // of each wait for another rank
  std::function<void(int64_t done, int64_t total)> progress;    // layers loaded, of all ranks; may throw to give up
};

class Deployment {
 public:
  // Throws what the first rank that failed threw.
  Deployment(DeploymentOptions options, std::shared_ptr<const Tokenizer> tokenizer, const Clock& clock);
  ~Deployment();  // cancels what runs and joins all threads
  Deployment(const Deployment&) = delete;

  Controller& controller() { return *controller_; }
  const Layout& layout() const { return options_.layout; }
  // What a rank sent since the start. Read between steps only.
  const TrafficCounters* counters(int world_rank) const;

 private:
  struct Rank;
  struct Loading;
  void load(int world_rank, Loading& loading);
  void start(std::shared_ptr<const Tokenizer> tokenizer, const Clock& clock);

  DeploymentOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::thread> followers_;
  std::unique_ptr<Controller> controller_;
};

}  // namespace cadre
