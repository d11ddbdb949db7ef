// LoneGroup is a group of one rank without an engine, for code that reads what several ranks wrote.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "tests/fuzz/input.h"

namespace starling {

// Not thread-safe. It has no windows and no messages.
class LoneGroup final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  std::vector<int> local_ranks() const override { return {0}; }
  std::string host_of(int) const override { return "host"; }
  TrafficCount traffic() const override { return {}; }
  std::shared_ptr<Window> allocate_window(size_t) override { return refuse(), nullptr; }
  LocalSync* local_sync() override { return refuse(), nullptr; }
  WorkPtr start(const Call&) override { return refuse(), nullptr; }
  // Carries out a blocking collective by copying what is not in place. The elements are bytes or have 8
  // bytes.
  void run(const Call& call) override {
    const size_t bytes = call.count * (call.type == DataType::kUint8 ? 1 : 8);
    if (call.in != nullptr && bytes > 0) std::memcpy(call.out, call.in, bytes);
  }
  bool try_recv(void*, size_t, int, uint32_t) override { return refuse(), false; }
  void abort(const std::string&) override {}

 private:
  static void refuse() { require_property(false); }
};

}  // namespace starling
