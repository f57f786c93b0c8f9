#include "host/checks.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "host/capacity.h"
#include "host/ucx_probe.h"
#include "tests/testing.h"

namespace cadre {
namespace {

const Finding& find(const std::vector<Finding>& findings, std::string_view name) {
  for (const Finding& finding : findings)
    if (finding.name == name) return finding;
  throw std::runtime_error("no finding " + std::string(name));
}

CpuFacts usual_cpu() {
  return {.model = "P",
          .features = {"avx2", "fma"},
          .logical = 8,
          .cores = 8,
          .sockets = 1,
          .usable = 8,
          .quota = {},
          .governor = {},
          .clock_source = "tsc"};
}

MemoryFacts usual_memory() {
  MemoryFacts memory;
  memory.total_bytes = int64_t{64} << 30;
  memory.available_bytes = int64_t{60} << 30;
  memory.transparent_huge_pages = "madvise";
  return memory;
}

void expect_advice(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    EXPECT_FALSE(finding.section.empty() || finding.name.empty() || finding.text.empty()) << finding.name;
    EXPECT_EQ(finding.advice.empty(), finding.status == FindingStatus::kOk) << finding.name << ": " << finding.advice;
  }
}

TEST(Checks, AUsualMachineIsFine) {
  for (const auto& findings : {check_processors(usual_cpu(), "AVX2"), check_memory(usual_memory()),
                               check_numa({{.id = 0, .cpus = {0}, .total_bytes = 1}})}) {
    EXPECT_EQ(worst(findings), FindingStatus::kOk) << findings_text(findings);
    expect_advice(findings);
  }
}

TEST(Checks, QuotaAndThreadsAreToldWithTheFlag) {
  CpuFacts cpu = usual_cpu();
  cpu.quota = 2.5;
  EXPECT_NE(find(check_processors(cpu, "AVX2"), "cores").advice.find("--threads 2"), std::string::npos);
  cpu.quota = 0.5;
  EXPECT_NE(find(check_processors(cpu, "AVX2"), "cores").advice.find("--threads 1"), std::string::npos);
  cpu.quota.reset();
  cpu.cores = 4;
  EXPECT_NE(find(check_processors(cpu, "AVX2"), "cores").advice.find("--threads 4"), std::string::npos);
  EXPECT_EQ(find(check_processors(cpu, "SSSE3"), "vector instructions").status, FindingStatus::kNote);
  cpu.governor = "powersave";
  EXPECT_EQ(find(check_processors(cpu, "AVX2"), "frequency").status, FindingStatus::kNote);
}

TEST(Checks, MemoryThatIsShortOrBoundedIsSaid) {
  MemoryFacts memory = usual_memory();
  memory.available_bytes = int64_t{100} << 20;
  EXPECT_EQ(find(check_memory(memory), "memory").status, FindingStatus::kProblem);
  memory = usual_memory();
  memory.container_limit_bytes = int64_t{8} << 30;
  EXPECT_EQ(find(check_memory(memory), "memory").status, FindingStatus::kOk);
  EXPECT_EQ(find(check_memory(memory), "memory").values.at("usable_bytes").as_int64(), int64_t{8} << 30);
  memory = usual_memory();
  memory.transparent_huge_pages = "never";
  EXPECT_EQ(find(check_memory(memory), "huge pages").status, FindingStatus::kNote);
  memory.swap_total_bytes = 100, memory.swap_free_bytes = 50;
  EXPECT_EQ(find(check_memory(memory), "swap").status, FindingStatus::kNote);
  expect_advice(check_memory(memory));
  expect_advice(check_memory({}));
}

TEST(Checks, LimitsMatterByWhatTheMachineHas) {
  HostFacts facts;
  facts.limits.open_files = Limit{1024, 1048576};
  facts.limits.locked_bytes = Limit{int64_t{8} << 20, int64_t{8} << 20};
  EXPECT_EQ(find(check_limits(facts), "open files").status, FindingStatus::kNote);
  EXPECT_EQ(find(check_limits(facts), "locked memory").status, FindingStatus::kOk);
  facts.rdma.push_back({"mlx5_0:1", "4: ACTIVE", "400", true});
  EXPECT_EQ(find(check_limits(facts), "locked memory").status, FindingStatus::kProblem);
  facts.limits.locked_bytes = Limit{};
  EXPECT_EQ(find(check_limits(facts), "locked memory").status, FindingStatus::kOk);
  facts.limits.open_files = Limit{64, 64};
  EXPECT_EQ(find(check_limits(facts), "open files").status, FindingStatus::kProblem);
  expect_advice(check_limits(facts));
  expect_advice(check_networks(facts));
}

TEST(Checks, GpusOnlyWhereADriverIs) {
  HostFacts facts;
  GpuMeasured measured{.cuda_error = "no libcuda.so.1",
                       .nvml_error = "no libnvidia-ml.so.1",
                       .nccl_error = "no libnccl.so.2",
                       .cuda_version = {},
                       .driver_version = {},
                       .nccl_version = {},
                       .gpus = {}};
  EXPECT_EQ(worst(check_gpus(facts, measured, false)), FindingStatus::kNote);
  facts.nvidia_driver = "535.1";
  const auto broken = check_gpus(facts, measured, false);
  EXPECT_EQ(find(broken, "driver").status, FindingStatus::kProblem);
  expect_advice(broken);
  measured = {.cuda_error = {},
              .nvml_error = {},
              .nccl_error = {},
              .cuda_version = "12.4",
              .driver_version = "550.1",
              .nccl_version = "2.20.5",
              .gpus = {{"H100", int64_t{80} << 30, 18}}};
  const auto fine = check_gpus(facts, measured, true);
  EXPECT_EQ(worst(fine), FindingStatus::kOk) << findings_text(fine);
  EXPECT_NE(find(fine, "GPU 0").text.find("18 NVLinks"), std::string::npos);
  EXPECT_EQ(find(check_gpus(facts, measured, false), "this build").status, FindingStatus::kNote);
}

TEST(Checks, ATakenPortIsAProblemWhereItWasAskedFor) {
  PortMeasured port{
      .port = 8000, .is_free = false, .is_asked_for = false, .why_not = "Address already in use", .next_free = 8002};
  EXPECT_EQ(check_ports({}, port)[0].status, FindingStatus::kNote);
  EXPECT_NE(check_ports({}, port)[0].advice.find("--port 8002"), std::string::npos);
  port.is_asked_for = true;
  EXPECT_EQ(check_ports({}, port)[0].status, FindingStatus::kProblem);
  port.is_free = true;
  EXPECT_EQ(check_ports({}, port)[0].status, FindingStatus::kOk);
}

TEST(Checks, UcxAnswersTravelAsALine) {
  const UcxMeasured measured{.error = {},
                             .version = "1.13.1",
                             .transports = {"tcp/lo", "tcp/eth0"},
                             .exchange_us = 21.5,
                             .bytes_per_s = 1.5e9};
  const UcxMeasured back = ucx_measured_of(to_line(measured));
  EXPECT_EQ(back.version, measured.version);
  EXPECT_EQ(back.transports, measured.transports);
  EXPECT_EQ(back.exchange_us, measured.exchange_us);
  EXPECT_EQ(back.bytes_per_s, measured.bytes_per_s);
  EXPECT_EQ(worst(check_ucx(back)), FindingStatus::kOk);
  for (const char* line : {"", "{}", "[1]", "no json", "{\"error\": 3}"}) {
    EXPECT_FALSE(ucx_measured_of(line).error.empty()) << line;
    EXPECT_EQ(worst(check_ucx(ucx_measured_of(line))), FindingStatus::kNote);
  }
  EXPECT_EQ(parse_ucx_resources("#   resource 0  :  md 0  dev 0  flags -- self/memory\n# resource 1 : md 1 dev 1 flags "
                                "-- tcp/lo\n#  memory domains\n# resource 2 : md 1 dev 2 flags -- tcp/eth0\n"),
            (std::vector<std::string>{"tcp/lo", "tcp/eth0"}));
}

TEST(Findings, TextAndJsonSayTheSame) {
  const std::vector<Finding> findings{
      {.section = "a", .name = "x", .text = "fine", .advice = {}, .values = {{"bytes", 3}}},
      {.section = "a",
       .name = "yy",
       .status = FindingStatus::kNote,
       .text = "so so",
       .advice = "do this",
       .values = {}},
      {.section = "b",
       .name = "z",
       .status = FindingStatus::kProblem,
       .text = "bad",
       .advice = "do that",
       .values = {}}};
  EXPECT_EQ(findings_text(findings),
            "a\n  ok       x   fine\n  note     yy  so so\n               -> do this\n\nb\n  problem  z   bad\n        "
            "       -> do that\n\n1 problem, 1 note\n");
  const json::object report = findings_json(findings);
  EXPECT_EQ(report.at("status").as_string(), "problem");
  EXPECT_EQ(report.at("problems").as_int64(), 1);
  EXPECT_EQ(report.at("findings").as_array().size(), 3u);
  EXPECT_EQ(report.at("findings").as_array()[0].at("values").at("bytes").as_int64(), 3);
  EXPECT_EQ(worst({}), FindingStatus::kOk);
}

TEST(Findings, Numbers) {
  EXPECT_EQ(grouped_text(0), "0");
  EXPECT_EQ(grouped_text(999), "999");
  EXPECT_EQ(grouped_text(1234567), "1,234,567");
  EXPECT_EQ(grouped_text(-123456), "-123,456");
  EXPECT_EQ(gib_text(int64_t{3} << 29), "1.5 GiB");
}

ModelConfig demo() { return load_model_config(testing::source_dir() / "models" / "demo"); }

TEST(Capacity, ByTheEnginesOwnBytes) {
  const ModelConfig config = demo();
  const auto findings =
      check_capacity(config, {.usable_bytes = int64_t{8} << 30, .read_bytes_per_s = 10e9, .fma_flops_per_s = 100e9});
  EXPECT_EQ(worst(findings), FindingStatus::kOk) << findings_text(findings);
  EXPECT_EQ(find(findings, "KV cache").values.at("bytes_per_token").as_int64(), 1920);  // docs/measuring.md
  const DecodeStep one = decode_step(config, 1920, 1, 0), many = decode_step(config, 1920, 32, 0),
                   deep = decode_step(config, 1920, 1, 1000);
  EXPECT_NEAR(find(findings, "decode limit").values.at("tokens_per_s_one").as_double(), 10e9 / one.bytes,
              1e-6 * 10e9 / one.bytes);
  EXPECT_GT(many.bytes, one.bytes);
  EXPECT_LT(many.bytes, 32 * one.bytes);
  EXPECT_DOUBLE_EQ(many.flops, 32 * one.flops);
  EXPECT_DOUBLE_EQ(deep.bytes - one.bytes, 1920e3);
}

TEST(Capacity, WhatDoesNotFitIsSaidWithWhatIsMissing) {
  const ModelConfig config = demo();
  const auto none = check_capacity(config, {.usable_bytes = 1 << 20});
  EXPECT_EQ(find(none, "weights").status, FindingStatus::kProblem);
  EXPECT_NE(find(none, "weights").advice.find("short"), std::string::npos);
  // The weights fit, and little more: the cache takes what they leave.
  const int64_t fixed = find(none, "weights").values.at("fixed_bytes").as_int64();
  const auto tight = check_capacity(config, {.usable_bytes = fixed + (1 << 20)});
  EXPECT_EQ(find(tight, "KV cache").status, FindingStatus::kNote) << findings_text(tight);
  EXPECT_LE(find(tight, "KV cache").values.at("bytes").as_int64(), 1 << 20);
  EXPECT_EQ(find(check_capacity(config, {.usable_bytes = fixed + 1000}), "KV cache").status, FindingStatus::kProblem);
  expect_advice(none);
  expect_advice(tight);
  EXPECT_THROW(find(none, "decode limit"), std::runtime_error);  // nothing was measured
}

}  // namespace
}  // namespace cadre
