#include "parallel/shard.h"

namespace cadre {

Shard shard_of(const Layout& layout, int world_rank) {
  const RankCoords c = layout.coords(world_rank);
  Shard out{{c.attn_tp, layout.attn_tp}, {c.dense_tp, layout.dense_tp}, {c.moe_tp, layout.moe_tp}, {}, c.ep};
  // With an exchange each rank runs the shared experts on its own rows; without one, rows are everywhere anyway.
  if (layout.ep == 1) out.shared = out.expert;
  return out;
}

AttentionConfig attention_part(const AttentionConfig& attention, const Part& heads) {
  AttentionConfig out = attention;
  out.num_heads = heads.of_total(attention.num_heads).count;
  out.num_kv_heads = attention.kind == AttentionKind::kMla ? out.num_heads : kv_head_slice(attention.num_kv_heads, heads.of, heads.index).count;
  return out;
}

}  // namespace cadre
