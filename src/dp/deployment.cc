#include "dp/deployment.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "base/error.h"
#include "comm/inproc/inproc_world.h"
#include "dp/frame_link.h"
#include "dp/group_step_sync.h"
#include "dp/rank_link.h"
#include "dp/wire.h"
#include "weights/weight_source.h"

namespace cadre {

struct Deployment::Rank {
  std::unique_ptr<CommWorld> comm;
  std::unique_ptr<RankGroups> groups;  // null for one rank
  std::unique_ptr<Decoder> decoder;    // moves into the engine where the rank leads
  std::unique_ptr<KvStore> kv;         // of a follower
};

// What the loading threads share.
struct Deployment::Loading {
  std::mutex mutex;
  int64_t done = 0;
  std::exception_ptr failure;  // the first
};

// A leader's end of the connection to the process that serves clients.
struct Deployment::Front {
  explicit Front(int fd)
      : link(fd, [this](Frame&& frame) { receive(std::move(frame)); }, [this](const std::string&) { end(false); }) {}

  void start(Controller& c) {
    controller = &c;
    link.start();
  }
  void report(const RankReport& report) {
    WireWriter out;
    out.put(report);
    link.send({static_cast<uint8_t>(LinkFrame::kReport), out.take()});
  }
  void receive(Frame&& frame) {
    WireReader in(frame.bytes);
    switch (static_cast<LinkFrame>(frame.type)) {
      case LinkFrame::kSubmit: {
        const uint64_t handle = in.get<uint64_t>();
        controller->accept(handle, get_request(in), [this, handle](Delta&& delta) {
          WireWriter out;
          out.put(handle);
          put_delta(out, delta);
          link.send({static_cast<uint8_t>(LinkFrame::kDelta), out.take()});
        });
        return in.expect_end();
      }
      case LinkFrame::kCancel: return controller->cancel_accepted(in.get<uint64_t>());
      case LinkFrame::kWake: return controller->set_wakes(in.get<int64_t>());
      case LinkFrame::kStop: return end(true);
      default: throw Error(ErrorKind::kInternal, fmt::format("a message of kind {} from rank 0; run the same build on all ranks", frame.type));
    }
  }
  void end(bool was_told) {
    const std::lock_guard lock(mutex);
    if (!has_ended) has_ended = true, is_told = was_told;
    ended.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return has_ended; });
    return is_told;
  }

  Controller* controller = nullptr;
  std::mutex mutex;
  std::condition_variable ended;
  bool has_ended = false, is_told = false;
  FrameLink link;  // last: its threads use the others
};

namespace {

// The leader's decoder, which lets its followers go when it goes itself.
class LeadingModel final : public Model {
 public:
  explicit LeadingModel(std::unique_ptr<Decoder> decoder) : decoder_(std::move(decoder)) {}
  ~LeadingModel() override {
    try {
      decoder_->stop_followers();
    } catch (const PeerLost&) {
      // They have been told already.
    }
  }
  int64_t vocab_size() const override { return decoder_->vocab_size(); }
  int64_t max_position() const override { return decoder_->max_position(); }
  int64_t max_batched_tokens() const override { return decoder_->max_batched_tokens(); }
  KvLayout kv_layout() const override { return decoder_->kv_layout(); }
  int64_t placement_generation() const override { return decoder_->placement_generation(); }
  int64_t order() const override { return decoder_->order(); }
  void forward(const StepInput& input, KvStore& kv, const StepOutput& output) override { decoder_->forward(input, kv, output); }

