// LayerPerCore is a pipeline inside one process. Each thread holds a stage, or several stages if the schedule
// is interleaved. All stages work at the same time on different micro-batches.
//
// The schedules and the results of a step are those of a Pipeline whose ranks are processes. Activations pass
// through the shared memory of a group of threads.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/net/store/store.h"
#include "starling/parallel/pipeline/pipeline.h"
#include "starling/parallel/pipeline/traced.h"
#include "starling/parallel/replica/thread_team.h"
#include "starling/parallel/strategy.h"

namespace starling {

// A pipeline whose stages are threads. Not thread-safe.
class LayerPerCore final : public Strategy, public Traced {
 public:
  // Starts one thread for each rank of options.schedule. The clock must outlive this object. Errors: those of
  // Pipeline.
  LayerPerCore(const ModelFactory& factory, UpdateRule rule, const PipelineOptions& options,
               const Clock& clock);
  ~LayerPerCore() override;

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;  // returns the mean loss
  // slowest_rank is -1, because the process is one rank. compute_s is that of the thread that computed
  // longest. The exposed communication is that of the thread that waited least.
  StepReport update() override;
  void consensus() override;
  void show_average() override;
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // The whole model, as in Pipeline::replica().
  Replica& replica() { return stages_[0]->replica(); }
  Replica& evaluated() override { return stages_[0]->evaluated(); }
  StrategyStats strategy_stats() override { return stages_[0]->strategy_stats(); }
  Traced* traced() override { return this; }
  const Schedule& schedule() const override { return stages_[0]->schedule(); }
  std::vector<MeasuredAction> gather_timeline() override;

 private:
  // Runs `task` on every thread. A fault of one thread aborts the group, because all other threads would wait
  // for that thread.
  void run(const std::function<void(int thread)>& task);

  const std::unique_ptr<Store> store_;          // the store through which the threads connect
  std::vector<std::unique_ptr<Group>> groups_;  // by thread
  std::vector<std::unique_ptr<Pipeline>> stages_;
  ThreadTeam team_;
};

}  // namespace starling
