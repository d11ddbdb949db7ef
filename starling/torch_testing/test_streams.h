// TestStreams are the streams of the test device (test_device.h). They are lazy: work is done when a thread
// waits for it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace starling {

// Streams and their work. Thread-safe.
class TestStreams {
 public:
  // A place in a stream, behind the work that it had at that time.
  struct Place {
    c10::Stream stream;
    uint64_t works = 0;
  };

  // Returns the stream that this thread uses on a device.
  static c10::Stream current(c10::Device device);
  // Sets the stream that this thread uses on the stream's device. Returns the stream that it used before.
  static c10::Stream exchange(c10::Stream stream);
  // Returns a stream of a device that is not its default one. There are a few, given out in turn.
  c10::Stream from_pool(c10::Device device);

  // Appends work to a stream.
  void put(c10::Stream stream, std::function<void()> work);
  // Returns the end of a stream.
  Place end(c10::Stream stream);
  // Makes the stream's further work wait for a place in another stream.
  void order(c10::Stream stream, Place behind);
  // Does the work before a place.
  void finish(const Place& place);
  // Whether the work before a place is done.
  bool finished(const Place& place);
  // Does all work of a device.
  void finish_device(c10::DeviceIndex device);
  // Returns the number of works that are not done.
  size_t unfinished();

 private:
  struct Queue {
    std::deque<std::function<void()>> works;
    uint64_t done = 0;
  };
  static std::pair<int, int64_t> key_of(c10::Stream stream) { return {stream.device_index(), stream.id()}; }

  std::recursive_mutex mutex_;
  std::map<std::pair<int, int64_t>, Queue> queues_;
  int64_t given_ = 0;
};

}  // namespace starling
