// ProgramCheckpoint saves and restores the state of a program's own training loop (Run::checkpoint()):
//
//   auto checkpoint = run.checkpoint();
//   checkpoint.add(optimizer).add("loader", loader).add("epochs", epochs);
//   checkpoint.resume();
//   while (loader.epoch() < 10) {
//     for (auto& batch : loader) {
//       …
//       optimizer.step();
//       checkpoint.step();
//     }
//   }
//   checkpoint.save();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace starling {

class DataLoader;
class DistributedOptimizer;
class Run;

// The checkpoints of one run, in its run folder (--run-dir). What is added must outlive this object. Not
// thread-safe. Every rank makes the same calls in the same order; the methods that save or resume are
// collective. Faults are handled as Run::fit() handles them.
class ProgramCheckpoint {
 public:
  ~ProgramCheckpoint();
  ProgramCheckpoint(ProgramCheckpoint&&) noexcept;

  // Adds the module of a DistributedOptimizer (parameters and buffers), the state of its optimizer and that
  // of its exchange. `name` tells several apart: the tensor fc.weight is then saved as NAME.fc.weight.
  // Without a name it is saved as fc.weight, so that PyTorch can load the file. Errors: ConfigError if the
  // name is taken.
  ProgramCheckpoint& add(DistributedOptimizer& optimizer);
  // See above.
  ProgramCheckpoint& add(const std::string& name, DistributedOptimizer& optimizer);
  // Adds the position of a loader.
  ProgramCheckpoint& add(const std::string& name, DataLoader& loader);
  // Adds a number that is equal on all ranks.
  ProgramCheckpoint& add(const std::string& name, int64_t& number);
  // Adds a number that is equal on all ranks.
  ProgramCheckpoint& add(const std::string& name, double& number);
  // Adds a tensor that is equal on all ranks. Its shape and type stay as they are.
  ProgramCheckpoint& add(const std::string& name, at::Tensor& tensor);
  // Adds a tensor of which each rank has its own values, such as the state that is carried from batch to
  // batch. Its shape and type are equal on all ranks and stay as they are. A run with another number of ranks
  // cannot resume a checkpoint with such a tensor.
  ProgramCheckpoint& add_per_rank(const std::string& name, at::Tensor& tensor);

  // Restores what was added from the newest whole checkpoint of the run folder, or from what --resume names,
  // and the state of torch's random generator. Call it once, after all add(), also in a first run: step() and
  // save() refuse to go on from a checkpoint that was not loaded. Returns whether there was a checkpoint.
  // Errors: Error(kCheckpoint) and ConfigError that name what does not fit.
  bool resume();
  // Counts a step of the loop. Call it after DistributedOptimizer::step(): gradients that are not used yet
  // are not saved. Saves a checkpoint if one is due (checkpoint.every, checkpoint.minutes), and if SIGUSR1
  // asks for one. Also saves a checkpoint if the run is to end because of SIGTERM or Ctrl-C. The file is
  // written by a thread. The time and SIGUSR1 count at every 16th step. Errors: ConfigError if no optimizer
  // was added.
  void step();
  // Saves a checkpoint now, and waits until it is written. Also writes the weights to model.safetensors in
  // the run folder, and to the file of --save. Errors: Error(kCheckpoint), for example if the disk is full.
  void save();
  // The number of steps so far, those before a resumed checkpoint included.
  int64_t steps() const;

 private:
  friend class Run;
  struct State;
  explicit ProgramCheckpoint(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace starling
