// LayerPerCore: the pipeline inside one process. Each of `threads` cores holds a stage (with interleaved tables several), and
// all stages work at once on different micro-batches, as the ranks of a Pipeline do on different machines: same tables, same
// step, activations through the shared memory of a group of threads.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/net/store.h"
#include "starling/parallel/pipeline/pipeline.h"
#include "starling/parallel/strategy.h"
#include "starling/parallel/thread_team.h"

namespace starling {

class LayerPerCore final : public Strategy {
 public:
  // A thread for each rank of options.schedule. The clock outlives this. Errors: those of Pipeline.
  LayerPerCore(const ModelFactory& factory, UpdateRule rule, const PipelineOptions& options,
               const Clock& clock);
  ~LayerPerCore() override;

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;  // the mean loss
  // slowest_rank is -1: the process is one rank. Seconds are those of the slowest thread.
  StepReport update() override;
  void consensus() override;
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // See Pipeline; rank means thread.
  Replica& replica() { return stages_[0]->replica(); }
  std::vector<std::pair<std::string, double>> fingerprint() const { return stages_[0]->fingerprint(); }
  std::vector<MeasuredAction> gather_timeline();

 private:
  // One fault ends all: the others would wait for the thread that has left.
  void run(const std::function<void(int thread)>& task);

  const std::unique_ptr<Store> store_;          // where the threads meet
  std::vector<std::unique_ptr<Group>> groups_;  // of each thread
  std::vector<std::unique_ptr<Pipeline>> stages_;
  ThreadTeam team_;
};

}  // namespace starling
