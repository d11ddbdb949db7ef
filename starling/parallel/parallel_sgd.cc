#include "starling/parallel/parallel_sgd.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <utility>

#include "starling/base/check.h"
#include "starling/c10d/data_type.h"
#include "starling/comm/message_tags.h"
#include "starling/parallel/exchange_parts.h"

namespace starling {
namespace {

void send_tensor(Group& group, const at::Tensor& tensor, int peer) {
  const at::Tensor whole = tensor.contiguous();
  const int64_t head[2] = {whole.size(0), static_cast<int64_t>(whole.nbytes())};
  send(group, head, sizeof(head), peer, kBatchTag);
  send(group, whole.data_ptr(), whole.nbytes(), peer, kBatchTag);
}

// Receives a tensor that may differ from `like` only in its first dimension.
at::Tensor recv_tensor(Group& group, const at::Tensor& like, int peer) {
  int64_t head[2] = {};
  recv(group, head, sizeof(head), peer, kBatchTag);
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes[0] = head[0];
  at::Tensor tensor = at::empty(sizes, like.options());
  STARLING_CHECK(static_cast<int64_t>(tensor.nbytes()) == head[1],
                 "received a batch of {} bytes, expected {}", head[1], tensor.nbytes());
  recv(group, tensor.data_ptr(), tensor.nbytes(), peer, kBatchTag);
  return tensor;
}

}  // namespace

ParallelSgd::ParallelSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                         int64_t every, Combine combine, Batch held_out, Group& group, const Clock& clock)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock),
      every_(every),
      combine_(combine),
      held_out_(std::move(held_out)) {
  STARLING_CHECK(every >= 1, "parallel SGD needs every >= 1, not {}", every);
  STARLING_CHECK(combine != Combine::kBest || held_out_.input.defined(),
                 "combine = best needs held-out samples");
}

bool ParallelSgd::advance(StepReport& report) {
  update_replica();
  if (step_.index % every_ != 0) return false;
  exchanging(report, ExchangePhase::kParameters, [&] {
    ++combines_;
    replica_.parameters().copy_(combined());
    replica_.parameters_changed();
  });
  return true;
}

// Returns the weights that the driver combines from those of all ranks. Every rank gets them.
at::Tensor ParallelSgd::combined() {
  at::NoGradGuard no_grad;
  const std::vector<at::Tensor> weights = gather_flat(group_, replica_.parameters());
  at::Tensor result = at::empty_like(replica_.parameters());
  if (combine_ == Combine::kBest) {
    const size_t best = best_of(weights);
    if (group_.rank() == 0) result.copy_(weights[best]);
  } else if (group_.rank() == 0) {
    result.copy_(weights[0]);
    for (size_t r = 1; r < weights.size(); ++r) result.add_(weights[r]);
    result.div_(static_cast<double>(weights.size()));
  }
  if (group_.size() > 1)
    broadcast(group_, result.data_ptr(), result.numel(), data_type_of(result.scalar_type()), 0);
  return result;
}

// Sends the held-out samples of all ranks to rank 0.
void ParallelSgd::collect_held_out() {
  if (group_.rank() != 0) {
    for (const at::Tensor& input : held_out_.inputs()) send_tensor(group_, input, 0);
    for (const at::Tensor& target : held_out_.targets()) send_tensor(group_, target, 0);
    return;
  }
  all_held_out_.push_back(held_out_);
  for (int r = 1; r < group_.size(); ++r) {
    Tensors inputs = held_out_.inputs(), targets = held_out_.targets();
    for (at::Tensor& input : inputs) input = recv_tensor(group_, input, r);
    for (at::Tensor& target : targets) target = recv_tensor(group_, target, r);
    all_held_out_.push_back(make_batch(std::move(inputs), std::move(targets)));
  }
}

// Returns the rank of the best candidate on rank 0, and 0 on all other ranks.
size_t ParallelSgd::best_of(const std::vector<at::Tensor>& candidates) {
  if (!std::exchange(collected_, true)) collect_held_out();
  if (group_.rank() != 0) return 0;
  std::vector<double> losses;
  replica_.hide();
  for (const at::Tensor& candidate : candidates) {
    replica_.show(candidate);
    double sum = 0;
    for (const Batch& batch : all_held_out_) sum += replica_.loss_of(batch) * replica_.loss_weight();
    losses.push_back(sum);
  }
  replica_.hide();
  const auto best = std::min_element(losses.begin(), losses.end()) - losses.begin();
  best_rank_ = static_cast<double>(best);
  return static_cast<size_t>(best);
}

StrategyStats ParallelSgd::strategy_stats() {
  StrategyStats stats = {
      {"combines", combines_}, {"every", static_cast<double>(every_)}, {"best_rank", best_rank_}};
  tell_threads(stats);
  return stats;
}

std::unique_ptr<Strategy> make_parallel_sgd(const ExchangeParts& parts) {
  const ExchangeSpec& exchange = parts.spec.exchange;
  // exchange.rounds cuts the run into rounds of equal length. The last round may be longer.
  const int64_t every =
      exchange.rounds == 0 ? exchange.every : std::max<int64_t>(1, parts.total_steps / exchange.rounds);
  return std::make_unique<ParallelSgd>(parts.factory, make_update_rule(parts.spec.optimizer), parts.replica,
                                       every, exchange.combine == "best" ? Combine::kBest : Combine::kAverage,
                                       parts.held_out, parts.group, parts.clock);
}

}  // namespace starling
