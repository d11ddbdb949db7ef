// DistributedOptimizer makes a program's own training loop distributed:
//
//   auto net = run.replicate(std::make_shared<Net>());
//   torch::optim::Adam adam(net->parameters(), 1e-3);
//   starling::DistributedOptimizer optimizer(run, *net, adam);
//   for (auto& batch : run.loader(train, 64)) {
//     optimizer.zero_grad();
//     loss(net->forward(batch.data), batch.target).backward();
//     optimizer.step();
//   }
//
// The exchange between the ranks is that of the configuration (--exchange, --codec and so on). The update is
// the program's own optimizer, whose settings the program may change at any time (schedulers of libtorch
// work).
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "starling/run/run.h"

namespace starling {

class LoopStrategy;
class LoopAccess;

// An optimizer that exchanges with the other ranks when it steps. Several of them may exist, one for each
// module (as the two of a GAN). Not thread-safe: one thread per rank makes all calls, and every rank makes
// the same calls in the same order. Faults are handled as Run::fit() handles them.
class DistributedOptimizer {
 public:
  // All ranks begin with the parameters and buffers of rank 0. `module` owns the parameters of `optimizer`. A
  // parameter that no optimizer updates keeps its value and is saved in checkpoints. The run, the module and
  // the optimizer must outlive this object. Collective.
  //
  // With --shard (ZeRO) and --exchange central, each rank's optimizer updates a part of the parameters, and
  // its groups then hold these parts. With parameter servers, the servers make the updates of the optimizer,
  // at its present learning rate.
  //
  // With --mesh tensor=T, the module must be one that Run::replicate() has sharded, and the optimizer updates
  // this rank's parts.
  //
  // With --shard parameters (ZeRO 3), each rank keeps a part of the parameters too. An operation of libtorch
  // gathers what it uses, so all ranks must make the same operations on parameters in the same order. Code
  // that reads parameters through data_ptr(), and torch::save(), belong into the scope of consensus(). The
  // destructor makes the module whole again. It is then collective.
  //
  // If the module is on a device, its optimizer holds copies of the parameters in host memory from now on,
  // and updates these. step() moves gradients and parameters, and makes the gradients on the device
  // undefined.
  //
  // With --dry-run, the constructor prints what the loop would train and ends the process with status 0.
  //
  // Errors: ConfigError in these cases:
  // - The configuration asks for what an own loop cannot do, such as stages or bf16.
  // - The command line has a flag that the loop decides in code, such as --lr or --epochs.
  // - Run::replicate() has not sharded the module, and --mesh has a tensor axis.
  // - The optimizer cannot be sharded, or the servers do not know it.
  // - The ranks have different models.
  // - The module is not on the device that --device names, or on several devices.
  // - The module is on a device, and the optimizer has states of earlier steps, or --shard parameters or a
  //   tensor axis is given.
  // - model.init names weights, and the program has not called Run::replicate().
  // - A parameter of the optimizer is not a parameter of the module.
  // - The optimizer is torch::optim::LBFGS, whose step needs a closure.
  DistributedOptimizer(Run& run, torch::nn::Module& module, torch::optim::Optimizer& optimizer);
  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // Says that the loss is a sum, for example over tokens, and that its weight is `weight` on this rank, here
  // the number of tokens. step() then updates by the gradient of the mean over all ranks: the sum of all
  // sums, divided by the sum of all weights. Call it after each backward() and before synchronize(). The
  // weights of accumulated passes add up, and zero_grad() forgets them. Every rank must call it for the step,
  // or none. Exchanges whose ranks update alone take the mean of their own rank. Errors: Error (kNumeric) if
  // the weight is negative or not finite.
  void weigh(double weight);
  // Makes the gradients undefined, as torch::optim::Optimizer::zero_grad() does.
  void zero_grad();
  // Exchanges with the other ranks and updates the parameters. Gradients may have been accumulated over
  // several backward passes: nothing is exchanged before step(). With --shard and --exchange central, and on
  // a device, step() frees the gradients. Ranks with different numbers of samples are weighted by these
  // numbers if the batches come from Run::loader(). Collective. After the ranks have agreed to end the run,
  // the program may go on without a DataLoader. A later step() then ends the process as DataLoader does.
  //
  // A parameter that has a gradient on no rank is not updated, except by servers, to which it is pushed as
  // zeros. Servers that do not wait for all workers do not weight what they get. Errors: ConfigError that
  // names a parameter with a sparse gradient, or one that has a gradient and belonged to no optimizer when
  // this object was made.
  void step();
  // Exchanges the gradients now, if the strategy exchanges gradients, as all-reduce does. Each gradient is
  // then the mean over the ranks, and may be clipped or read before step(). Collective.
  void synchronize();

  // While a Shown exists, the module holds the model that is evaluated and saved. Under all-reduce that is
  // the model itself, with buffers averaged over the ranks. Exchanges whose replicas differ (gossip, ADMM,
  // local SGD) agree on one model.
  class Shown {
   public:
    ~Shown();
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;

   private:
    friend class DistributedOptimizer;
    explicit Shown(LoopStrategy& strategy) : strategy_(strategy) {}
    LoopStrategy& strategy_;
  };
  // Puts the agreed model into the module until the result is destroyed:
  //
  //   { auto shown = optimizer.consensus(); evaluate(*net); }
  //
  // No step() may be made in this scope. The call and the end of the scope are collective.
  [[nodiscard]] Shown consensus();

  // The number of steps so far, those before a resumed checkpoint included.
  int64_t steps() const;
  // Returns what the strategy reports about itself, such as the bytes of a message or the disagreement of the
  // replicas (`starling strategies` explains the names). Collective.
  std::map<std::string, double> statistics();

 private:
  friend class ProgramCheckpoint;

  Run& run_;
  std::unique_ptr<LoopStrategy> strategy_;
  bool stepped_while_stopping_ = false;
};

}  // namespace starling
