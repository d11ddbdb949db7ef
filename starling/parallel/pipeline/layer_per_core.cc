#include "starling/parallel/pipeline/layer_per_core.h"

#include <ATen/Parallel.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/net/memory/memory_store.h"

namespace starling {
namespace {

// Makes a stage compute with one ATen thread. The calling thread also runs a stage, and gets all threads back
// afterwards for evaluation.
class OneThreadEach {
 public:
  OneThreadEach() { at::set_num_threads(1); }
  ~OneThreadEach() { at::set_num_threads(before_); }
  OneThreadEach(const OneThreadEach&) = delete;

 private:
  const int before_ = at::get_num_threads();
};

}  // namespace

LayerPerCore::LayerPerCore(const ModelFactory& factory, UpdateRule rule, const PipelineOptions& options,
                           const Clock& clock)
    : store_(std::make_unique<MemoryStore>()),
      groups_(options.schedule.ranks),
      stages_(options.schedule.ranks),
      team_(options.schedule.ranks) {
  team_.run([&](int thread) {
    GroupSetup setup;
    setup.rank = thread;
    setup.size = team_.size();
    setup.name = "layer-per-core";
    // The timeout is long because the data loader may be slow. A fault of a thread ends the process or is
    // thrown here.
    setup.options.timeout = std::chrono::minutes(10);
    groups_[thread] = make_group(*store_, setup);
  });
  // All models are made before the threads start. Models are drawn from torch's default generator, which
  // belongs to the process, and a thread may seed it at any time. A stage needs two models: one for measuring
  // and one for training.
  std::mutex mutex;
  std::vector<Model> models;
  for (int i = 0; i < 2 * options.schedule.ranks; ++i) {
    torch::manual_seed(options.seed);
    models.push_back(factory());
  }
  const ModelFactory ready_made = [&] {
    const std::lock_guard lock(mutex);
    Model model = std::move(models.back());
    models.pop_back();
    return model;
  };
  run([&](int thread) {
    stages_[thread] = std::make_unique<Pipeline>(ready_made, rule, options, *groups_[thread], clock);
  });
}

LayerPerCore::~LayerPerCore() = default;

void LayerPerCore::run(const std::function<void(int)>& task) {
  const OneThreadEach one_thread_each;
  std::mutex mutex;
  std::exception_ptr first;
  team_.run([&](int thread) {
    try {
      task(thread);
    } catch (
        const std::exception& error) {  // outermost function of a thread; the first exception is rethrown
      const std::lock_guard lock(mutex);
      if (first) return;
      first = std::current_exception();
      for (const auto& group : groups_) group->abort(error.what());
    }
  });
  if (first) std::rethrow_exception(first);
}

void LayerPerCore::begin_step(const Step& step) {
  run([&](int thread) { stages_[thread]->begin_step(step); });
}

double LayerPerCore::forward_backward(const Batch& batch) {
  std::vector<double> losses(stages_.size());
  run([&](int thread) { losses[thread] = stages_[thread]->forward_backward(batch); });
  return losses[0];  // equal on all threads
}

StepReport LayerPerCore::update() {
  std::vector<StepReport> reports(stages_.size());
  run([&](int thread) { reports[thread] = stages_[thread]->update(); });
  StepReport report = reports[0];
  for (const StepReport& r : reports) {
    report.compute_s = std::max(report.compute_s, r.compute_s);
    if (r.exposed_comm_s >= report.exposed_comm_s) continue;
    report.exposed_comm_s = r.exposed_comm_s;
    report.phase_s = r.phase_s;
  }
  report.slowest_rank = -1;
  return report;
}

void LayerPerCore::consensus() {
  run([&](int thread) { stages_[thread]->consensus(); });
}

void LayerPerCore::show_average() {
  run([&](int thread) { stages_[thread]->show_average(); });
}

StrategyState LayerPerCore::state() {
  std::vector<StrategyState> states(stages_.size());
  run([&](int thread) { states[thread] = stages_[thread]->state(); });
  return std::move(states[0]);
}

void LayerPerCore::load_state(const StrategyState& state) {
  run([&](int thread) { stages_[thread]->load_state(state); });
}

std::vector<MeasuredAction> LayerPerCore::gather_timeline() {
  std::vector<std::vector<MeasuredAction>> timelines(stages_.size());
  run([&](int thread) { timelines[thread] = stages_[thread]->gather_timeline(); });
  return std::move(timelines[0]);
}

}  // namespace starling
