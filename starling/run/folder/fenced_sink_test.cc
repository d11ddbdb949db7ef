#include "starling/run/folder/fenced_sink.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "starling/testing/manual_clock.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

struct Counts {
  int events = 0, flushes = 0;
  double time = 0;
};

class CountingSink final : public EventSink {
 public:
  explicit CountingSink(Counts& counts) : counts_(counts) {}
  void emit(const Event& /*event*/) override { ++counts_.events; }
  void emit_at(const Event& /*event*/, double time) override {
    ++counts_.events;
    counts_.time = time;
  }
  void flush() override { ++counts_.flushes; }

 private:
  Counts& counts_;
};

TEST(FencedSink, DropsEverythingAfterTheFolderWasLost) {
  Counts counts;
  ManualClock clock;
  bool held = true;
  int asked = 0;
  FencedSink sink(
      std::make_unique<CountingSink>(counts),
      [&] {
        ++asked;
        return held;
      },
      clock);
  const Message message{Severity::kInfo, 0, "text"};
  sink.emit(message);
  sink.emit_at(message, 7.5);
  sink.flush();
  EXPECT_EQ(counts.events, 2);
  EXPECT_EQ(counts.time, 7.5);
  EXPECT_EQ(counts.flushes, 1);
  EXPECT_EQ(asked, 1);  // an answer is good for 50 ms

  held = false;
  clock.advance(milliseconds(49));
  sink.emit(message);
  EXPECT_EQ(counts.events, 3);
  clock.advance(milliseconds(1));
  sink.emit(message);
  EXPECT_EQ(counts.events, 3);

  held = true;  // the other process is gone, and this one does not come back
  clock.advance(milliseconds(1'000));
  sink.emit(message);
  sink.emit_at(message, 8);
  sink.flush();
  EXPECT_EQ(counts.events, 3);
  EXPECT_EQ(counts.flushes, 1);
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace starling
