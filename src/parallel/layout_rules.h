// Which options go together: one table that resolve_layout walks from top to bottom. A rule may count on what the
// refusals above it hold for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "parallel/options.h"

namespace cadre {

// What the options come to, before anybody has said that they may.
struct LayoutDraft {
  const ParallelOptions& options;
  const ModelConfig& config;
  DType kv_dtype = DType::kF32;
  Layout layout;
  int64_t asked_world = 1;  // uncapped
  const ExchangeName* exchange = nullptr;  // null: not written, or unknown
  bool wants_ep = false;    // --enable-expert-parallel, or --ep-size above 1

  LayoutDraft(const ParallelOptions& options, const ModelConfig& config, DType kv_dtype);

  bool is_vllm() const;
  // The written option that a quantity comes from, by the spelling in use.
  std::string_view world_flag() const;
  std::string_view attn_tp_flag() const;
  std::string_view ep_flag() const;
  std::string_view exchange_flag() const;
  std::string_view dense_tp_flag() const;
  const std::optional<std::string>& exchange_text() const;
  bool has_experts() const { return config.moe.router.num_experts > 0; }
  bool has_dense_layers() const;
};

struct LayoutFinding {
  std::string_view flag;  // empty: nothing to say
  std::string what;
};

struct LayoutRule {
  enum class Effect : uint8_t { kRefusal, kNote };
  std::string_view name;
  Effect effect;
  std::string_view reason;  // and what to do; may be empty for notes
  LayoutFinding (*find)(const LayoutDraft&);
};
std::span<const LayoutRule> layout_rules();

}  // namespace cadre
