// One admitted request on its way: takes the engines' deltas on their threads, hands them to the Answer on the
// exchange's own, and ends the request when the peer goes. It keeps itself alive until the answer is complete or
// dropped.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "dp/controller.h"
#include "server/answer.h"
#include "server/http_types.h"
#include "server/metrics.h"

namespace cadre {

// What a generation needs of its surroundings; all of it outlives every generation.
struct GenerationContext {
  Controller& controller;
  std::shared_ptr<const ServedModel> model;
  Metrics& metrics;
  const Clock& clock;
  int64_t keep_alive_ms = 0;  // SSE comment lines while nothing else is sent; 0: none
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationContext context, ApiRequest request, std::shared_ptr<HttpExchange> exchange, HttpHeaders headers,
             std::string request_id, int64_t arrival_us);

  // Submits every prompt of the request; all are admitted or none. Then the answer's head goes out if it is a stream.
  // Throws Error, having answered nothing, when one is refused.
  void start();
  // Ends what was admitted; unless the peer has gone, it gets an error. Any thread.
  void cancel();

 private:
  struct Arrival {
    size_t prompt_idx;
    Delta delta;
  };
  struct ChoiceTimes {
    int64_t last_us = 0;
    int64_t num_tokens = 0;
  };

  GenerationRequest generation_request(size_t prompt_idx) const;
  std::string rank_names();
  void on_delta(size_t prompt_idx, Delta&& delta);  // engine thread
  void observe(size_t prompt_idx, const Delta& delta);
  void open();  // this and below: the exchange's thread
  void drain();
  void take(Arrival&& arrival, std::string* events);
  void fail(const Error& error, std::string* events);
  void finish();

  GenerationContext context_;
  std::shared_ptr<HttpExchange> exchange_;
  HttpHeaders headers_;
  std::string request_id_;
  int64_t arrival_us_;
  Answer answer_;
  bool is_stream_;
  bool is_over_ = false;            // answered, or nobody is there to answer; the exchange's thread
  std::vector<ChoiceTimes> times_;  // engine threads; each choice belongs to one

  std::mutex handles_mutex_;
  std::vector<RequestHandle> handles_;  // guarded by handles_mutex_
  bool is_cancelled_ = false;           // guarded by handles_mutex_
  std::mutex mutex_;                    // engines wait for it: held for moments only
  std::vector<Arrival> arrivals_;       // guarded by mutex_
  bool is_draining_ = true;             // guarded by mutex_: a drain is due, or the head is not out yet
};

}  // namespace cadre
