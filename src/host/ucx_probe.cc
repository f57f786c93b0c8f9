#include "host/ucx_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

#include "base/error.h"
#include "comm/group.h"
#include "comm/ucx/ucx_api.h"
#include "comm/ucx/ucx_world.h"
#include "host/system_files.h"

namespace cadre {
namespace {

constexpr int64_t kConnectTimeoutUs = 15'000'000, kExchangeTimeoutUs = 10'000'000;
constexpr int64_t kLargePartBytes = int64_t{4} << 20;

double median_us(int num_runs, const std::function<void()>& once) {
  std::vector<double> times;
  for (int i = 0; i < num_runs + num_runs / 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    once();
    if (i >= num_runs / 4)
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

std::vector<std::string> transports(const UcxApi& api) {
  ucp_config_t* config = nullptr;
  if (api.ucp_config_read(nullptr, nullptr, &config) != UCS_OK) return {};
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  const ucs_status_t status = api.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  api.ucp_config_release(config);
  if (status != UCS_OK) return {};
  char* text = nullptr;
  size_t bytes = 0;
  std::vector<std::string> out;
  if (FILE* stream = open_memstream(&text, &bytes)) {
    api.ucp_context_print_info(context, stream);
    std::fclose(stream);
    out = parse_ucx_resources(std::string(text, bytes));
    std::free(text);
  }
  api.ucp_cleanup(context);
  return out;
}

}  // namespace

UcxMeasured measure_ucx_pair(int rank, const StoreAddress& store) {
  UcxMeasured out;
  {
    const UcxApi api;
    unsigned major = 0, minor = 0, release = 0;
    api.ucp_get_version(&major, &minor, &release);
    out.version = fmt::format("{}.{}.{}", major, minor, release);
    if (rank == 0) out.transports = transports(api);
  }
  const auto world = make_ucx_world(rank, 2, store, {.connect_timeout_us = kConnectTimeoutUs});
  Group group("doctor", world->make_transport("doctor", {0, 1}));
  group.transport().set_timeout_us(kExchangeTimeoutUs);
  const int64_t mine = 1;
  std::vector<int64_t> theirs(2);
  out.exchange_us = median_us(2000, [&] { group.all_gather_value({}, mine, std::span<int64_t>(theirs)); });
  std::vector<std::byte> from(2 * kLargePartBytes), into(2 * kLargePartBytes);
  const std::vector<SendPart> send{{from.data(), kLargePartBytes}, {from.data() + kLargePartBytes, kLargePartBytes}};
  const std::vector<RecvPart> recv{{into.data(), kLargePartBytes}, {into.data() + kLargePartBytes, kLargePartBytes}};
  out.bytes_per_s =
      static_cast<double>(kLargePartBytes) * 1e6 / median_us(16, [&] { group.all_to_all({}, send, recv); });
  return out;
}

std::string to_line(const UcxMeasured& m) {
  return json::serialize(json::object{{"error", m.error},
                                      {"version", m.version},
                                      {"transports", json::value_from(m.transports)},
                                      {"exchange_us", m.exchange_us},
                                      {"bytes_per_s", m.bytes_per_s}});
}

UcxMeasured ucx_measured_of(const std::string& line) {
  UcxMeasured out;
  try {
    const json::value value = parse_json(line, "the probe's answer");
    if (!value.is_object()) throw invalid_input("expected an object");
    const JsonObject object(value.get_object(), "the probe's answer");
    out.error = object.string("error");
    out.version = object.string("version");
    out.exchange_us = object.number("exchange_us");
    out.bytes_per_s = object.number("bytes_per_s");
    if (const json::array* list = object.maybe_array("transports"))
      for (const json::value& item : *list)
        out.transports.emplace_back(item.is_string() ? std::string_view(item.get_string()) : std::string_view());
  } catch (const Error&) {
    out = {.error = "the two processes that measure gave no answer", .version = {}, .transports = {}};
  }
  return out;
}

std::vector<std::string> parse_ucx_resources(const std::string& text) {
  std::vector<std::string> out;
  for (const std::string_view line : lines_of(text)) {
    const auto words = words_of(line);
    if (std::find(words.begin(), words.end(), "resource") == words.end() || words.empty()) continue;
    const std::string name(words.back());
    if (name.find('/') == std::string::npos || name.starts_with("self/")) continue;
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  }
  return out;
}

}  // namespace cadre
