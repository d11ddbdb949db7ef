// FuzzInput reads the bytes of one fuzzer run from the front. It returns zeros after the end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace starling {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  uint8_t byte() {
    if (rest_.empty()) return 0;
    const uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  uint16_t number() {
    const uint16_t low = byte();
    return static_cast<uint16_t>(low | byte() << 8);
  }
  // Returns at most `most` bytes, and fewer if the input ends.
  std::string text(size_t most) {
    const size_t count = std::min(most, rest_.size());
    std::string taken(reinterpret_cast<const char*>(rest_.data()), count);
    rest_ = rest_.subspan(count);
    return taken;
  }

 private:
  std::span<const uint8_t> rest_;
};

// Crashes the run if a property does not hold.
inline void require_property(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace starling
