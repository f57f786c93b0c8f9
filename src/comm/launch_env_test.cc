#include "comm/launch_env.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace cadre {
namespace {

TEST(LaunchEnvTest, NoLauncher) {
  EXPECT_FALSE(read_launch_env({}));
  EXPECT_FALSE(read_launch_env({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}));
  EXPECT_FALSE(read_launch_env({{"RANK", ""}, {"WORLD_SIZE", ""}}));
  EXPECT_FALSE(read_launch_env({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_NODELIST", "n[1-4]"}}));  // the batch script itself
}

TEST(LaunchEnvTest, EachLauncher) {
  struct Case {
    Environment environment;
    const char* launcher;
    std::optional<int> local_rank;
    const char* store;  // null: none
  };
  const Case cases[] = {
      {{{"CADRE_RANK", "2"}, {"CADRE_WORLD_SIZE", "4"}, {"CADRE_STORE", "127.0.0.1:77"}}, "cadre", {}, "127.0.0.1:77"},
      {{{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
       "open mpi",
       1,
       nullptr},
      {{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"CADRE_STORE", "[fe80::1]:5"}}, "pmi", {}, "[fe80::1]:5"},
      {{{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"}},
       "slurm",
       0,
       "10.0.0.9:0"},
      {{{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_NODELIST", "gpu[007-009,12],login"}},
       "slurm",
       {},
       "gpu007:0"},
      {{{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_NODELIST", "alpha,gpu[1-2]"}},
       "slurm",
       {},
       "alpha:0"},
      {{{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_NODELIST", "n[3]-ib,m"}}, "slurm", {}, "n3-ib:0"},
      {{{"SLURM_PROCID", "2"},
        {"SLURM_NTASKS", "4"},
        {"MASTER_ADDR", "m"},
        {"MASTER_PORT", "29500"},
        {"SLURM_JOB_NODELIST", "n1"}},
       "slurm",
       {},
       "m:29500"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}},
       "torchrun",
       2,
       "h:29500"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.launcher);
    const auto launch = read_launch_env(c.environment);
    ASSERT_TRUE(launch);
    EXPECT_EQ(launch->launcher, c.launcher);
    EXPECT_EQ(launch->rank, 2);
    EXPECT_EQ(launch->size, 4);
    EXPECT_EQ(launch->local_rank, c.local_rank);
    EXPECT_EQ(launch->store ? to_string(*launch->store) : "none", c.store ? c.store : "none");
  }
}

TEST(LaunchEnvTest, OursComesFirst) {
  const auto launch = read_launch_env(
      {{"CADRE_RANK", "0"}, {"CADRE_WORLD_SIZE", "2"}, {"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "9"}, {"RANK", "oops"}});
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->launcher, "cadre");
}

TEST(LaunchEnvTest, HalfSetOrWrongIsRefused) {
  const Environment bad[] = {
      {{"CADRE_RANK", "1"}},
      {{"CADRE_WORLD_SIZE", "1"}},
      {{"CADRE_RANK", "2"}, {"CADRE_WORLD_SIZE", "2"}},
      {{"CADRE_RANK", "-1"}, {"CADRE_WORLD_SIZE", "2"}},
      {{"CADRE_RANK", "1x"}, {"CADRE_WORLD_SIZE", "2"}},
      {{"CADRE_RANK", "0"}, {"CADRE_WORLD_SIZE", "99999999999"}},
      {{"CADRE_RANK", "0"}, {"CADRE_WORLD_SIZE", "2"}, {"CADRE_STORE", "nowhere"}},
      {{"OMPI_COMM_WORLD_RANK", "1"}},
      {{"PMI_SIZE", "1"}},
      {{"SLURM_PROCID", "0"}},
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}},
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "99999"}},
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_JOB_NODELIST", "n[1"}},
  };
  for (const Environment& environment : bad)
    EXPECT_THROW(read_launch_env(environment), Error) << environment.begin()->first;
}

}  // namespace
}  // namespace cadre
