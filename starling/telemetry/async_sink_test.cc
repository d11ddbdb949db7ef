#include "starling/telemetry/async_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "starling/telemetry/to_json.h"

namespace starling {
namespace {

// Stores the events that it receives. Its first emit() waits until the test permits it to continue.
class HeldSink final : public EventSink {
 public:
  HeldSink(std::shared_future<void> go, std::vector<std::string>& taken, std::promise<void>& entered)
      : go_(std::move(go)), taken_(taken), entered_(entered) {}
  void emit(const Event& event) override {
    if (!first_done_) {
      first_done_ = true;
      entered_.set_value();
      go_.wait();
    }
    taken_.push_back(to_json(event));
  }

 private:
  std::shared_future<void> go_;
  std::vector<std::string>& taken_;
  std::promise<void>& entered_;
  bool first_done_ = false;
};

TEST(AsyncSink, NeverBlocksDropsOnlyStepsAndSaysSo) {
  std::promise<void> go, entered;
  std::vector<std::string> taken;
  {
    AsyncSink sink(std::make_unique<HeldSink>(go.get_future().share(), taken, entered),
                   {.capacity = 2, .missing_from = "the table"});
    sink.emit(StepDone{.step = 1});
    entered.get_future().wait();                                  // the inner sink is busy
    for (int n = 2; n <= 6; ++n) sink.emit(StepDone{.step = n});  // two wait, three are dropped
    sink.emit(EvalDone{.step = 6});
    go.set_value();
  }
  ASSERT_EQ(taken.size(), 5u);
  EXPECT_THAT(taken[2], testing::HasSubstr("\"step\":3"));
  EXPECT_THAT(taken[3], testing::HasSubstr("eval"));
  EXPECT_THAT(taken[4], testing::HasSubstr("3 steps are missing from the table"));
}

TEST(AsyncSink, FlushWaitsForWhatWasEmitted) {
  std::promise<void> go, entered;
  std::vector<std::string> taken;
  AsyncSink sink(std::make_unique<HeldSink>(go.get_future().share(), taken, entered));
  go.set_value();
  for (int n = 1; n <= 100; ++n) sink.emit(StepDone{.step = n});
  sink.flush();
  EXPECT_EQ(taken.size(), 100u);
}

TEST(AsyncSink, PatienceWaitsForTheDelivery) {
  std::promise<void> go, entered;
  std::vector<std::string> taken;
  AsyncSink sink(std::make_unique<HeldSink>(go.get_future().share(), taken, entered),
                 {.patience = std::chrono::hours(1)});
  go.set_value();
  for (int n = 1; n <= 50; ++n) {
    sink.emit(EvalDone{.step = n});
    ASSERT_EQ(taken.size(), static_cast<size_t>(n));
  }
}

// The first event waits for the patience, and the others do not wait at all: their sum would be over an hour.
TEST(AsyncSink, PatienceEndsWithOneWaitInVain) {
  std::promise<void> go, entered;
  std::vector<std::string> taken;
  {
    AsyncSink sink(std::make_unique<HeldSink>(go.get_future().share(), taken, entered),
                   {.patience = std::chrono::milliseconds(50)});
    for (int n = 1; n <= 100'000; ++n) sink.emit(EvalDone{.step = n});
    go.set_value();
  }
  EXPECT_EQ(taken.size(), 100'000u);
}

TEST(AsyncSink, FlushWaitsForAStalledSinkOnce) {
  std::promise<void> go, entered;
  std::vector<std::string> taken;
  {
    AsyncSink sink(std::make_unique<HeldSink>(go.get_future().share(), taken, entered),
                   {.patience = std::chrono::milliseconds(50)});
    sink.emit(StepDone{.step = 1});
    for (int n = 0; n < 100'000; ++n) sink.flush();
    go.set_value();
    sink.flush();
  }
  EXPECT_EQ(taken.size(), 1u);
}

TEST(AsyncSink, PassesProgressInTheOrderOfTheEvents) {
  struct Recorder final : EventSink {
    explicit Recorder(std::string& text) : text(text) {}
    void emit(const Event& event) override { text += std::holds_alternative<EvalDone>(event) ? 'e' : 's'; }
    void show_progress(const EvalProgress& progress) override { text += std::to_string(progress.samples); }
    std::string& text;
  };
  std::string text;
  {
    AsyncSink sink(std::make_unique<Recorder>(text), {.progress = true});
    sink.emit(StepDone{.step = 1});
    sink.show_progress({.samples = 1});
    sink.show_progress({.samples = 2});
    sink.emit(EvalDone{.step = 1});
  }
  EXPECT_EQ(text, "s12e");
}

}  // namespace
}  // namespace starling
