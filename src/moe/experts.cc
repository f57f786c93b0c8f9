#include "moe/experts.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "kernels/int_rows.h"

namespace cadre {
namespace {

// Rows of one expert handled by a task at a time: bounds the per-thread scratch.
constexpr int64_t kRowsAtOnce = 64;

static_assert(kRowsAtOnce * kPanelColumns == kGatedScratchFloats);


// The first half of a gated MLP for one panel of 32 columns: h[:, panel] = act(gate x) * (up x). up_x: x as up takes it.
void gated_panel_into(const ExpertView& e, const GatedActivation& activation, int64_t panel, RowsIn x, RowsIn up_x, int64_t num_rows, RowsOut h, float* up_panel) {
  const int64_t n0 = panel * kPanelColumns, columns = std::min(kPanelColumns, e.gate.n() - n0);
  const int64_t quantised_stride = IntRowLayout(e.gate.layout.format, e.gate.k()).bytes;
  for (int64_t first = 0; first < num_rows; first += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, num_rows - first);
    const RowsOut out{h.base + first * h.stride, h.stride};
    gemm_panel(e.gate, panel, e.gate_bias, x.from(first, quantised_stride), rows, out);
    gemm_panel(e.up, panel, e.up_bias, up_x.from(first, quantised_stride), rows, {up_panel, kPanelColumns, n0});
    for (int64_t r = 0; r < rows; ++r) activation.apply(out.row(r) + n0, up_panel + r * kPanelColumns, columns, out.row(r) + n0);
  }
}

}  // namespace

void GatedActivation::apply(const float* gate, const float* up, int64_t n, float* h) const {
  if (kind == Activation::kSilu) silu_mul(gate, up, n, h);
  else gpt_oss_swiglu(gate, up, limit, n, h);
}

ExpertsWorkspace::ExpertsWorkspace(int64_t pairs, int64_t num_slots, int64_t hidden_size, int64_t intermediate, int num_threads)
    : max_pairs(pairs), hidden(hidden_size), first_row(static_cast<size_t>(num_slots + 1)), source_row(static_cast<size_t>(pairs)), row_of_pair(source_row.size()),
      h(static_cast<size_t>(pairs * intermediate)), partial(static_cast<size_t>(pairs * hidden_size)), per_thread(static_cast<size_t>(num_threads) * kGatedScratchFloats) {
  active.reserve(static_cast<size_t>(num_slots));
}

Experts::Experts(const ExpertLayout& layout, int64_t num_slots, GatedActivation activation)
    : layout_(layout), num_slots_(num_slots), activation_(activation),
      backend_(choose_experts_backend({layout.gate_up.format}, "auto").backend), memory_(static_cast<size_t>(layout.slot_bytes * num_slots)) {
  for (int64_t s = 0; s < num_slots; ++s) slots_.push_back(memory_.data() + s * layout.slot_bytes);
}

ExpertView Experts::expert(int64_t s) const {
  const std::byte* base = slot(s);
  ExpertView e{{layout_.gate_up, base}, {layout_.gate_up, base + layout_.up_offset}, {layout_.down, base + layout_.down_offset}};
  if (layout_.has_bias) {
    e.gate_bias = reinterpret_cast<const float*>(base + layout_.gate_bias_offset);
    e.up_bias = reinterpret_cast<const float*>(base + layout_.up_bias_offset);
    e.down_bias = reinterpret_cast<const float*>(base + layout_.down_bias_offset);
  }
  return e;
}

void Experts::group_rows(const ExpertPairs& pairs, ExpertsWorkspace& w) const {
  std::fill(w.first_row.begin(), w.first_row.end(), 0);
  for (const int32_t s : pairs.slot_of_pair) {
    CADRE_CHECK(s >= 0 && s < num_slots_, "slot {} of {}", s, num_slots_);
    ++w.first_row[static_cast<size_t>(s) + 1];
  }
  w.active.clear();
  for (int64_t s = 0; s < num_slots_; ++s) {
    if (w.first_row[static_cast<size_t>(s) + 1] > 0) w.active.push_back(static_cast<int32_t>(s));
    w.first_row[static_cast<size_t>(s) + 1] += w.first_row[static_cast<size_t>(s)];
  }
  // first_row[s] serves as the cursor of slot s and ends one slot further; shifting back restores it.
  for (size_t p = 0; p < pairs.slot_of_pair.size(); ++p) {
    const int32_t row = w.first_row[static_cast<size_t>(pairs.slot_of_pair[p])]++;
    w.row_of_pair[p] = row;
    w.source_row[static_cast<size_t>(row)] = pairs.row_of_pair[p];
  }
  for (int64_t s = num_slots_; s > 0; --s) w.first_row[static_cast<size_t>(s)] = w.first_row[static_cast<size_t>(s) - 1];
  w.first_row[0] = 0;
}

