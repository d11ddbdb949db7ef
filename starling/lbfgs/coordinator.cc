#include "starling/lbfgs/coordinator.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <chrono>
#include <exception>

#include "starling/base/error.h"
#include "starling/comm/message_tags.h"

namespace starling {
namespace {

constexpr std::chrono::microseconds kPauseAtEnd{200};

}  // namespace

Coordinator::Coordinator(const LbfgsOptions& options, const LbfgsParts& parts, RankServer& own,
                         PortionScheduler& scheduler)
    : options_(options), parts_(parts), own_(own), scheduler_(scheduler) {}

void Coordinator::instruct(const InstructionHead& head, std::span<const std::byte> body) {
  ++instructions_;
  const int others = parts_.group.size() - 1;
  if (others == 0) return;
  InstructionHead sent = head;
  broadcast(parts_.group, &sent, sizeof(sent), DataType::kUint8, 0);
  if (!body.empty()) {
    std::vector<std::byte> bytes(body.begin(), body.end());
    broadcast(parts_.group, bytes.data(), bytes.size(), DataType::kUint8, 0);
  }
  own_.bytes().scalars += static_cast<double>(others) * static_cast<double>(sizeof(sent) + body.size());
}

template <typename Take>
void Coordinator::replies(size_t scalars, const Take& take) {
  std::vector<double> values(scalars);
  for (int rank = 1; rank < parts_.group.size(); ++rank) {
    recv(parts_.group, values.data(), scalars * sizeof(double), rank, kScalarsTag);
    take(rank, std::as_const(values));
  }
}

void Coordinator::compare_samples(uint64_t hash) {
  instruct({.code = InstructionCode::kDescribe});
  int different = -1;
  replies(1, [&](int rank, const std::vector<double>& values) {
    if (different < 0 && std::bit_cast<uint64_t>(values.front()) != hash) different = rank;
  });
  if (different >= 0)
    throw DataError(fmt::format("{}: rank {} has other samples than rank 0; give all ranks equal files",
                                parts_.samples.name, different));
}

void Coordinator::combine(VectorId target, std::span<const VectorTerm> terms) {
  instruct({InstructionCode::kCombine, static_cast<uint32_t>(terms.size()), target}, std::as_bytes(terms));
  own_.shard().combine(target, terms);
}

std::vector<double> Coordinator::dots(std::span<const VectorPair> pairs) {
  instruct({InstructionCode::kDots, static_cast<uint32_t>(pairs.size()), 0}, std::as_bytes(pairs));
  std::vector<double> sums;
  for (const VectorPair& pair : pairs) sums.push_back(own_.shard().dot(pair));
  replies(sums.size(), [&](int, const std::vector<double>& values) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  });
  return sums;
}

Evaluation Coordinator::evaluate() {
  ++evaluation_;
  instruct({InstructionCode::kEvaluate, 0, static_cast<uint64_t>(evaluation_)});
  losses_.assign(static_cast<size_t>(scheduler_.portions()), 0);
  scheduler_.begin();
  evaluating_ = true;
  VectorShard::Part part = own_.evaluate(evaluation_, [this] { return answer_requests(); });
  evaluating_ = false;
  replies(3, [&](int, const std::vector<double>& values) {
    part.squares += values[0];
    part.largest_gradient = larger(part.largest_gradient, values[1]);
    asked_to_stop_ = asked_to_stop_ || values[2] != 0;
  });
  double loss = 0;
  for (const double x : losses_) loss += x;
  return {loss / static_cast<double>(parts_.samples.count()) + options_.ridge / 2 * part.squares,
          part.largest_gradient};
}

bool Coordinator::answer_requests() {
  bool found = false;
  if (const auto own = own_.board().take_request()) {
    answer(0, *own);
    found = true;
  }
  for (int rank = 1; rank < parts_.group.size(); ++rank) {
    PortionRequest request;
    while (parts_.group.try_recv(&request, sizeof(request), rank, kPortionRequestTag)) {
      ++requests_;
      answer(rank, request);
      found = true;
    }
  }
  return found;
}

void Coordinator::answer(int rank, const PortionRequest& request) {
  if (request.evaluation == kWorkerEnds) {
    ++ended_;
    return;
  }
  PortionAnswer answer{.evaluation = evaluation_};
  // A copy of an earlier evaluation is of no use any more.
  if (request.finished >= 0 && evaluating_ && request.evaluation == evaluation_ &&
      scheduler_.finish(rank, request.finished)) {
    losses_[static_cast<size_t>(request.finished)] = request.loss;
    answer.deliver = 1;
  }
  if (evaluating_) answer.next = scheduler_.next(rank).value_or(-1);
  if (rank == 0) return own_.board().put(answer);
  send(parts_.group, &answer, sizeof(answer), rank, kPortionAnswerTag);
  own_.bytes().portions += sizeof(answer);
}

void Coordinator::save(int64_t iteration) {
  instruct({InstructionCode::kSave, 0, static_cast<uint64_t>(iteration)});
  std::exception_ptr failure;
  try {
    own_.save(iteration);
  } catch (const Error&) {
    failure = std::current_exception();  // after the replies, so that none of them is left
  }
  int unable = -1;
  replies(1, [&](int rank, const std::vector<double>& values) {
    if (values.front() != 0) unable = rank;
  });
  if (failure) std::rethrow_exception(failure);
  if (unable >= 0)
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("{}: rank {} cannot write its part of the checkpoint of iteration {}; look at the "
                    "free space and the permissions",
                    options_.checkpoint, unable, iteration));
}

void Coordinator::load(int64_t iteration, int ranks) {
  instruct({InstructionCode::kLoad, static_cast<uint32_t>(ranks), static_cast<uint64_t>(iteration)});
  std::exception_ptr failure;
  try {
    own_.load(iteration, ranks);
  } catch (const Error&) {
    failure = std::current_exception();
  }
  replies(1, [](int, const std::vector<double>&) {});
  if (failure) std::rethrow_exception(failure);
}

ByteCounts Coordinator::stop(std::optional<MinimizeEnd> end) {
  const uint32_t outcome = end ? kFirstEnd + static_cast<uint32_t>(*end) : kRank0Failed;
  instruct({.code = InstructionCode::kStop, .count = outcome});
  own_.board().stop();
  const auto deadline = std::chrono::steady_clock::now() + parts_.timeout;
  while (ended_ < parts_.group.size()) {
    const uint64_t changes = own_.board().changes();
    if (answer_requests()) continue;
    own_.board().rethrow_failure();
    if (std::chrono::steady_clock::now() > deadline)
      throw TimeoutError(fmt::format("{} of {} ranks did not end their last portion",
                                     parts_.group.size() - ended_, parts_.group.size()));
    own_.board().wait(changes, kPauseAtEnd);
  }
  own_.join_worker();
  ByteCounts sum = own_.bytes();
  replies(3, [&](int, const std::vector<double>& values) {
    sum.scalars += values[0];
    sum.portions += values[1];
    sum.vectors += values[2];
  });
  return sum;
}

}  // namespace starling
