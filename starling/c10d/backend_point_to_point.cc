// Sends and receives of StarlingBackend, and the monitored barrier that is made of them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "starling/base/error.h"
#include "starling/c10d/backend_calls.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Tags that users cannot give, because theirs are not negative.
constexpr uint32_t kCame = 0xffff'fffe;
constexpr uint32_t kMayGo = 0xffff'ffff;

}  // namespace

StarlingBackend::WorkPtr StarlingBackend::point_to_point(c10d::OpType type, const char* title, int peer,
                                                         const Tensors& tensors, PointToPointBody body) {
  const char* operation = type == c10d::OpType::SEND ? "send" : "recv";
  check_single(operation, tensors);
  if (type != c10d::OpType::RECVANYSOURCE) check_rank(operation, peer);
  const auto on = [this, body = std::move(body), tensor = tensors[0]](Group& group, StarlingWork& work) {
    guarded([&] { body(group, tensor, work); });
  };
  auto work = on_lane({peer, type == c10d::OpType::SEND ? 1 : 0}, type, title, {tensors[0]}, true, {}, on);
  note_coalesced(work);
  return work;
}

c10::intrusive_ptr<StarlingWork> StarlingBackend::on_lane(Lane lane, c10d::OpType type, const char* title,
                                                          Tensors outputs, bool async,
                                                          std::chrono::milliseconds timeout, LaneBody body) {
  const WorkDescription description{
      .rank = rank_,
      .type = type,
      .title = title,
      .sequence = ++p2p_sequence_,
      .timeout = timeout.count() > 0 ? timeout : std::chrono::milliseconds(wait_limit_)};
  auto work = c10::make_intrusive<StarlingWork>(description, std::move(outputs), hooks_);
  execute(lane, async, work, [on = group(), body = std::move(body), work = work.get()] { body(*on, *work); });
  return work;
}

StarlingBackend::WorkPtr StarlingBackend::send(Tensors& tensors, int peer, int tag) {
  return point_to_point(c10d::OpType::SEND, "starling:send", peer, tensors,
                        [peer, tag](Group& group, const at::Tensor& tensor, StarlingWork&) {
                          const at::Tensor flat = tensor.contiguous();
                          starling::send(group, flat.const_data_ptr(), flat.nbytes(), peer,
                                         static_cast<uint32_t>(tag));
                        });
}

StarlingBackend::WorkPtr StarlingBackend::recv(Tensors& tensors, int peer, int tag) {
  return point_to_point(c10d::OpType::RECV, "starling:recv", peer, tensors,
                        [peer, tag](Group& group, const at::Tensor& tensor, StarlingWork&) {
                          const at::Tensor flat = writable(tensor);
                          starling::recv(group, flat.mutable_data_ptr(), flat.nbytes(), peer,
                                         static_cast<uint32_t>(tag));
                          store(flat, tensor);
                        });
}

StarlingBackend::WorkPtr StarlingBackend::recvAnysource(Tensors& tensors, int tag) {
  const auto body = [this, tag](Group& group, const at::Tensor& tensor, StarlingWork& work) {
    const at::Tensor flat = writable(tensor);
    const auto take = [&] {
      for (int i = 0; i < size_; ++i) {
        const int peer = (any_source_first_ + i) % size_;
        if (!group.try_recv(flat.mutable_data_ptr(), flat.nbytes(), peer, static_cast<uint32_t>(tag)))
          continue;
        any_source_first_ = peer + 1;
        work.set_source_rank(peer);
        return true;
      }
      return false;
    };
    if (!look_until(SteadyClock::now() + rendezvous_.group.timeout, take)) {
      throw TimeoutError(fmt::format("no rank sent {} bytes with tag {} to rank {} within {} ms",
                                     flat.nbytes(), tag, rank_, rendezvous_.group.timeout.count()));
    }
    store(flat, tensor);
  };
  return point_to_point(c10d::OpType::RECVANYSOURCE, "starling:recv_any", -1, tensors, body);
}

StarlingBackend::WorkPtr StarlingBackend::barrier(const c10d::BarrierOptions& options) {
  return collective(c10d::OpType::BARRIER, "starling:barrier", options, {},
                    [](Group& group) { starling::barrier(group); });
}

void StarlingBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool all) {
  const std::shared_ptr<Group> owner = group();
  const auto limit = options.timeout.count() > 0 ? options.timeout : rendezvous_.group.timeout;
  const uint64_t number = ++monitored_;
  if (rank_ != 0) {
    return guarded([&] {
      starling::send(*owner, &number, sizeof(number), 0, kCame);
      starling::recv(*owner, nullptr, 0, 0, kMayGo);
    });
  }
  std::vector<int> late;
  for (int r = 1; r < size_; ++r) late.push_back(r);
  guarded([&] {
    look_until(SteadyClock::now() + limit, [&] {
      uint64_t theirs = 0;
      std::erase_if(late, [&](int r) { return owner->try_recv(&theirs, sizeof(theirs), r, kCame); });
      return late.empty();
    });
    if (!late.empty()) {
      if (!all) late.resize(1);
      const auto name = [&](int r) { return fmt::format("rank {} ({})", r, owner->host_of(r)); };
      std::vector<std::string> names;
      names.reserve(late.size());
      for (const int r : late) names.push_back(name(r));
      const std::string what = fmt::format(
          "{} did not enter monitored barrier #{} within {} ms; see the log of each. {} {} failed to pass "
          "monitoredBarrier in {} ms (timeout)",
          fmt::join(names, ", "), number, limit.count(), late.size() == 1 ? "Rank" : "Ranks",
          fmt::join(late, ", "), limit.count());  // PyTorch's words, for programs that look for them
      owner->abort(what);
      throw TimeoutError(what, late[0]);
    }
    for (int r = 1; r < size_; ++r) starling::send(*owner, nullptr, 0, r, kMayGo);
  });
}

}  // namespace starling
