#include "starling/parallel/replica/hogwild_team.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "starling/base/check.h"
#include "starling/optim/hogwild_update.h"
#include "starling/parallel/replica/batch_parts.h"

namespace starling {
namespace {

FlatReplicaOptions options_of_worker(FlatReplicaOptions options) {
  options.hogwild = {};
  options.accumulate = 1;
  options.releases_gradients = false;
  options.mean_over = nullptr;
  options.clock = nullptr;
  return options;
}

}  // namespace

HogwildTeam::HogwildTeam(const ModelFactory& factory, const UpdateRule& rule,
                         const FlatReplicaOptions& options)
    : options_(options.hogwild),
      counts_(static_cast<size_t>(options.hogwild.threads)),
      team_(options.hogwild.threads) {
  STARLING_CHECK(options_.threads >= 1 && options_.updates >= 1 &&
                     options_.updates <= std::numeric_limits<int64_t>::max() / options_.threads,
                 "{} threads, {} updates", options_.threads, options_.updates);
  STARLING_CHECK(rule.spec().name == "sgd" && rule.state_count() == 0 && !options.optimizer &&
                     options.working == options.master,
                 "threads without locks train by plain SGD in the type of the parameters");
  for (int t = 0; t < options_.threads; ++t)
    workers_.push_back(std::make_unique<FlatReplica>(factory, rule, options_of_worker(options)));
}

template <typename T>
void HogwildTeam::apply(FlatReplica& own, double share, const Step& step, FlatReplica& shared, Count& count) {
  const at::NoGradGuard no_grad;
  const OptimizerSpec& optimizer = own.rule().spec();
  HogwildUpdate<T> update;
  update.lr = step.lr * share;
  update.gradient_scale = own.clipping_scale();
  update.form = options_.sparse ? HogwildForm::kSparse : HogwildForm::kDense;
  for (size_t i = 0; i < own.sizes().size(); ++i) {
    const size_t offset = own.layout().offset[i];
    const bool exempt = optimizer.exempt_vectors && own.replica().parameters[i].tensor.dim() <= 1;
    update.weight_decay = exempt ? 0 : optimizer.weight_decay;
    update.shared = shared.parameters().data_ptr<T>() + offset;
    update.gradient = own.gradients().data_ptr<T>() + offset;
    update.read = own.parameters().data_ptr<T>() + offset;
    update.count = own.sizes()[i];
    const HogwildCounts counts = hogwild_update(update);
    count.touched += counts.touched;
    count.retries += counts.retries;
  }
}

// Trains on one mini-batch, which has `share` of the step's samples. Returns its loss. T: the type of the
// parameters.
template <typename T>
double HogwildTeam::update_once(int thread, const Batch& part, double share, const Step& step,
                                FlatReplica& shared) {
  FlatReplica& own = *workers_[static_cast<size_t>(thread)];
  Count& count = counts_[static_cast<size_t>(thread)];
  const auto access = [&](HogwildAccess what, bool done) {
    if (on_access_) on_access_(thread, what, done);
  };
  access(HogwildAccess::kRead, false);
  const uint64_t before = updates_.load(std::memory_order_relaxed);
  hogwild_read(shared.parameters().data_ptr<T>(), own.parameters().data_ptr<T>(),
               static_cast<size_t>(own.parameters().numel()));
  access(HogwildAccess::kRead, true);
  const double loss = own.forward_backward(part, step.index);
  own.check_gradients(step.index);
  access(HogwildAccess::kUpdate, false);
  apply<T>(own, share, step, shared, count);
  const uint64_t delay = updates_.fetch_add(1, std::memory_order_relaxed) - before;
  access(HogwildAccess::kUpdate, true);
  ++count.updates;
  count.delays += delay;
  count.largest_delay = std::max(count.largest_delay, delay);
  return loss;
}

double HogwildTeam::step(const Batch& batch, const Step& step, FlatReplica& shared) {
  const auto each = static_cast<size_t>(options_.updates);
  const std::vector<Batch> parts = cut_batch(batch, options_.threads * options_.updates);
  const auto samples = static_cast<double>(batch.size());
  const bool fp64 = shared.options().master == at::kDouble;
  std::vector<double> losses(parts.size());
  share_buffers(shared);
  failed_ = false;
  team_.run([&](int thread) {
    const size_t begin = static_cast<size_t>(thread) * each, end = std::min(begin + each, parts.size());
    try {
      for (size_t i = begin; i < end && !failed_; ++i) {
        const double share = static_cast<double>(parts[i].size()) / samples;
        losses[i] = share * (fp64 ? update_once<double>(thread, parts[i], share, step, shared)
                                  : update_once<float>(thread, parts[i], share, step, shared));
      }
    } catch (...) {  // the run ends with this error, so the other threads need not go on
      failed_ = true;
      throw;
    }
  });
  take_buffers(shared, (parts.size() + each - 1) / each);
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

// Gives each thread the buffers of the rank.
void HogwildTeam::share_buffers(FlatReplica& shared) {
  const at::NoGradGuard no_grad;
  const std::vector<NamedTensor>& buffers = shared.replica().buffers;
  for (const auto& worker : workers_) {
    for (size_t b = 0; b < buffers.size(); ++b) worker->replica().buffers[b].tensor.copy_(buffers[b].tensor);
  }
}

// Gives the rank the buffers of the first `active` threads, which had a mini-batch in the step.
void HogwildTeam::take_buffers(FlatReplica& shared, size_t active) {
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor>& buffers = shared.replica().buffers;
  for (size_t b = 0; b < buffers.size(); ++b) {
    at::Tensor& buffer = buffers[b].tensor;
    buffer.copy_(workers_[0]->replica().buffers[b].tensor);
    if (!buffer.is_floating_point() || active <= 1) continue;
    for (size_t t = 1; t < active; ++t) buffer.add_(workers_[t]->replica().buffers[b].tensor);
    buffer.div_(static_cast<double>(active));
  }
}

void HogwildTeam::tell(StrategyStats& stats) const {
  Count all;
  for (const Count& c : counts_) {
    all.updates += c.updates;
    all.touched += c.touched;
    all.retries += c.retries;
    all.delays += c.delays;
    all.largest_delay = std::max(all.largest_delay, c.largest_delay);
  }
  const double updates = std::max(1.0, static_cast<double>(all.updates));
  const auto elements = static_cast<double>(parameter_count(workers_[0]->replica()));
  stats["threads"] = options_.threads;
  stats["thread_updates"] = static_cast<double>(all.updates);
  stats["touched_share"] = static_cast<double>(all.touched) / (updates * elements);
  stats["mean_delay"] = static_cast<double>(all.delays) / updates;
  stats["largest_delay"] = static_cast<double>(all.largest_delay);
  stats["retries"] = static_cast<double>(all.retries);
}

}  // namespace starling
