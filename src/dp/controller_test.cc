#include "dp/controller.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "base/error.h"
#include "tests/support/scripted_model.h"
#include "tokenizer/byte_tokenizer.h"

namespace cadre {
namespace {

using testing::ScriptedModel;
using testing::ScriptedModelOptions;

// A gate that the model's step waits at: a test decides when a step may begin.
class Gate {
 public:
  void arrive() {
    std::unique_lock lock(mutex_);
    ++num_arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_ || num_allowed_ > 0; });
    if (!is_open_) --num_allowed_;
  }
  void wait_for_arrivals(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_arrived_ >= count; });
  }
  void allow(int64_t count) {
    const std::lock_guard lock(mutex_);
    num_allowed_ += count;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_arrived_ = 0, num_allowed_ = 0;
  bool is_open_ = false;
};

// One answer, collected from the engine's thread.
class Inbox {
 public:
  DeltaSink sink(int32_t num_choices = 1) {
    return [this, num_choices](Delta&& delta) {
      const std::lock_guard lock(mutex_);
      text_ += delta.text;
      error_ += delta.error;
      if (delta.finish) {
        finish_ = delta.finish;
        is_done_ = ++num_finished_ == num_choices;
        changed_.notify_all();
      }
    };
  }
  FinishReason wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_done_; });
    return *finish_;
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  bool is_done() const {
    const std::lock_guard lock(mutex_);
    return is_done_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_, error_;
  std::optional<FinishReason> finish_;
  int32_t num_finished_ = 0;
  bool is_done_ = false;
};

class ControllerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Controller> make(ControllerOptions options = {}, int num_ranks = 1, ScriptedModelOptions model = {},
                                   EngineOptions engine_options = {}) {
    if (engine_options.num_kv_blocks == 0) engine_options.num_kv_blocks = 64;
    engine_options.eos_ids = {257};
    std::vector<std::unique_ptr<Engine>> engines;
    for (int rank = 0; rank < num_ranks; ++rank)
      engines.push_back(std::make_unique<Engine>(std::make_unique<ScriptedModel>(model), tokenizer, engine_options, clock));
    return std::make_unique<Controller>(std::move(engines), options);
  }
  GenerationRequest request(const std::string& prompt, int32_t n = 1) {
    return {.prompt = tokenizer->encode(prompt, false), .sampling = {.temperature = 0}, .n = n};
  }

  SteadyClock clock;
  std::shared_ptr<const Tokenizer> tokenizer = std::make_shared<ByteTokenizer>();
};

TEST_F(ControllerTest, Answers) {
  const auto controller = make();
  Inbox inbox;
  controller->submit(request("<<say hello>>"), inbox.sink());
  EXPECT_EQ(inbox.wait(), FinishReason::kStop);
  EXPECT_EQ(inbox.text(), "hello");
  EXPECT_TRUE(controller->wait_until_idle(60'000));
  EXPECT_TRUE(controller->is_healthy());
}

}  // namespace
}  // namespace cadre
