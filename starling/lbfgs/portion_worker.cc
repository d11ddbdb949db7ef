#include "starling/lbfgs/portion_worker.h"

#include <algorithm>
#include <bit>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/comm/message_tags.h"
#include "starling/lbfgs/logistic.h"

namespace starling {
namespace {

// How often a thread looks for a message. A longer pause leaves more time to other ranks of a core and delays
// an answer by more.
constexpr std::chrono::microseconds kFirstLook{20}, kLongestAnswerLook{100};

}  // namespace

PortionWorker::PortionWorker(const LbfgsOptions& options, const LbfgsParts& parts, RankBoard& board,
                             int portions)
    : options_(options),
      parts_(parts),
      board_(board),
      portions_(portions),
      gradient_(static_cast<size_t>(lbfgs_elements(parts.samples)), 0) {}

void PortionWorker::run() {
  OpenEvaluation evaluation;
  PortionAnswer answer;
  for (;;) {
    if (answer.next < 0 || answer.evaluation != evaluation.number) {
      // Either the evaluation has no portion left, or the answer gives one of a later evaluation.
      const bool later = answer.next >= 0;
      const auto opened = board_.await(later ? answer.evaluation : evaluation.number + 1);
      if (!opened) break;
      evaluation = *opened;
      if (!later || evaluation.number != answer.evaluation) {
        answer = ask({.evaluation = evaluation.number});
        continue;
      }
    }
    const int portion = answer.next;
    const std::optional<double> loss = compute(evaluation, portion);
    answer = {};
    if (!loss) continue;
    answer = ask({.evaluation = evaluation.number, .finished = portion, .loss = *loss});
    if (answer.deliver != 0) deliver(portion);
  }
  if (!board_.is_broken()) tell({.evaluation = kWorkerEnds});
}

void PortionWorker::tell(const PortionRequest& request) {
  if (parts_.group.rank() == 0) return board_.put(request);
  send(parts_.group, &request, sizeof(request), 0, kPortionRequestTag);
  bytes_.portions += sizeof(request);
}

// Rank 0 answers every request, also between evaluations: in the next one, or when it stops.
PortionAnswer PortionWorker::ask(const PortionRequest& request) {
  tell(request);
  std::chrono::microseconds pause = kFirstLook;
  for (;;) {
    const uint64_t changes = board_.changes();
    PortionAnswer answer;
    if (parts_.group.rank() == 0) {
      if (const auto own = board_.take_answer()) return *own;
    } else if (parts_.group.try_recv(&answer, sizeof(answer), 0, kPortionAnswerTag)) {
      return answer;
    }
    if (board_.is_broken()) return {};
    board_.wait(changes, pause);
    pause = std::min(2 * pause, kLongestAnswerLook);
  }
}

// The factor by which the emulation makes this rank slower in an evaluation.
double PortionWorker::slowdown(int64_t evaluation) const {
  const int rank = parts_.group.rank();
  double factor = 1;
  for (const Emulation::SlowRank& slow : options_.emulation.slow_ranks)
    if (slow.rank == rank) factor *= slow.factor;
  const uint64_t key = key_of(options_.seed, static_cast<uint64_t>(rank), static_cast<uint64_t>(evaluation));
  if (options_.emulation.jitter_share > 0 && uniform_of(key) < options_.emulation.jitter_share)
    factor *= options_.emulation.jitter_factor;
  return factor;
}

std::optional<double> PortionWorker::compute(const OpenEvaluation& evaluation, int portion) {
  const auto start = std::chrono::steady_clock::now();
  const SampleRange range = samples_of(parts_.samples.count(), portions_, portion);
  const std::optional<double> loss =
      logistic_sum(parts_.samples, range.begin, range.end, *evaluation.weights, gradient_,
                   [&] { return board_.is_over(evaluation.number); });
  if (!loss || !options_.emulation.any()) return loss;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const double share = static_cast<double>(range.end - range.begin) * parts_.group.size() /
                       static_cast<double>(parts_.samples.count());
  const double emulated =
      std::max(took.count(), options_.emulation.compute_s * share) * slowdown(evaluation.number);
  board_.wait_in(evaluation.number, start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                std::chrono::duration<double>(emulated)));
  if (board_.is_over(evaluation.number)) return std::nullopt;
  return loss;
}

void PortionWorker::deliver(int portion) {
  const int ranks = parts_.group.size(), rank = parts_.group.rank();
  for (int i = 0; i < ranks; ++i) {
    const int shard = (rank + i) % ranks;  // ranks begin with different shards
    const VectorSlice slice = slice_of_shard(std::ssize(gradient_), ranks, shard);
    const auto begin = gradient_.begin() + slice.begin, end = gradient_.begin() + slice.end;
    if (shard == rank) {
      board_.put(OwnPart{portion, {begin, end}});
      continue;
    }
    const GradientHead head{portion};
    message_.assign(1, std::bit_cast<double>(head));
    message_.insert(message_.end(), begin, end);
    const size_t bytes = message_.size() * sizeof(double);
    send(parts_.group, message_.data(), bytes, shard, kGradientPartTag);
    bytes_.vectors += static_cast<double>(bytes);
  }
}

}  // namespace starling
