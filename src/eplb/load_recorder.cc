#include "eplb/load_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/error.h"

namespace cadre::eplb {
namespace {

// An order: mode in 2 bits, sample_every in 32, and which start it belongs to.
constexpr int64_t kModeBits = 2, kSampleBits = 32;
constexpr int64_t kMostSampleEvery = (int64_t{1} << kSampleBits) - 1;

RecorderMode mode_of(int64_t order) { return static_cast<RecorderMode>(order & ((1 << kModeBits) - 1)); }
int64_t sample_every_of(int64_t order) { return order >> kModeBits & kMostSampleEvery; }

// What a rank sends: how many rows, then [layers, experts] uint32 counts or [rows, layers, top_k] uint16 routes.
constexpr size_t kHeaderBytes = sizeof(int64_t);

template <typename T>
T value_at(std::span<const std::byte> data, size_t idx) {
  T out;
  std::memcpy(&out, data.data() + kHeaderBytes + idx * sizeof(T), sizeof(T));
  return out;
}

// [outer][inner] numbers as JSON, each from a callable.
template <typename At>
void put_table(std::string* out, size_t outer, size_t inner, At at) {
  for (size_t i = 0; i < outer; ++i) {
    *out += i == 0 ? "[[" : ",[";
    for (size_t j = 0; j < inner; ++j) fmt::format_to(std::back_inserter(*out), "{}{}", j == 0 ? "" : ",", at(i * inner + j));
    *out += ']';
  }
  *out += outer == 0 ? "[]" : "]";
}

}  // namespace

std::string_view name_of(RecorderMode mode) {
  switch (mode) {
    case RecorderMode::kStat: return "stat";
    case RecorderMode::kPerPass: return "per_pass";
    case RecorderMode::kPerToken: return "per_token";
  }
  return "?";
}

RecorderMode parse_recorder_mode(std::string_view name) {
  for (const RecorderMode mode : {RecorderMode::kStat, RecorderMode::kPerPass, RecorderMode::kPerToken})
    if (name == name_of(mode)) return mode;
  throw invalid_input("expected the mode stat, per_pass or per_token, found {}; give one of them", quoted(name));
}

LoadRecorder::LoadRecorder(RecorderOptions options, Group* world) : options_(std::move(options)), world_(world) {
  CADRE_CHECK(!options_.layers.empty() && options_.num_experts > 0 && options_.num_experts <= UINT16_MAX, "a recorder of {} layers and {} experts", options_.layers.size(), options_.num_experts);
  idx_of_layer_.assign(static_cast<size_t>(options_.layers.back() + 1), -1);
  for (size_t i = 0; i < options_.layers.size(); ++i) idx_of_layer_[static_cast<size_t>(options_.layers[i])] = static_cast<int64_t>(i);
  send_.resize(static_cast<size_t>(options_.world_size));
  recv_.resize(send_.size());
}

void LoadRecorder::start(RecorderMode mode, int64_t sample_every) {
  if (sample_every < 1 || sample_every > kMostSampleEvery) throw invalid_input("sample_every: expected 1 to {}, found {}; give the distance of recorded rows", kMostSampleEvery, sample_every);
  const std::lock_guard lock(mutex_);
  const int64_t started = (held_order_ >> (kModeBits + kSampleBits)) + 1;
  held_order_ = ((started << kSampleBits | sample_every) << kModeBits) | static_cast<int64_t>(mode);
  num_steps_ = bytes_ = 0;
  is_full_ = false;
  rows_of_rank_.assign(static_cast<size_t>(options_.world_size), 0);
  counts_.assign(rows_of_rank_.size() * num_counts(), 0);
  records_.clear();
  order_ = held_order_;
}

void LoadRecorder::stop() { order_ = 0; }

void LoadRecorder::begin_step(int64_t order) {
  if (order != step_order_) rows_before_ = 0;
  step_order_ = order;
  step_rows_ = 0;
  if (order == 0) return;
  message_.assign(kHeaderBytes + (mode_of(order) == RecorderMode::kPerToken ? 0 : num_counts() * sizeof(uint32_t)), std::byte{0});
}

void LoadRecorder::record(int64_t layer, std::span<const int32_t> ids) {
  const int64_t at = idx_of_layer_[static_cast<size_t>(layer)], rows = static_cast<int64_t>(ids.size()) / options_.top_k;
  if (mode_of(step_order_) != RecorderMode::kPerToken) {
    std::byte* counts = message_.data() + kHeaderBytes + static_cast<size_t>(at * options_.num_experts) * sizeof(uint32_t);
    for (const int32_t id : ids) {
      uint32_t count;
      std::memcpy(&count, counts + static_cast<size_t>(id) * sizeof(count), sizeof(count));
      ++count;
      std::memcpy(counts + static_cast<size_t>(id) * sizeof(count), &count, sizeof(count));
    }
    step_rows_ = rows;
    return;
  }
  // The rows whose number, counted over steps, is a multiple of sample_every.
  const int64_t every = sample_every_of(step_order_), first = (every - rows_before_ % every) % every;
  const int64_t sampled = rows > first ? (rows - first - 1) / every + 1 : 0;
  const int64_t row_ids = static_cast<int64_t>(options_.layers.size()) * options_.top_k;
  if (at == 0) {
    step_rows_ = rows;
    message_.resize(kHeaderBytes + static_cast<size_t>(sampled * row_ids) * sizeof(uint16_t));
  }
  for (int64_t s = 0; s < sampled; ++s)
    for (int64_t j = 0; j < options_.top_k; ++j) {
      const uint16_t id = static_cast<uint16_t>(ids[static_cast<size_t>((first + s * every) * options_.top_k + j)]);
      std::memcpy(message_.data() + kHeaderBytes + static_cast<size_t>(s * row_ids + at * options_.top_k + j) * sizeof(id), &id, sizeof(id));
    }
}

void LoadRecorder::end_step() {
  if (step_order_ == 0) return;
  const bool is_sampled = mode_of(step_order_) == RecorderMode::kPerToken;
  const int64_t row_bytes = static_cast<int64_t>(options_.layers.size()) * options_.top_k * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t held_rows = is_sampled ? (static_cast<int64_t>(message_.size() - kHeaderBytes)) / row_bytes : step_rows_;
  std::memcpy(message_.data(), &held_rows, sizeof(held_rows));
  rows_before_ += step_rows_;
  if (!world_) {
    take(0, message_);
  } else {
    std::fill(send_.begin(), send_.end(), SendPart{});
    send_[0] = {message_.data(), static_cast<int64_t>(message_.size())};
    const int64_t most = static_cast<int64_t>(kHeaderBytes) + (is_sampled ? options_.max_rows * row_bytes : static_cast<int64_t>(num_counts() * sizeof(uint32_t)));
    std::fill(recv_.begin(), recv_.end(), RecvPart{nullptr, options_.world_rank == 0 ? most : 0});
    world_->start({Traffic::kOther, -1}, send_, recv_);
    world_->finish([&](int source, std::span<const std::byte> data) {
      if (options_.world_rank == 0) take(source, data);
    });
  }
  if (options_.world_rank != 0) return;
  const std::lock_guard lock(mutex_);
  if (order_ != step_order_) return;
  ++num_steps_;
  if (bytes_ > options_.max_bytes) is_full_ = true, order_ = 0;
}

// On world rank 0. What belongs to a start that is over is forgotten.
void LoadRecorder::take(int source, std::span<const std::byte> data) {
  CADRE_CHECK(data.size() >= kHeaderBytes, "{} bytes of expert load from rank {}", data.size(), source);
  const std::lock_guard lock(mutex_);
  if (order_ != step_order_) return;
  int64_t rows;
  std::memcpy(&rows, data.data(), sizeof(rows));
  rows_of_rank_[static_cast<size_t>(source)] += rows;
  int64_t* counts = counts_.data() + static_cast<size_t>(source) * num_counts();
  if (mode_of(step_order_) == RecorderMode::kPerToken) {
    const size_t per_row = options_.layers.size() * static_cast<size_t>(options_.top_k), ids = static_cast<size_t>(rows) * per_row;
    for (size_t i = 0; i < ids; ++i) ++counts[index(static_cast<int64_t>(i % per_row) / options_.top_k, value_at<uint16_t>(data, i))];
  } else {
    for (size_t i = 0; i < num_counts(); ++i) counts[i] += value_at<uint32_t>(data, i);
  }
  if (mode_of(step_order_) == RecorderMode::kStat || rows == 0) return;
  records_.push_back({num_steps_, source, {data.begin(), data.end()}});
  bytes_ += static_cast<int64_t>(data.size() + sizeof(Record));
}

RecorderStatus LoadRecorder::status() const {
  const std::lock_guard lock(mutex_);
  RecorderStatus out{.is_recording = order_ != 0, .is_full = is_full_, .num_steps = num_steps_, .rows_of_rank = rows_of_rank_, .counts = std::vector<int64_t>(num_counts())};
  if (held_order_ != 0) out.mode = mode_of(held_order_), out.sample_every = sample_every_of(held_order_);
  for (size_t i = 0; i < counts_.size(); ++i) out.counts[i % num_counts()] += counts_[i];
  return out;
}

std::string LoadRecorder::dump() const {
  const std::lock_guard lock(mutex_);
  if (num_steps_ == 0) throw invalid_input("expected a record of expert load, found none; start the recorder and send requests first");
  const RecorderMode mode = mode_of(held_order_);
  const size_t layers = options_.layers.size(), experts = static_cast<size_t>(options_.num_experts), top_k = static_cast<size_t>(options_.top_k);
  std::string out = fmt::format(R"({{"format":"cadre.expert_load","version":1,"num_experts":{},"layers":[{}],"mode":"{}","ranks":{})", experts, fmt::join(options_.layers, ","), name_of(mode),
                                options_.world_size);
  out += mode == RecorderMode::kPerToken ? fmt::format(R"(,"sample_every":{}}})", sample_every_of(held_order_)) : "}";
  out += '\n';
  if (mode == RecorderMode::kStat)
    for (size_t r = 0; r < rows_of_rank_.size(); ++r) {
      if (rows_of_rank_[r] == 0) continue;
      out += fmt::format(R"({{"step":0,"steps":{},"rank":{},"counts":)", num_steps_, r);
      put_table(&out, layers, experts, [&](size_t i) { return counts_[r * num_counts() + i]; });
      out += "}\n";
    }
  for (const Record& record : records_) {
    out += fmt::format(R"({{"step":{},"rank":{},)", record.step, record.rank);
    if (mode == RecorderMode::kPerPass) {
      out += R"("counts":)";
      put_table(&out, layers, experts, [&](size_t i) { return value_at<uint32_t>(record.data, i); });
    } else {
      const size_t rows = (record.data.size() - kHeaderBytes) / (layers * top_k * sizeof(uint16_t));
      out += R"("routes":[)";
      for (size_t row = 0; row < rows; ++row) {
        if (row > 0) out += ',';
        put_table(&out, layers, top_k, [&](size_t i) { return value_at<uint16_t>(record.data, row * layers * top_k + i); });
      }
      out += ']';
    }
    out += "}\n";
  }
  return out;
}

}  // namespace cadre::eplb
