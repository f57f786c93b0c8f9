#include "dp/admission.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace cadre {
namespace {

TEST(Admission, SpreadsByWhatRanksToldAndWhatIsOnItsWay) {
  Admission admission(LoadBalance::kTotalTokens, 2, {});
  admission.publish(0, {.num_running = 1, .num_running_tokens = 100}, 0);
  EXPECT_EQ(admission.assign({}, {1, 60}), 1);
  EXPECT_EQ(admission.assign({}, {1, 60}), 1);
  EXPECT_EQ(admission.assign({}, {1, 60}), 0);
  EXPECT_EQ(admission.queued(1), (RankLoad{2, 120}));
  // Taken in and started: they wait no more.
  admission.publish(1, {.num_running = 2, .num_running_tokens = 122}, 2);
  EXPECT_EQ(admission.queued(1), (RankLoad{0, 0}));
  EXPECT_EQ(admission.assign({}, {1, 1}), 1);
}

TEST(Admission, TheQueueIsBoundedAndAnEmptyOneTakesAnything) {
  Admission admission(LoadBalance::kRoundRobin, 2, {.max_requests = 2, .max_tokens = 100});
  EXPECT_EQ(admission.assign({}, {1, 5000}), 0);
  const auto kind_of = [&](const RankLoad& load) {
    try {
      admission.assign({}, load);
      return ErrorKind::kInternal;
    } catch (const Error& e) {
      return e.kind();
    }
  };
  EXPECT_EQ(kind_of({1, 1}), ErrorKind::kOverloaded);  // tokens
  admission.publish(0, {.num_running = 1, .num_running_tokens = 5000}, 1);
  EXPECT_EQ(admission.assign({}, {2, 2}), 1);
  EXPECT_EQ(kind_of({1, 1}), ErrorKind::kOverloaded);  // requests
  EXPECT_EQ(admission.router().num_assigned(0) + admission.router().num_assigned(1), 2u);  // nothing was counted
}

}  // namespace
}  // namespace cadre
