#include "starling/parallel/parallel_sgd.h"

#include <torch/torch.h>

#include <algorithm>

#include "starling/base/check.h"
#include "starling/c10d/data_type.h"

namespace starling {
namespace {

constexpr uint32_t kBatchTag = 0x2a11e1;

void send_tensor(Group& group, const at::Tensor& tensor, int peer) {
  const at::Tensor whole = tensor.contiguous();
  const int64_t head[2] = {whole.size(0), static_cast<int64_t>(whole.nbytes())};
  group.send(head, sizeof(head), peer, kBatchTag);
  group.send(whole.data_ptr(), whole.nbytes(), peer, kBatchTag);
}

// A tensor like `like` but for its first dimension.
at::Tensor recv_tensor(Group& group, const at::Tensor& like, int peer) {
  int64_t head[2] = {};
  group.recv(head, sizeof(head), peer, kBatchTag);
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes[0] = head[0];
  at::Tensor tensor = at::empty(sizes, like.options());
  STARLING_CHECK(static_cast<int64_t>(tensor.nbytes()) == head[1], "a batch of {} bytes, not {}", head[1],
                 tensor.nbytes());
  group.recv(tensor.data_ptr(), tensor.nbytes(), peer, kBatchTag);
  return tensor;
}

}  // namespace

ParallelSgd::ParallelSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                         int64_t every, Combine combine, Group& group, const Clock& clock)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock), every_(every), combine_(combine) {
  STARLING_CHECK(every >= 1, "parallel SGD combines every {} steps", every);
}

bool ParallelSgd::advance(StepReport& report) {
  replica_.update(step_);
  if (step_.index % every_ != 0) return false;
  exchanging(report, [&] {
    ++combines_;
    replica_.parameters().copy_(combined());
    replica_.parameters_changed();
  });
  return true;
}

// What the driver makes of the ranks' weights, on every rank.
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
    group_.broadcast(result.data_ptr(), result.numel(), data_type_of(result.scalar_type()), 0);
  return result;
}

std::vector<Batch> ParallelSgd::collect_batches() {
  std::vector<Batch> batches;
  if (!batch_.input.defined()) return batches;  // no step yet: all weights are equal
  if (group_.rank() != 0) {
    send_tensor(group_, batch_.input, 0);
    send_tensor(group_, batch_.target, 0);
    return batches;
  }
  batches.push_back(batch_);
  for (int r = 1; r < group_.size(); ++r) {
    const at::Tensor input = recv_tensor(group_, batch_.input, r);
    batches.push_back({input, recv_tensor(group_, batch_.target, r)});
  }
  return batches;
}

size_t ParallelSgd::best_of(const std::vector<at::Tensor>& candidates) {
  const std::vector<Batch> batches = collect_batches();
  if (batches.empty()) return 0;
  std::vector<double> losses;
  replica_.hide();
  for (const at::Tensor& candidate : candidates) {
    replica_.show(candidate);
    double sum = 0;
    for (const Batch& batch : batches) sum += replica_.loss_of(batch) * static_cast<double>(batch.size());
    losses.push_back(sum);
  }
  replica_.hide();
  const auto best = std::min_element(losses.begin(), losses.end()) - losses.begin();
  best_rank_ = static_cast<double>(best);
  return static_cast<size_t>(best);
}

Fingerprint ParallelSgd::fingerprint() {
  return {{"combines", combines_}, {"every", static_cast<double>(every_)}, {"best_rank", best_rank_}};
}

}  // namespace starling
