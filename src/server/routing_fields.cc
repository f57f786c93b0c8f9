#include "server/routing_fields.h"

#include <charconv>
#include <limits>

#include "base/error.h"

namespace cadre {
namespace {

constexpr const char* kRankField = "data_parallel_rank";

Error refusal(std::string message, const char* param) { return Error(ErrorKind::kInvalidInput, std::move(message), param); }

int64_t rank_of_text(const std::string& text, int num_ranks) {
  int64_t rank = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || rank < 0 || rank >= num_ranks)
    throw refusal(fmt::format("{}: expected a data-parallel rank of this server, an integer from 0 to {}, found {}; correct it or leave it out", kRankHeader,
                              num_ranks - 1, cadre::quoted(text)),
                  kRankField);
  return rank;
}

}  // namespace

RoutingWish read_routing_wish(const JsonObject& body, const HttpHeaders& headers, int num_ranks) {
  RoutingWish wish;
  wish.rank = body.maybe_integer(kRankField, 0, num_ranks - 1);
  wish.room = body.maybe_integer("bootstrap_room", 0, std::numeric_limits<int64_t>::max());
  for (const auto& [name, value] : headers) {
    if (name != "x-data-parallel-rank" || value.empty()) continue;
    const int64_t rank = rank_of_text(value, num_ranks);
    if (wish.rank && *wish.rank != rank)
      throw refusal(fmt::format("expected one data-parallel rank in '{}' and {}, found {} and {}; leave one out", kRankField, kRankHeader, *wish.rank, rank), kRankField);
    wish.rank = rank;
  }
  return wish;
}

}  // namespace cadre
