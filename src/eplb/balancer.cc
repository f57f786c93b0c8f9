#include "eplb/balancer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "parallel/expert_load.h"

namespace cadre::eplb {
namespace {

// Rank 0 tells whether placements were given by hand every so many steps.
constexpr int64_t kStepsBetweenOrders = 8;
constexpr int64_t kSmallestPiece = 64 << 10;

}  // namespace

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
  if (!is_moving_ && num_steps % kStepsBetweenOrders == 0) {
    Order order;
    if (groups_.coords.world == 0) {
      const std::lock_guard lock(mutex_);
      by_hand_ = std::exchange(requested_, {});
      if (!by_hand_.empty()) order.kind = Order::kByHand;
    }
    groups_.world->broadcast({Traffic::kOther, -1}, 0, std::as_writable_bytes(std::span(&order, 1)));
    is_moving_ = is_by_hand_ = order.kind == Order::kByHand;
    next_layer_ = 0;
  }
  if (!is_moving_ && options_.interval_steps > 0 && num_steps % options_.interval_steps == 0) begin();
  if (is_moving_) {
    for (int64_t i = 0; is_moving_ && i < options_.layers_per_step; ++i)
      if (!move_some()) break;
    const std::lock_guard lock(mutex_);
    stats_.stall_us += options_.clock->now_us() - ended_us;
  }
  step_began_us_ = options_.clock->now_us();
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

// The end of an interval: what the load was, and whether to move.
void Balancer::begin() {
  load_ = world_load();
  Balancedness balance;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto load = std::span(load_).subspan(i * static_cast<size_t>(num_experts_), static_cast<size_t>(num_experts_));
    balance.add(rank_loads(layers_[i]->placement(), load));
  }
  {
    const std::lock_guard lock(mutex_);
    stats_.balancedness = balance.value();
  }
  is_moving_ = balance.value() < options_.min_balancedness;
  next_layer_ = 0;
  say(fmt::format("expert balancedness {:.4f} over the last {} steps{}", balance.value(), window_.num_steps(), is_moving_ ? "; rebalancing" : ""));
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
        else target = options_.planner(order.layer, std::span(load_).subspan(next_layer_ * static_cast<size_t>(num_experts_), static_cast<size_t>(num_experts_)), target);
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
  is_moving_ = is_by_hand_ = false;
  BalancerStats now;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.num_rebalances;
    now = stats_;
  }
  say(fmt::format("experts rebalanced: {} slots and {} bytes moved in all so far, placement generation {}", now.moved_slots, now.moved_bytes, now.generation));
}

}  // namespace cadre::eplb
