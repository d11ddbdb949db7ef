#include "starling/lbfgs/rank_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "starling/base/error.h"
#include "starling/comm/message_tags.h"
#include "starling/lbfgs/gather_vector.h"
#include "starling/lbfgs/lbfgs_checkpoint.h"

namespace starling {
namespace {

// How often the serving thread looks for messages while it waits for portions. A longer pause takes less time
// away from computing threads of the same core. The pause of rank 0 delays the answer to a free rank.
constexpr std::chrono::microseconds kFirstPause{20}, kLongestPause{500}, kLongestPauseOfRank0{100};

}  // namespace

RankServer::RankServer(const LbfgsOptions& options, const LbfgsParts& parts, int portions)
    : options_(options),
      parts_(parts),
      portions_(portions),
      shard_(lbfgs_elements(parts.samples), parts.group.size(), parts.group.rank(), options.minimize.memory),
      worker_(options, parts, board_, portions),
      message_(static_cast<size_t>(shard_.slice().size()) + 1) {
  thread_ = std::jthread([this] {
    try {
      worker_.run();
    } catch (const std::exception& error) {
      board_.break_off(std::current_exception());
      parts_.group.abort(error.what());  // ends a wait of the serving thread
    }
  });
}

// Returns the whole of kTrial.
std::shared_ptr<const std::vector<double>> RankServer::gather_weights() {
  const int64_t elements = lbfgs_elements(parts_.samples);
  const int64_t others = parts_.group.size() - 1;
  bytes_.vectors +=
      static_cast<double>(others * slice_width(elements, parts_.group.size()) * int64_t{sizeof(double)});
  return std::make_shared<const std::vector<double>>(
      gather_vector(parts_.group, elements, shard_.vector(kTrial)));
}

bool RankServer::take_parts() {
  bool found = false;
  while (auto own = board_.take_part()) {
    fold_.add(own->portion, std::move(own->values));
    found = true;
  }
  for (int peer = 0; peer < parts_.group.size(); ++peer) {
    if (peer == parts_.group.rank()) continue;
    while (parts_.group.try_recv(message_.data(), message_.size() * sizeof(double), peer, kGradientPartTag)) {
      const auto head = std::bit_cast<GradientHead>(message_.front());
      fold_.add(static_cast<int>(head.portion), {message_.begin() + 1, message_.end()});
      found = true;
    }
  }
  return found;
}

VectorShard::Part RankServer::evaluate(int64_t number, const std::function<bool()>& look) {
  const auto weights = gather_weights();
  fold_.begin(portions_, static_cast<size_t>(shard_.slice().size()));
  board_.open({number, weights});
  const auto longest = parts_.group.rank() == 0 ? kLongestPauseOfRank0 : kLongestPause;
  auto pause = kFirstPause;
  auto last_found = std::chrono::steady_clock::now();
  while (!fold_.done()) {
    const uint64_t changes = board_.changes();
    bool found = look && look();
    found = take_parts() || found;
    board_.rethrow_failure();
    const auto now = std::chrono::steady_clock::now();
    if (found) {
      last_found = now;
      pause = kFirstPause;
      continue;
    }
    if (now - last_found > parts_.timeout)
      throw TimeoutError(
          fmt::format("rank {} received no portion of evaluation {} for {:g} s; use smaller "
                      "portions (--portions) or a larger comm.timeout_s",
                      parts_.group.rank(), number, std::chrono::duration<double>(parts_.timeout).count()));
    board_.wait(changes, pause);
    pause = std::min(2 * pause, longest);
  }
  board_.close();
  if (parts_.on_evaluation) parts_.on_evaluation(number);
  return shard_.finish_gradient(fold_.sum(), parts_.samples.count(), options_.ridge);
}

void RankServer::save(int64_t iteration) {
  if (iteration == saved_) return;
  const CheckpointPlace place{options_.checkpoint, iteration, parts_.group.size(), parts_.group.rank()};
  write_checkpoint_part(place, shard_, options_.minimize.memory);
  remove_older_parts(place, saved_);  // the manifest still names the parts before these
  saved_ = iteration;
}

void RankServer::load(int64_t iteration, int ranks) {
  read_checkpoint_parts(options_.checkpoint, iteration, ranks, shard_, lbfgs_elements(parts_.samples),
                        options_.minimize.memory);
  if (ranks == parts_.group.size()) saved_ = iteration;
}

void RankServer::reply(std::span<const double> values) {
  send(parts_.group, values.data(), values.size_bytes(), 0, kScalarsTag);
  bytes_.scalars += static_cast<double>(values.size_bytes());
}

void RankServer::join_worker() {
  thread_.join();
  board_.rethrow_failure();
  bytes_.portions += worker_.bytes().portions;
  bytes_.vectors += worker_.bytes().vectors;
}

void RankServer::break_off(const std::string& reason) {
  board_.break_off(nullptr);
  parts_.group.abort(reason);
  if (thread_.joinable()) thread_.join();
  board_.rethrow_failure();
}

}  // namespace starling
