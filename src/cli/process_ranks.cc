#include "cli/process_ranks.h"

#include <optional>

#include "base/error.h"
#include "comm/ucx/ucx_world.h"
#include "dp/frame_link.h"
#include "dp/rank_link.h"
#include "dp/wire.h"

namespace cadre::cli {
namespace {

constexpr int64_t kMeetTimeoutUs = 120'000'000;
constexpr const char* kFrontKey = "cadre/front";

// Rank 0 waits for the leaders of the other attention groups; each says which it is.
void accept_leaders(const Layout& layout, const std::string& host, StoreClient& store, ProcessRank* out) {
  FrameListener listener(host);
  store.set(kFrontKey, to_string({host, listener.port()}), kMeetTimeoutUs);
  out->leader_sockets.assign(static_cast<size_t>(layout.attn_dp - 1), -1);
  for (int i = 1; i < layout.attn_dp; ++i) {
    const int fd = listener.accept(kMeetTimeoutUs);
    const Frame hello = read_frame(fd, kMeetTimeoutUs);
    WireReader in(hello.bytes);
    const uint32_t version = in.get<uint32_t>();
    const int32_t dp_rank = in.get<int32_t>();
    if (hello.type != static_cast<uint8_t>(LinkFrame::kHello) || version != kWireVersion || dp_rank < 1 || dp_rank >= layout.attn_dp || out->leader_sockets[static_cast<size_t>(dp_rank - 1)] >= 0)
      throw Error(ErrorKind::kUnavailable, "expected each data-parallel rank to connect once, found a connection that is none of them; run the same build on all ranks");
    out->leader_sockets[static_cast<size_t>(dp_rank - 1)] = fd;
  }
}

int connect_to_front(int dp_rank, StoreClient& store) {
  const StoreAddress front = parse_store_address(store.get(kFrontKey, kMeetTimeoutUs));
  const int fd = connect_frames(front.host, front.port, kMeetTimeoutUs);
  WireWriter out;
  out.put(kWireVersion);
  out.put<int32_t>(dp_rank);
  write_frame(fd, {static_cast<uint8_t>(LinkFrame::kHello), out.take()});
  return fd;
}

}  // namespace

std::optional<LaunchEnv> launched_place() {
  std::optional<LaunchEnv> env = read_launch_env(process_environment());
  if (env && env->size == 1) env.reset();
  return env;
}

std::shared_ptr<ProcessRank> join_ranks(const LaunchEnv& env, const Layout& layout) {
  if (layout.world != env.size)
    throw invalid_input("expected as many ranks as the layout has, {}, found {} started by {}; start {} or change the layout's flags", layout.world, env.size, env.launcher, layout.world);
  if (!env.store || env.store->port == 0)
    throw invalid_input("expected to know where rank 0 serves the store, found that {} does not say; set CADRE_STORE=host:port for all ranks", env.launcher);
  // Cadre's launcher serves the store itself; else rank 0 does, while ranks meet.
  std::optional<StoreServer> server;
  if (env.rank == 0 && env.launcher != "cadre") server.emplace(*env.store);
  auto out = std::make_shared<ProcessRank>();
  out->comm = make_ucx_world(env.rank, env.size, *env.store);
  StoreClient store(*env.store);
  const RankCoords c = layout.coords(env.rank);
  if (env.rank == 0) accept_leaders(layout, env.store->host, store, out.get());
  else if (c.attn_tp == 0 && c.attn_cp == 0) out->front_socket = connect_to_front(c.attn_dp, store);
  // Nobody needs the store any more when all have come here.
  std::vector<int> all;
  for (int r = 0; r < layout.world; ++r) all.push_back(r);
  Group met("met", out->comm->make_transport("met", all));
  met.barrier();
  return out;
}

}  // namespace cadre::cli
