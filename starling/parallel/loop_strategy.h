// LoopStrategy is a strategy whose gradients a user's own loop computes. DistributedOptimizer
// (run/loop/distributed_optimizer.h) and the Python class of the same name are made of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/loop_device.h"
#include "starling/parallel/loop_state.h"
#include "starling/parallel/replica/own_optimizer.h"
#include "starling/parallel/strategy.h"
#include "starling/spec/config.h"
#include "starling/spec/run_spec.h"

namespace starling {

// The tensors of a model that a user's own loop trains, in host memory.
struct LoopModel {
  std::vector<NamedTensor> parameters;  // those that the optimizer updates
  std::vector<NamedTensor> frozen;      // all other parameters
  std::vector<NamedTensor> buffers;
  std::shared_ptr<LoopDevice> device = nullptr;  // null: the tensors are those of the module, and not copies
};

// How the layers of a loop's module are sharded over the ranks of a tensor axis. Not thread-safe.
class LoopSharding {
 public:
  using MakeExchange =
      std::function<std::unique_ptr<Strategy>(const ModelFactory& part, const ModelParts& parts)>;
  virtual ~LoopSharding() = default;
  // The ranks that hold the same part of the module.
  virtual Group& replicas() = 0;
  // Gives the ranks of a replica equal values of what each of them holds whole. Collective. Errors:
  // ConfigError if their models have other names.
  virtual void begin_equal(LoopModel& model) = 0;
  // Makes the strategy of whole models around the exchange of this rank's part. Collective.
  virtual std::unique_ptr<Strategy> make_strategy(const ModelFactory& part,
                                                  const MakeExchange& make_exchange) = 0;
  // Returns whole tensors on the first rank of each replica, from the parts of its ranks. Collective over
  // them.
  virtual std::map<std::string, at::Tensor> whole(const std::map<std::string, at::Tensor>& parts) = 0;
  // Returns this rank's parts of whole tensors.
  virtual std::map<std::string, at::Tensor> parts(const std::map<std::string, at::Tensor>& whole) = 0;
};

// The process in which an own loop runs. What it refers to outlives everything made from it.
struct LoopPlace {
  Group& group;  // all ranks
  const Clock& clock;
  const std::atomic<bool>& stop;  // set by SIGTERM and Ctrl-C
  LoopState& loop;
  ServerAccess servers = {};         // of the run; each strategy has a service of its own
  LoopSharding* sharding = nullptr;  // null: each rank holds the whole module
};

// What must be equal in the models of ranks. The parts of a sharded module have different shapes.
enum class SameModel { kShapes, kNames };

// Throws ConfigError if the models of the ranks differ in the name, the type or, with kShapes, the shape of a
// tensor. Collective.
void require_same_model(Group& group, const LoopModel& model, SameModel same = SameModel::kShapes);

// Throws ConfigError if a program's own optimizer cannot follow the configuration. The message names the key
// and the remedy.
void require_own_optimizer(const RunSpec& spec);

// Returns the configuration of an own loop. exchange.block_momentum becomes 0 unless the user has set it. The
// recipe's value goes with a lower learning rate, but the learning rate of a loop is the program's.
RunSpec loop_spec(RunSpec spec, const Origins& origins);

// Throws ConfigError if an own loop cannot follow the configuration. The message names the key and the
// remedy.
void require_own_loop(const RunSpec& spec);

// Not thread-safe: one thread per rank makes all calls. Every rank makes the same calls in the same order.
class LoopStrategy {
 public:
  // All ranks begin with the tensors of rank 0. The parameters keep their identity, and their memory becomes
  // the strategy's. Everything that the arguments refer to must outlive this object. Collective. Errors:
  // ConfigError for a configuration that an own loop cannot follow, or if the ranks have different models.
  LoopStrategy(const RunSpec& spec, const LoopPlace& place, LoopModel model,
               std::shared_ptr<OwnOptimizer> optimizer);
  ~LoopStrategy();

  // Exchanges the gradients if the strategy exchanges gradients. The gradient of each parameter is then the
  // mean over the ranks, and step() does not exchange it again. The program may change the gradient in place
  // before step(). Collective. Errors: CommError.
  void synchronize();
  // Says that the gradients of the step are those of a sum whose weight is `weight` on this rank. The weights
  // of several calls are added. step() and zero_grad() reset the weight. Errors: ConfigError after
  // synchronize() in the step; Error (kNumeric) if the weight is negative or not finite.
  void weigh(double weight);
  // Makes one step: exchanges and updates. Frees the gradients if the optimizer updates copies or parts of
  // the parameters. Collective. Errors: CommError; ConfigError for a parameter that has a gradient and is not
  // the optimizer's.
  void step();
  // Makes the gradients of the parameters undefined.
  void zero_grad();
  // Puts the model that is evaluated and saved into place. Collective.
  void consensus();
  // Puts this rank's own model back into place after consensus(). The function never throws; the next call
  // throws the error instead. If an exception is propagating, the function does nothing, and the next call
  // puts the model back. Collective.
  void resume_training() noexcept;

  // Returns the state for a checkpoint, complete on rank 0. Collective.
  StrategyState state();
  // Loads a state, which must be equal on all ranks. Errors: Error(kCheckpoint).
  void load_state(const StrategyState& state);
  // The number of elements of the whole model that the optimizer updates.
  int64_t parameters() { return strategy_->whole_parameters(); }
  // The number of steps so far.
  int64_t steps() const { return step_; }
  // Returns the strategy statistics. Collective.
  StrategyStats statistics();

 private:
  // The ranks that hold the same parameters. The exchange runs over them.
  Group& replicas() const { return place_.sharding != nullptr ? place_.sharding->replicas() : place_.group; }
  ServerAccess next_service() const;
  void require_resumed();
  void begin_step();
  void send_model();
  // Return parameter i of the program's module, or its frozen parameter i, where the module computes.
  const at::Tensor& parameter_of_module(size_t i) const;
  const at::Tensor& frozen_of_module(size_t i) const;
  void take_gradients();
  OwnStep own_step() const;
  void require_known_gradients() const;
  void require_taken_gradients() const;
  void begin_batch(bool borrowed);
  void drop_borrowed();
  void forget_gradients();
  void clear_gradients();

  RunSpec spec_;
  const LoopPlace place_;
  LoopModel model_;
  std::shared_ptr<OwnOptimizer> optimizer_;
  std::unique_ptr<Strategy> strategy_;
  int64_t step_ = 0;
  std::optional<double> weight_;         // of this rank's sum, if the program has given one
  bool begun_ = false;                   // the step
  std::exception_ptr failed_;            // in resume_training()
  bool taken_ = false;                   // the gradients of the step
  std::vector<const void*> taken_from_;  // by parameter: where its gradient was then
  bool accumulated_ = false;             // a batch of this rank's samples since the last step
  // By parameter: its gradient before the pass of a sample that belongs to another rank.
  std::optional<std::vector<at::Tensor>> before_borrowed_;
};

}  // namespace starling
