#include "eplb/balancer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "parallel/expert_load.h"

namespace cadre::eplb {
namespace {

// Every so many steps ranks tell each other how they fared, and rank 0 whether placements were given by hand.
constexpr int64_t kStepsBetweenReports = 8;
constexpr int64_t kSmallestPiece = 64 << 10;

constexpr double kBalancednessBounds[] = {0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99, 1};
constexpr double kStallShareBounds[] = {0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2};
constexpr double kStallBounds[] = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3};

}  // namespace

void Histogram::add(double value) {
  ++counts[static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
  sum += value;
}

BalancerStats::BalancerStats() : balancedness_by_rows(kBalancednessBounds), stall_seconds(kStallBounds), stall_share(kStallShareBounds) {}

// What rank 0 decides for all.
struct Balancer::Order {
  enum Kind : int64_t { kNothing, kByHand, kTarget, kEnd };
  int64_t kind = kNothing;
  int64_t layer = 0;
  int64_t piece_bytes = 0;
};

Balancer::Balancer(BalancerOptions options, RankGroups& groups, const std::vector<MoeLayer*>& layers, std::vector<int64_t> layer_indices)
    : options_(std::move(options)), groups_(groups), layers_(layers), layer_indices_(std::move(layer_indices)), num_experts_(layers.at(0)->placement().num_experts()),
      window_(static_cast<int64_t>(layers.size()), num_experts_, options_.window_steps) {
  CADRE_CHECK(options_.clock && options_.planner, "a balancer without a clock or a planner");
  slot_of_layer_.assign(static_cast<size_t>(layer_indices_.back() + 1), -1);
  for (size_t i = 0; i < layer_indices_.size(); ++i) slot_of_layer_[static_cast<size_t>(layer_indices_[i])] = static_cast<int64_t>(i);
  for (MoeLayer* layer : layers_) {
    in_force_.push_back(layer->placement());
    const int64_t bytes = layer->experts().layout().slot_bytes;
    if (!spares_.contains(bytes)) spares_.try_emplace(bytes, bytes, layer->experts().num_slots());
  }
  exchange_work_.clock = options_.clock;
  stats_.rows_of_rank.resize(static_cast<size_t>(groups_.layout.world));
  stats_.waited_us_of_rank.resize(stats_.rows_of_rank.size());
  step_began_us_ = options_.clock->now_us();
}

Balancer::~Balancer() = default;

void Balancer::record(int64_t layer, std::span<const int32_t> ids) { window_.add(slot_of_layer_[static_cast<size_t>(layer)], ids); }

BalancerStats Balancer::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::vector<ExpertPlacement> Balancer::placements() const {
  const std::lock_guard lock(mutex_);
  return in_force_;
}

void Balancer::say(const std::string& what) const {
  if (options_.log && groups_.coords.world == 0) options_.log(what);
}

void Balancer::request(std::vector<ExpertPlacement> placements) {
  const std::lock_guard lock(mutex_);
  if (placements.size() != layers_.size())
    throw invalid_input("placement: expected one for each of {} sparse layers, found {}; give all of them", layers_.size(), placements.size());
  for (size_t i = 0; i < placements.size(); ++i) {
    const ExpertPlacement &now = in_force_[i], &then = placements[i];
    if (then.num_experts() != now.num_experts() || then.ep() != now.ep() || then.num_slots() != now.num_slots())
      throw invalid_input("placement of sparse layer {}: expected {} experts in {} slots of {} ranks, found {} in {} of {}; make it for this layout", i, now.num_experts(),
                          now.num_slots(), now.ep(), then.num_experts(), then.num_slots(), then.ep());
  }
  requested_ = std::move(placements);
}

void Balancer::after_step() {
  const int64_t ended_us = options_.clock->now_us(), step_us = ended_us - step_began_us_;
  usual_step_us_ = usual_step_us_ == 0 ? static_cast<double>(step_us) : 0.9 * usual_step_us_ + 0.1 * static_cast<double>(std::min<int64_t>(step_us, static_cast<int64_t>(2 * usual_step_us_) + 1));
  window_.end_step();
  int64_t num_steps;
  {
    const std::lock_guard lock(mutex_);
    num_steps = ++stats_.num_steps;
  }
  if (num_steps % kStepsBetweenReports == 0) exchange_reports();
  if (!is_moving_ && options_.interval_steps > 0 && num_steps % options_.interval_steps == 0) begin();
  const bool was_moving = is_moving_;
  if (was_moving) {
    for (int64_t i = 0; is_moving_ && i < options_.layers_per_step; ++i)
      if (!move_some()) break;
    const std::lock_guard lock(mutex_);
    const int64_t stall_us = options_.clock->now_us() - ended_us;
    stats_.stall_us += stall_us;
    stats_.stall_seconds.add(static_cast<double>(stall_us) * 1e-6);
    stats_.stall_share.add(static_cast<double>(stall_us) / std::max(usual_step_us_, 1.0));
  }
  step_began_us_ = options_.clock->now_us();
  if (options_.on_step && groups_.coords.world == 0) options_.on_step({step_us, step_began_us_ - ended_us, was_moving});
}

void Balancer::exchange_reports() {
  struct Report {
    int64_t pairs, compute_us, combine_us, is_by_hand;
  };
  Report own{exchange_work_.pairs, exchange_work_.compute_us, exchange_work_.combine_us, 0};
  exchange_work_.pairs = exchange_work_.compute_us = exchange_work_.combine_us = 0;
  if (groups_.coords.world == 0 && !is_moving_) {
    const std::lock_guard lock(mutex_);
    by_hand_ = std::exchange(requested_, {});
    own.is_by_hand = !by_hand_.empty();
  }
  std::vector<Report> all(static_cast<size_t>(groups_.layout.world));
  groups_.world->all_gather_value({Traffic::kOther, -1}, own, std::span(all));
  if (!is_moving_) {
    is_moving_ = is_by_hand_ = all[0].is_by_hand != 0;
    next_layer_ = 0;
  }
  const int64_t least_us = std::min_element(all.begin(), all.end(), [](const Report& a, const Report& b) { return a.combine_us < b.combine_us; })->combine_us;
  int64_t most = 0, sum = 0, compute_us = 0;
  const std::lock_guard lock(mutex_);
  for (size_t r = 0; r < all.size(); ++r) {
    stats_.rows_of_rank[r] += all[r].pairs;
    stats_.waited_us_of_rank[r] += all[r].combine_us - least_us;
    most = std::max(most, all[r].pairs), sum += all[r].pairs, compute_us += all[r].compute_us;
  }
  if (most == 0) return;
  const double us_per_row = static_cast<double>(compute_us) / static_cast<double>(sum);
  us_per_row_ = us_per_row_ == 0 ? us_per_row : 0.9 * us_per_row_ + 0.1 * us_per_row;
  stats_.balancedness_by_rows.add(static_cast<double>(sum) / static_cast<double>(all.size()) / static_cast<double>(most));
}

std::vector<int64_t> Balancer::world_load() {
  const auto own = window_.sums();
  std::vector<int64_t> all(own.size() * static_cast<size_t>(groups_.layout.world)), sum(own.size());
  std::vector<RecvPart> parts;
  const int64_t bytes = static_cast<int64_t>(own.size_bytes());
  for (int r = 0; r < groups_.layout.world; ++r) parts.push_back({reinterpret_cast<std::byte*>(all.data() + static_cast<size_t>(r) * own.size()), bytes});
  groups_.world->all_gather({Traffic::kOther, -1}, {reinterpret_cast<const std::byte*>(own.data()), bytes}, parts);
  for (size_t i = 0; i < all.size(); ++i) sum[i % own.size()] += all[i];
  return sum;
}

double Balancer::load_balancedness() const {
  Balancedness out;
  for (size_t i = 0; i < layers_.size(); ++i) out.add(rank_loads(layers_[i]->placement(), load_of(i)));
  return out.value();
}

// The time an expert's bytes take, as rows that the fullest rank would have to save in a window: rows it saves by the next plan
// are as many more as the interval is longer.
double Balancer::rows_per_move(size_t layer) const {
  if (!options_.prices_moves || us_per_byte_ == 0 || us_per_row_ == 0 || options_.interval_steps == 0) return 0;
  const double rows = us_per_byte_ * static_cast<double>(layers_[layer]->experts().layout().slot_bytes) / us_per_row_;
  return rows * static_cast<double>(window_.num_steps()) / static_cast<double>(options_.interval_steps);
}

// The end of an interval: what the load was, and whether to move.
void Balancer::begin() {
  load_ = world_load();
  const double balancedness = load_balancedness();
  {
    const std::lock_guard lock(mutex_);
    stats_.balancedness = balancedness;
  }
  is_moving_ = balancedness < options_.min_balancedness;
  next_layer_ = 0;
  say(fmt::format("expert balancedness {:.4f} over the last {} steps{}", balancedness, window_.num_steps(), is_moving_ ? "; rebalancing" : ""));
}

// The next piece of the layer under way, or the next layer. True when a layer has been dealt with and time is left.
bool Balancer::move_some() {
  const bool is_planner = groups_.coords.world == 0;
  Order order;
  std::vector<int32_t> slots(static_cast<size_t>(layers_[0]->placement().num_slots()));
  if (is_planner && !move_) {
    order.kind = next_layer_ == layers_.size() ? Order::kEnd : Order::kTarget;
    order.layer = static_cast<int64_t>(next_layer_);
    if (order.kind == Order::kTarget) {
      const MoeLayer& layer = *layers_[next_layer_];
      ExpertPlacement target = layer.placement();
      try {
        if (is_by_hand_) target = by_hand_[next_layer_];
        else target = options_.planner({order.layer, load_of(next_layer_), layer.placement(), rows_per_move(next_layer_)});
        CADRE_CHECK(target.num_slots() == layer.placement().num_slots(), "a plan of {} slots for {}", target.num_slots(), layer.placement().num_slots());
      } catch (const std::exception& e) {
        target = layer.placement();
        say(fmt::format("sparse layer {} keeps its placement: {}", next_layer_, e.what()));
        const std::lock_guard lock(mutex_);
        ++stats_.num_refused;
      }
      std::copy(target.slot_to_expert().begin(), target.slot_to_expert().end(), slots.begin());
    }
  }
  if (!move_) {
    // Kind and target in one message.
    std::vector<std::byte> message(sizeof(Order) + slots.size() * 4);
    std::memcpy(message.data(), &order, sizeof(Order));
    std::memcpy(message.data() + sizeof(Order), slots.data(), slots.size() * 4);
    groups_.world->broadcast({Traffic::kOther, -1}, 0, message);
    std::memcpy(&order, message.data(), sizeof(Order));
    std::memcpy(slots.data(), message.data() + sizeof(Order), slots.size() * 4);
    if (order.kind == Order::kEnd) {
      end();
      return false;
    }
    set_target(static_cast<size_t>(order.layer), slots);
    if (!move_) return true;  // as it was
  }
  if (is_planner) order.piece_bytes = piece_bytes();
  if (!move_->has_arrived()) {
    groups_.world->broadcast({Traffic::kOther, -1}, 0, std::as_writable_bytes(std::span(&order.piece_bytes, 1)));
    const int64_t before_us = options_.clock->now_us(), bytes = std::min(order.piece_bytes, move_->bytes_left_of_slot());
    move_->send_piece(*groups_.world, bytes);
    const double cost = static_cast<double>(options_.clock->now_us() - before_us) / static_cast<double>(std::max<int64_t>(1, bytes * move_->slots_of_busiest()));
    us_per_byte_ = us_per_byte_ == 0 ? cost : 0.8 * us_per_byte_ + 0.2 * cost;
    const std::lock_guard lock(mutex_);
    stats_.moved_bytes += bytes * move_->num_transfers();
  }
  if (!move_->has_arrived()) return false;
  finish_layer();
  return true;
}

void Balancer::set_target(size_t layer, std::span<const int32_t> slots) {
  MoeLayer& moe = *layers_[layer];
  const ExpertPlacement& now = moe.placement();
  next_layer_ = layer;
  if (std::equal(slots.begin(), slots.end(), now.slot_to_expert().begin())) {
    ++next_layer_;
    return;
  }
  // Rank 0's placement was valid, and all have the same.
  ExpertPlacement target(num_experts_, now.ep(), {slots.begin(), slots.end()});
  move_.emplace(groups_.layout, groups_.coords.world, now, std::move(target), moe.experts(), spares_.at(moe.experts().layout().slot_bytes), options_.ranks_per_node);
}

// Of each slot, as much as the step has time for.
int64_t Balancer::piece_bytes() const {
  const int64_t whole = move_->bytes_left_of_slot();
  if (us_per_byte_ == 0) return std::min(whole, kSmallestPiece);
  const double bytes = options_.move_share * usual_step_us_ / us_per_byte_ / static_cast<double>(std::max<int64_t>(1, move_->slots_of_busiest()));
  return bytes >= static_cast<double>(whole) ? whole : std::max(kSmallestPiece, static_cast<int64_t>(bytes));
}

void Balancer::finish_layer() {
  move_->switch_over();
  layers_[next_layer_]->set_placement(move_->target());
  const std::lock_guard lock(mutex_);
  in_force_[next_layer_] = move_->target();
  stats_.moved_slots += move_->num_transfers();
  ++stats_.num_layers_switched;
  ++stats_.generation;
  move_.reset();
  ++next_layer_;
}

void Balancer::end() {
  const bool was_by_hand = std::exchange(is_by_hand_, false);
  is_moving_ = false;
  const double rebalanced = was_by_hand ? 0 : load_balancedness();
  const std::lock_guard lock(mutex_);
  ++stats_.num_rebalances;
  if (!was_by_hand) stats_.rebalanced = rebalanced;
  say(fmt::format("experts rebalanced{}: {} slots and {} bytes moved in all so far, placement generation {}",
                  was_by_hand ? " by hand" : fmt::format(", balancedness of that load {:.4f} -> {:.4f}", stats_.balancedness, rebalanced), stats_.moved_slots, stats_.moved_bytes, stats_.generation));
}

}  // namespace cadre::eplb
