// The pre-norm decoder that all served families share: x += attention(norm(x)); x += feed_forward(norm(x)); then a final
// norm and the head. What differs between families is data: which attention, which feed-forward, which tensors. The
// family files (deepseek.cc, qwen_moe.cc, ...) say that.
#pragma once

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "attention/gqa.h"
#include "attention/mla.h"
#include "comm/rank_groups.h"
#include "eplb/balancer.h"
#include "eplb/load_recorder.h"
#include "models/model.h"
#include "models/weight_loader.h"
#include "moe/moe_layer.h"
#include "parallel/layer_plan.h"

namespace cadre {

struct LayerWeights {
  std::vector<float> attention_norm, feed_forward_norm;  // [H]
  std::variant<GqaWeights, MlaWeights> attention;
  std::variant<GatedMlp, MoeWeights> feed_forward;
};

// Loads layer `layer` of the configuration's family.
LayerWeights load_layer(WeightLoader& loader, int64_t layer);

// kReference: one form of everything, so that even a prompt given as prefill and the same tokens given one by one as if
// decoded agree to the bit. kFast: prompt rows may take another form of attention (SequenceRows::num_prompt_tokens).
enum class ComputeMode { kReference, kFast };

struct DecoderOptions {
  int64_t max_batched_tokens = 2048;
  DType kv_dtype = DType::kF32;
  int num_threads = 1;
  ComputeMode compute_mode = ComputeMode::kReference;
  // Dispatched rows cross the wire in FP8 (alltoall and allgather exchanges).
  bool fp8_dispatch = false;
  // kF8E4M3: inputs of products whose weight is stored in FP8 blocks are rounded to FP8, as `activation_scheme: dynamic` asks;
  // see models/activation_dtype.h. kF32: all stay as they are.
  DType activation_dtype = DType::kF32;
  // Weights of matrix products are converted to this when they are loaded (models/quantization.h); nullopt: as stored.
  std::optional<WeightFormat> quantization;
  // How routed experts are computed: "auto" or a name of experts_backends().
  std::string moe_backend = "auto";
  ReplicaChoice replica_choice = ReplicaChoice::kWaterFill;
  int num_nodes = 1;  // of equally many expert-parallel ranks each: ReplicaChoice::kStatic prefers a row's own
  // Where experts begin, one for each sparse layer in order, of as many slots as the layout has; empty: ExpertPlacement::initial().
  std::vector<ExpertPlacement> expert_placements;
  // Moves experts to where the load is; nullopt, or a layout without expert parallelism: no.
  std::optional<eplb::BalancerOptions> balance;
  // Of a layout of several ranks; null: one rank. Outlives the decoder; every rank makes one.
  RankGroups* groups = nullptr;
};

// With several ranks, the ranks that lead an attention group (attn_tp rank 0) are given forward(), all in the same order;
// the others run follow(). forward() then throws PeerLost when a rank is lost.
class Decoder final : public Model {
 public:
  // Reads this rank's weights; progress(done, total layers) is called after each layer when given.
  Decoder(ModelConfig config, WeightSource& source, const DecoderOptions& options, const std::function<void(int64_t, int64_t)>& progress = {});
  ~Decoder() override;

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_position() const override { return config_.max_position; }
  int64_t max_batched_tokens() const override { return options_.max_batched_tokens; }
  KvLayout kv_layout() const override;
  void forward(const StepInput& input, KvStore& kv, const StepOutput& output) override;

  // A step that the leader gives; false when it said stop. Waits for it without a deadline.
  bool follow(KvStore& kv);
  // The leader: followers return from follow().
  void stop_followers();

  const ModelConfig& config() const { return config_; }
  // Memory of this rank's weights: what allocated_bytes() (parallel/allocated_bytes.h) says before they are there.
  int64_t weight_bytes() const;
  std::span<const LayerPlan> plan() const { return plan_; }
  // Routing choices of this rank's rows: with split heads, of its slice of the step's rows.
  void set_route_observer(RouteObserver observer) { observer_ = std::move(observer); }
  int64_t placement_generation() const override { return balancer_ ? balancer_->generation() : 0; }
  int64_t order() const override { return recorder_ ? recorder_->order() : 0; }
  // Null for dense models.
  eplb::LoadRecorder* recorder() { return recorder_.get(); }
  // Null where experts stay where they are.
  eplb::Balancer* balancer() { return balancer_.get(); }
  // Where the experts of this layer report what they did, added to what is there; null: nowhere. Between steps only.
  void watch_experts(int64_t layer, ExpertWork* work) { watched_layer_ = layer, work_ = work; }

 private:
  struct Layer;
  struct Workspace;
  struct Ranks;
  void make_observers();
  void make_workspace(int64_t slots);  // of experts, on this rank
  void send_to_followers(std::span<const std::byte> message);
  void run(const StepInput& input, KvStore& kv, const StepOutput* output);
  bool observes_routes() const { return balancer_ || observer_ || (recorder_ && recorder_->is_recording_step()); }
  void finish_step();
  void run_rows(const StepInput& input, KvStore& kv, const StepOutput* output);
  int64_t lay_out_rows(const StepInput& input);
  void share_rows(const StepInput& input, int64_t rows);
  void embed(const StepInput& input);
  void attention_half(int64_t layer, AttentionStep& step);
  void feed_forward_half(int64_t layer);
  void run_dense(const GatedMlp& mlp, const float* x, int64_t num_rows, float* out);
  void normalise(const std::vector<float>& weight);
  void add_delta();
  void collect_rows();
  void write_logits(const StepInput& input, const StepOutput& output);

  ModelConfig config_;
  DecoderOptions options_;
  std::vector<LayerPlan> plan_;
  AttentionConfig attention_;  // this rank's heads
  ThreadPool pool_;
  Rope rope_;
  PackedMatrix embedding_;
  PackedMatrix head_;  // empty when tied to the embedding
  std::vector<float> final_norm_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<Ranks> ranks_;
  std::unique_ptr<Workspace> w_;
  RouteObserver observer_;        // as it was set
  RouteObserver route_observer_;  // the balancer's, the recorder's and that
  std::unique_ptr<eplb::Balancer> balancer_;
  std::unique_ptr<eplb::LoadRecorder> recorder_;
  int64_t watched_layer_ = 0;
  ExpertWork* work_ = nullptr;
};

}  // namespace cadre
