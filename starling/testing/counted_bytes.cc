#include "starling/testing/counted_bytes.h"

#include <fmt/format.h>

#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

void expect(const std::string& what, uint64_t counted, uint64_t formula) {
  if (counted == formula) return;
  throw CommError(fmt::format("{}: {} bytes are counted, and the formula has {}", what, counted, formula));
}

// Returns the sum of the ranks' numbers.
uint64_t sum_of(Group& group, uint64_t own) {
  std::vector<uint64_t> all(static_cast<size_t>(group.size()));
  all_gather(group, &own, all.data(), 1, DataType::kInt64);
  uint64_t sum = 0;
  for (const uint64_t number : all) sum += number;
  return sum;
}

// Checks the collectives of one element type.
class ByteCheck {
 public:
  ByteCheck(Group& group, size_t count, DataType type)
      : group_(group),
        count_(count),
        type_(type),
        ranks_(static_cast<uint64_t>(group.size())),
        bytes_(count * size_of(type)),
        small_(bytes_),
        large_(bytes_ * ranks_) {}

  void all_reduce() {
    const std::string what = name("all-reduce");
    const Counted counted = counted_bytes(
        group_, what, [&] { starling::all_reduce(group_, small_.data(), count_, type_, ReduceOp::kSum); });
    // MPI's count of a rank is rounded down. The parts of the ranks differ by at most 64 bytes.
    const uint64_t formula = 2 * (ranks_ - 1) * bytes_, own = formula / ranks_, apart = 64 * (ranks_ - 2);
    if (counted.sent > formula || counted.sent + ranks_ <= formula) expect(what, counted.sent, formula);
    if (counted.own > own + apart || counted.own + apart < own)
      expect(what + ", this rank", counted.own, own);
  }
  void reduce_scatter() {
    each("reduce-scatter", (ranks_ - 1) * bytes_, [&] {
      starling::reduce_scatter(group_, large_.data(), small_.data(), count_, type_, ReduceOp::kSum);
    });
  }
  void all_gather() {
    each("all-gather", (ranks_ - 1) * bytes_,
         [&] { starling::all_gather(group_, small_.data(), large_.data(), count_, type_); });
  }
  // A rank keeps more than it sends to any other rank. What it keeps does not count.
  void all_to_all() {
    std::vector<size_t> counts(ranks_, count_ / ranks_);
    each("all-to-all", (ranks_ - 1) * (count_ / ranks_) * size_of(type_), [&] {
      counts[static_cast<size_t>(group_.rank())] += count_ / 2;
      std::vector<std::byte> out(large_.size() + bytes_);
      starling::all_to_all(group_, large_.data(), counts, out.data(), counts, type_);
    });
  }
  void broadcast() {
    const std::string what = name("broadcast");
    const Counted counted = counted_bytes(
        group_, what, [&] { starling::broadcast(group_, small_.data(), count_, type_, group_.size() - 1); });
    expect(what, counted.sent, (ranks_ - 1) * bytes_);
  }
  void messages() {
    const int p = group_.size(), next = (group_.rank() + 1) % p, before = (group_.rank() + p - 1) % p;
    std::vector<std::byte> got(bytes_);
    each("message", bytes_, [&] {
      const WorkPtr sending = group_.send(small_.data(), bytes_, next, 9);
      recv(group_, got.data(), bytes_, before, 9);
      sending->wait();
    });
  }

 private:
  std::string name(const char* kind) const {
    return fmt::format("{} of {} {} on {} ranks", kind, count_, name_of(type_), ranks_);
  }
  // Checks a call in which every rank sends `formula` bytes.
  void each(const char* kind, uint64_t formula, const std::function<void()>& call) {
    const Counted counted = counted_bytes(group_, name(kind), call);
    expect(name(kind) + ", this rank", counted.own, formula);
    expect(name(kind), counted.sent, ranks_ * formula);
  }

  Group& group_;
  const size_t count_;
  const DataType type_;
  const uint64_t ranks_, bytes_;
  std::vector<std::byte> small_, large_;
};

}  // namespace

Counted counted_bytes(Group& group, const std::string& what, const std::function<void()>& call) {
  const TrafficCount before = group.traffic();
  call();
  const TrafficCount after = group.traffic();
  const Counted counted{after.sent() - before.sent(), sum_of(group, after.sent() - before.sent())};
  const uint64_t received = sum_of(group, after.received() - before.received());
  if (received != counted.sent)
    throw CommError(fmt::format("{}: {} bytes are sent and {} received", what, counted.sent, received));
  return counted;
}

void check_counted_bytes(Group& group, size_t count) {
  const Counted nothing = counted_bytes(group, "barrier", [&] { barrier(group); });
  expect("barrier", nothing.sent, 0);
  for (const DataType type : {DataType::kFp32, DataType::kFp64, DataType::kBf16}) {
    ByteCheck check(group, count, type);
    check.all_reduce();
    check.reduce_scatter();
    check.all_gather();
    check.all_to_all();
    check.broadcast();
    check.messages();
  }
}

}  // namespace starling