 private:
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace

Deployment::Deployment(DeploymentOptions options, std::shared_ptr<const Tokenizer> tokenizer, const Clock& clock) : options_(std::move(options)), clock_(&clock) {
  const int world = options_.layout.world;
  for (int r = 0; r < world; ++r) ranks_.push_back(std::make_unique<Rank>());
  Loading loading;
  if (options_.process) {
    const int rank = options_.process->comm_rank = options_.process->comm->rank();
    ranks_[static_cast<size_t>(rank)]->comm = std::move(options_.process->comm);
    load(rank, loading);
    if (loading.failure) std::rethrow_exception(loading.failure);
    agree_on_blocks();
  } else if (world == 1) {
    load(0, loading);
  } else {
    auto worlds = make_inproc_worlds(world);
    std::vector<std::thread> threads;
    for (int r = 0; r < world; ++r) {
      auto& comm = worlds[static_cast<size_t>(r)];
      ranks_[static_cast<size_t>(r)]->comm = options_.wrap_comm ? options_.wrap_comm(r, std::move(comm)) : std::move(comm);
    }
    for (int r = 0; r < world; ++r) threads.emplace_back([this, r, &loading] { load(r, loading); });
    for (std::thread& thread : threads) thread.join();
  }
  if (loading.failure) std::rethrow_exception(loading.failure);
  try {
    start(std::move(tokenizer), clock);
  } catch (...) {
    for (const auto& rank : ranks_)
      if (rank->groups) rank->groups->abort("could not start");
    for (std::thread& thread : followers_) thread.join();
    throw;
  }
}

void Deployment::load(int world_rank, Loading& loading) {
  Rank& rank = *ranks_[static_cast<size_t>(world_rank)];
  try {
    DecoderOptions decoder = options_.decoder;
    if (decoder.balance && !decoder.balance->clock) decoder.balance->clock = clock_;
    if (rank.comm) {
      rank.groups = std::make_unique<RankGroups>(*rank.comm, options_.layout, options_.config.num_layers);
      rank.groups->set_timeout_us(options_.step_timeout_us);
      decoder.groups = rank.groups.get();
    }
    const auto source = options_.open_weights();
    rank.decoder = std::make_unique<Decoder>(options_.config, *source, decoder, [&](int64_t, int64_t total) {
      const std::lock_guard lock(loading.mutex);
      if (loading.failure) throw Error(ErrorKind::kUnavailable, "another rank failed to load");
      if (options_.progress) options_.progress(++loading.done, options_.process ? total : total * options_.layout.world);
    });
    if (world_rank == 0) balancer_ = rank.decoder->balancer(), recorder_ = rank.decoder->recorder();
    if (options_.route_observer) rank.decoder->set_route_observer(options_.route_observer);
  } catch (...) {
    const std::lock_guard lock(loading.mutex);
    if (!loading.failure) loading.failure = std::current_exception();
  }
}

void Deployment::start(std::shared_ptr<const Tokenizer> tokenizer, const Clock& clock) {
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::unique_ptr<StepSync>> syncs;
  for (int r = 0; r < options_.layout.world; ++r) {
    Rank& rank = *ranks_[static_cast<size_t>(r)];
    if (!rank.decoder) continue;  // in another process
    if (options_.layout.coords(r).attn_tp != 0) {
      rank.kv = std::make_unique<KvStore>(rank.decoder->kv_layout(), options_.engine.num_kv_blocks);
      if (options_.process) return;  // run_until_stopped()
      followers_.emplace_back([&rank] {
        try {
          while (rank.decoder->follow(*rank.kv)) {
          }
        } catch (const std::exception& e) {
          rank.groups->abort(e.what());
        }
      });
      continue;
    }
    engines.push_back(std::make_unique<Engine>(std::make_unique<LeadingModel>(std::move(rank.decoder)), tokenizer, options_.engine, clock));
    if (options_.layout.attn_dp > 1) syncs.push_back(std::make_unique<GroupStepSync>(*rank.groups));
  }
  std::vector<std::unique_ptr<RankLink>> links;
  if (options_.process)
    for (const int socket : options_.process->leader_sockets) links.push_back(std::make_unique<FramedRankLink>(socket));
  if (options_.process && options_.process->front_socket >= 0) {
    front_ = std::make_unique<Front>(options_.process->front_socket);
    options_.controller.first_rank = options_.layout.coords(options_.process->comm_rank).attn_dp;
    options_.controller.on_report = [front = front_.get()](const RankReport& report) { front->report(report); };
  }
  controller_ = std::make_unique<Controller>(std::move(engines), options_.controller, std::move(syncs), std::move(links));
  if (front_) front_->start(*controller_);
}

// Ranks in processes see different amounts of free memory: all take what the poorest has.
void Deployment::agree_on_blocks() {
  for (const auto& rank : ranks_) {
    if (!rank->groups || !rank->groups->world) continue;
    std::vector<int64_t> blocks(static_cast<size_t>(options_.layout.world));
    rank->groups->world->all_gather_value({Traffic::kStep, -1}, options_.engine.num_kv_blocks, std::span(blocks));
    options_.engine.num_kv_blocks = *std::min_element(blocks.begin(), blocks.end());
  }
}

bool Deployment::run_until_stopped() {
  for (const auto& rank : ranks_) {
    if (!rank->kv) continue;
    try {
      while (rank->decoder->follow(*rank->kv)) {
      }
      return true;
    } catch (const PeerLost&) {
      rank->groups->abort("lost its leader");
      return false;
    }
  }
  return front_->wait();
}

Deployment::~Deployment() {
  controller_.reset();  // what it still delivers goes out through front_
  front_.reset();
  for (std::thread& thread : followers_) thread.join();
}

const TrafficCounters* Deployment::counters(int world_rank) const {
  const auto& groups = ranks_[static_cast<size_t>(world_rank)]->groups;
  return groups ? &groups->counters : nullptr;
}

}  // namespace cadre
