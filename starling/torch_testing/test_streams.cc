#include "starling/torch_testing/test_streams.h"

#include <array>

#include "starling/torch_testing/test_device.h"

namespace starling {
namespace {

constexpr int64_t kPool = 4;  // streams of a device beside its default stream, which is 0

thread_local std::array<int64_t, kTestDevices> current_streams = {};

}  // namespace

c10::Stream TestStreams::current(c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, current_streams.at(static_cast<size_t>(device.index())));
}

c10::Stream TestStreams::exchange(c10::Stream stream) {
  const c10::Stream before = current(stream.device());
  current_streams.at(static_cast<size_t>(stream.device_index())) = stream.id();
  return before;
}

c10::Stream TestStreams::from_pool(c10::Device device) {
  const std::lock_guard lock(mutex_);
  return c10::Stream(c10::Stream::UNSAFE, device, 1 + given_++ % kPool);
}

void TestStreams::put(c10::Stream stream, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  queues_[key_of(stream)].works.push_back(std::move(work));
}

TestStreams::Place TestStreams::end(c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  const Queue& queue = queues_[key_of(stream)];
  return {stream, queue.done + queue.works.size()};
}

void TestStreams::order(c10::Stream stream, Place behind) {
  put(stream, [this, behind] { finish(behind); });
}

void TestStreams::finish(const Place& place) {
  const std::lock_guard lock(mutex_);
  Queue& queue = queues_[key_of(place.stream)];
  while (queue.done < place.works && !queue.works.empty()) {
    const std::function<void()> work = std::move(queue.works.front());
    queue.works.pop_front();
    ++queue.done;
    work();
  }
}

bool TestStreams::finished(const Place& place) {
  const std::lock_guard lock(mutex_);
  return queues_[key_of(place.stream)].done >= place.works;
}

void TestStreams::finish_device(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  for (int64_t id = 0; id <= kPool; ++id) {
    const c10::Stream stream(c10::Stream::UNSAFE, {c10::DeviceType::PrivateUse1, device}, id);
    finish(end(stream));
  }
}

size_t TestStreams::unfinished() {
  const std::lock_guard lock(mutex_);
  size_t works = 0;
  for (const auto& [key, queue] : queues_) works += queue.works.size();
  return works;
}

}  // namespace starling