void Experts::compute_grouped(const ExpertPairs& pairs, ExpertsWorkspace& w, ThreadPool& pool) const {
  CADRE_CHECK(pairs.size() <= w.max_pairs, "{} pairs, room for {}", pairs.size(), w.max_pairs);
  const int64_t hidden = layout_.down.n, width = layout_.gate_up.n;
  group_rows(pairs, w);
  const int64_t num_active = static_cast<int64_t>(w.active.size());
  // Each row of x once, however many experts it goes to.
  const std::byte* x_quantised = nullptr;
  if (is_int(layout_.gate_up.format) && pairs.size() > 0)
    x_quantised = quantise_into_scratch(layout_.gate_up, pairs.x, hidden, *std::max_element(pairs.row_of_pair.begin(), pairs.row_of_pair.end()) + 1, pool);
  const auto first_row = [&](int64_t s) { return int64_t{w.first_row[static_cast<size_t>(s)]}; };

  const int64_t gate_panels = layout_.gate_up.num_panels();
  pool.parallel_for(num_active * gate_panels, [&](int64_t task, int thread) {
    const int64_t s = w.active[static_cast<size_t>(task / gate_panels)], row = first_row(s);
    const RowsIn x{pairs.x, hidden, w.source_row.data() + row, x_quantised};
    gated_panel_into(expert(s), activation_, task % gate_panels, x, x, first_row(s + 1) - row, {w.h.data() + row * width, width},
                     w.per_thread.data() + static_cast<size_t>(thread) * kGatedScratchFloats);
  });
  if (layout_.rounds_inputs) round_rows_to_fp8(w.h.data(), pairs.size(), width, w.h.data(), pool);
  const std::byte* h_quantised = is_int(layout_.down.format) ? quantise_into_scratch(layout_.down, w.h.data(), width, pairs.size(), pool) : nullptr;
  const int64_t h_stride = IntRowLayout(layout_.down.format, width).bytes;
  const int64_t down_panels = layout_.down.num_panels();
  pool.parallel_for(num_active * down_panels, [&](int64_t task, int) {
    const int64_t s = w.active[static_cast<size_t>(task / down_panels)], row = first_row(s);
    const ExpertView e = expert(s);
    gemm_panel(e.down, task % down_panels, e.down_bias, RowsIn{w.h.data(), width, nullptr, h_quantised}.from(row, h_stride), first_row(s + 1) - row, {w.partial.data() + row * hidden, hidden});
  });
}

void GatedMlp::forward(const SharedInput& x, int64_t num_rows, float* out, std::vector<float>& h, std::vector<float>& per_thread, ThreadPool& pool) const {
  const ExpertView e{gate.weight.view(), up.weight.view(), down.weight.view(), gate.bias_or_null(), up.bias_or_null(), down.bias_or_null()};
  const int64_t hidden = e.gate.k(), width = e.gate.n();
  const std::byte* quantised = is_int(e.gate.layout.format) && num_rows > 0 ? quantise_into_scratch(e.gate.layout, x.plain, hidden, num_rows, pool) : nullptr;
  pool.parallel_for(e.gate.layout.num_panels(), [&](int64_t panel, int thread) {
    gated_panel_into(e, activation, panel, {x.of(gate), hidden, nullptr, quantised}, {x.of(up), hidden, nullptr, quantised}, num_rows,
                     {h.data(), width}, per_thread.data() + static_cast<size_t>(thread) * kGatedScratchFloats);
  });
  down.round_and_apply(h.data(), num_rows, out, pool);
}

}  // namespace cadre
