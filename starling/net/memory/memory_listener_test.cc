#include "starling/net/memory/memory_listener.h"

#include <gtest/gtest.h>

#include <thread>

#include "starling/base/error.h"

namespace starling {
namespace {

Deadline soon() {
  return deadline_in(std::chrono::seconds(60));
}

TEST(MemoryNetwork, ConnectsAndRefuses) {
  MemoryNetwork network;
  EXPECT_THROW(network.connect("a"), CommError);
  auto listener = network.listen("a");
  EXPECT_THROW(network.listen("a"), CommError);
  auto client = network.connect("a");
  auto server = listener->accept(soon());
  client->send({1, {}, {}}, soon());
  EXPECT_EQ(server->peek(soon()).tag, 1u);
  EXPECT_THROW(listener->accept(deadline_in(std::chrono::milliseconds(1))), TimeoutError);
  listener.reset();
  EXPECT_THROW(network.connect("a"), CommError);
  EXPECT_EQ(network.listen("a")->address(), "a");
}

TEST(MemoryNetwork, ShutdownWakesTheListenerAndItsEndEndsWhoWaits) {
  MemoryNetwork network;
  auto listener = network.listen("a");
  auto client = network.connect("a");
  listener.reset();
  EXPECT_THROW(client->peek(soon()), CommError);
  listener = network.listen("b");
  std::thread waiter([&] { EXPECT_THROW(listener->accept(soon()), CommError); });
  listener->shutdown();
  waiter.join();
}

}  // namespace
}  // namespace starling
