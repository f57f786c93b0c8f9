#include "host/facts.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "host/fixture_tree.h"

namespace cadre {
namespace {

std::string processor(int id, int socket, int core) {
  return "processor\t: " + std::to_string(id) +
         "\nmodel name\t: Some Processor 9000 @ 2.0GHz\nphysical id\t: " + std::to_string(socket) +
         "\ncore id\t\t: " + std::to_string(core) + "\nflags\t\t: fpu ssse3 fma avx2 avx512f\n\n";
}

TEST(SystemFiles, ListsOfProcessors) {
  EXPECT_EQ(parse_cpu_list("0-3,8\n"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("5"), (std::vector<int>{5}));
  EXPECT_TRUE(parse_cpu_list("").empty());
  EXPECT_TRUE(parse_cpu_list("none").empty());
  EXPECT_EQ(parse_cpu_list("0-1,3-2,7"), (std::vector<int>{0, 1}));
  EXPECT_TRUE(parse_cpu_list("-4").empty());
  EXPECT_TRUE(parse_cpu_list("0-2000000000").empty());
  EXPECT_TRUE(parse_cpu_list("0-99999999999999999999").empty());
}

TEST(SystemFiles, WhatIsNotThereIsNotThere) {
  FixtureTree tree;
  tree.write("/proc/a", "12 monkeys\n").write("/proc/b", "").write("/proc/c", "99999999999999999999");
  const SystemFiles files = tree.files();
  EXPECT_EQ(files.number("/proc/a"), 12);
  EXPECT_FALSE(files.number("/proc/b"));
  EXPECT_FALSE(files.number("/proc/c"));
  EXPECT_FALSE(files.number("/proc/d"));
  EXPECT_FALSE(files.text("/proc/d"));
  EXPECT_FALSE(files.text("/proc"));  // a folder
  EXPECT_TRUE(files.list("/sys").empty());
  EXPECT_EQ(files.list("/proc"), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(SystemFiles, ValuesByKeyAreWholeKeys) {
  const std::string text = "MemTotalX: 1\nMemTotal:   24 kB\nCpus_allowed_list:\t0-1\n";
  EXPECT_EQ(value_of(text, "MemTotal"), "24 kB");
  EXPECT_EQ(value_of(text, "Cpus_allowed_list"), "0-1");
  EXPECT_FALSE(value_of(text, "Mem"));
}

TEST(Facts, CountsCoresAndSockets) {
  FixtureTree tree;
  std::string info;
  for (int id = 0; id < 8; ++id) info += processor(id, id % 4 / 2, id % 2);  // two sockets of two cores of two threads
  tree.write("/proc/cpuinfo", info)
      .write("/sys/devices/system/cpu/online", "0-7\n")
      .write("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\n");
  for (int id = 0; id < 8; ++id) {
    const std::string at = "/sys/devices/system/cpu/cpu" + std::to_string(id) + "/cache/index";
    tree.write(at + "0/level", "1")
        .write(at + "0/type", "Data")
        .write(at + "0/size", "48K")
        .write(at + "0/shared_cpu_list", std::to_string(id));
    tree.write(at + "3/level", "3")
        .write(at + "3/type", "Unified")
        .write(at + "3/size", "32768K")
        .write(at + "3/shared_cpu_list", id % 4 < 2 ? "0-1,4-5" : "2-3,6-7");
  }
  const CpuFacts cpu = read_cpu(tree.files());
  EXPECT_EQ(cpu.logical, 8);
  EXPECT_EQ(cpu.cores, 4);
  EXPECT_EQ(cpu.sockets, 2);
  EXPECT_EQ(cpu.usable, 4);
  EXPECT_EQ(cpu.model, "Some Processor 9000 @ 2.0GHz");
  EXPECT_TRUE(cpu.features.contains("avx512f"));
  EXPECT_EQ(cpu.last_level_cache_bytes, int64_t{64} << 20);
  EXPECT_FALSE(cpu.quota);
}

TEST(Facts, AContainersLimitsAreTheTightestOfItsGroups) {
  FixtureTree tree;
  tree.write("/proc/self/cgroup", "0::/kube/pod\n")
      .write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\n");
  tree.write("/sys/fs/cgroup/kube/pod/cpu.max", "max 100000\n")
      .write("/sys/fs/cgroup/kube/cpu.max", "250000 100000\n")
      .write("/sys/fs/cgroup/cpu.max", "800000 100000\n");
  tree.write("/sys/fs/cgroup/kube/pod/memory.max", "max\n")
      .write("/sys/fs/cgroup/kube/memory.max", "8589934592\n")
      .write("/sys/fs/cgroup/kube/memory.current", "1073741824\n");
  EXPECT_EQ(read_cpu(tree.files()).quota, 2.5);
  const MemoryFacts memory = read_memory(tree.files());
  EXPECT_EQ(memory.container_limit_bytes, int64_t{8} << 30);
  EXPECT_EQ(memory.usable_bytes(), int64_t{7} << 30);
}

TEST(Facts, VersionOneGroupsCountToo) {
  FixtureTree tree;
  tree.write("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/job\n1:cpu,cpuacct:/job\nbroken\n")
      .write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\n");
  tree.write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "150000")
      .write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  tree.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712");  // as much as to say: none
  EXPECT_EQ(read_cpu(tree.files()).quota, 1.5);
  EXPECT_FALSE(read_memory(tree.files()).container_limit_bytes);
  EXPECT_EQ(read_memory(tree.files()).usable_bytes(), int64_t{48} << 30);
}

TEST(Facts, MemoryPagesAndNodes) {
  FixtureTree tree;
  tree.write("/proc/meminfo",
             "MemTotal:  2048 kB\nMemAvailable:  1024 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\nHugePages_Total:  "
             "3\nHugepagesize:  2048 kB\n");
  tree.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
      .write("/proc/sys/vm/overcommit_memory", "2\n");
  tree.write("/sys/devices/system/node/node1/cpulist", "4-7\n")
      .write("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  2048 kB\nNode 1 MemFree:  1024 kB\n");
  tree.write("/sys/devices/system/node/node0/cpulist", "0-3\n").write("/sys/devices/system/node/online", "0-1\n");
  const MemoryFacts memory = read_memory(tree.files());
  EXPECT_EQ(memory.total_bytes, 2 << 20);
  EXPECT_EQ(memory.transparent_huge_pages, "madvise");
  EXPECT_EQ(memory.reserved_huge_pages, 3);
  EXPECT_EQ(memory.huge_page_bytes, 2 << 20);
  EXPECT_EQ(memory.swap_total_bytes - memory.swap_free_bytes, 60 << 10);
  EXPECT_EQ(memory.overcommit, 2);
  const auto nodes = read_numa(tree.files());
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].id, 0);
  EXPECT_EQ(nodes[1].cpus, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(nodes[1].total_bytes, 2 << 20);
  EXPECT_EQ(nodes[1].free_bytes, 1 << 20);
}

TEST(Facts, Limits) {
  const LimitFacts limits = parse_limits(
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max processes             96365                96365                processes \n"
      "Max open files            1024                 1048576              files     \n"
      "Max locked memory         unlimited            unlimited            bytes     \n");
  ASSERT_TRUE(limits.open_files && limits.locked_bytes && limits.processes);
  EXPECT_EQ(limits.open_files->soft, 1024);
  EXPECT_EQ(limits.open_files->hard, 1048576);
  EXPECT_FALSE(limits.locked_bytes->soft);
  EXPECT_FALSE(limits.address_bytes);
}

TEST(Facts, DriverDevicesNetworksAndPorts) {
  FixtureTree tree;
  tree.write(
      "/proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Mon Feb  5 12:00:00 UTC 2024\nGCC version: 12\n");
  tree.write("/proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: \t\t Some GPU 80GB\nIRQ: 1\n");
  tree.write("/sys/class/net/lo/operstate", "unknown")
      .write("/sys/class/net/eth0/operstate", "up\n")
      .write("/sys/class/net/eth0/speed", "100000\n");
  tree.write("/sys/class/net/eth1/operstate", "down\n")
      .write("/sys/class/net/eth1/speed", "-1\n")
      .write("/sys/class/net/bonding_masters", "");
  tree.write("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
      .write("/sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  tree.write("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
  const HostFacts facts = read_host_facts(tree.files());
  EXPECT_EQ(facts.nvidia_driver, "535.161.08");
  EXPECT_EQ(facts.nvidia_devices, (std::vector<std::string>{"Some GPU 80GB"}));
  ASSERT_EQ(facts.networks.size(), 2u);
  EXPECT_TRUE(facts.networks[0].is_up);
  EXPECT_EQ(facts.networks[0].mbit_per_s, 100000);
  EXPECT_EQ(facts.networks[1].mbit_per_s, 0);
  ASSERT_EQ(facts.rdma.size(), 1u);
  EXPECT_TRUE(facts.rdma[0].is_active);
  EXPECT_EQ(facts.first_client_port, 32768);
  EXPECT_EQ(facts.last_client_port, 60999);
}

TEST(Facts, AnEmptyTreeIsAMachineOfWhichNothingIsKnown) {
  const FixtureTree tree;
  const HostFacts facts = read_host_facts(tree.files());
  EXPECT_EQ(facts.cpu.logical, 0);
  EXPECT_EQ(facts.memory.total_bytes, 0);
  EXPECT_TRUE(facts.nodes.empty() && facts.networks.empty() && facts.nvidia_driver.empty());
}

// Whatever such files hold, reading them ends and counts stay sane.
TEST(Facts, RandomTextHarmsNothing) {
  const uint64_t seed = testing::seed();
  SCOPED_TRACE("CADRE_SEED=" + std::to_string(seed));
  const std::string words[] = {
      "MemTotal:", "processor", ":",  "\n", " ", "-",   "99999999999999999999", "0-7", "kB", "Max open files",
      "unlimited", "node",      "\t", "[",  "]", "max", std::string(1, '\0')};
  for (uint64_t round = 0; round < 200; ++round) {
    FixtureTree tree;
    uint64_t draw = 0;
    for (const char* path :
         {"/proc/cpuinfo", "/proc/meminfo", "/proc/self/limits", "/proc/self/cgroup", "/proc/self/status",
          "/sys/devices/system/cpu/online", "/sys/devices/system/node/node0/meminfo",
          "/sys/devices/system/node/node0/cpulist", "/sys/kernel/mm/transparent_hugepage/enabled"}) {
      std::string text;
      for (uint32_t i = random_u32(seed, round, draw++) % 40; i > 0; --i)
        text += words[random_u32(seed, round, draw++) % std::size(words)];
      tree.write(path, text);
    }
    const HostFacts facts = read_host_facts(tree.files());
    EXPECT_GE(facts.memory.total_bytes, 0);
    EXPECT_GE(facts.memory.usable_bytes(), 0);
    EXPECT_LE(facts.cpu.usable, facts.cpu.logical);
  }
}

}  // namespace
}  // namespace cadre
