// The tensors that a user's module carries from batch to batch (Model::carried), such as the hidden state of
// a recurrent network. Each rank has its own.
//
//   A checkpoint         has the tensors of all ranks.
//   A resumed run        continues with them, if the checkpoint has those of exactly its ranks. Otherwise the
//                        tensors begin anew.
//   A lost rank          takes its tensors along. The other ranks go on with their own tensors of the step
//                        after which they continue.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/nn/model.h"
#include "starling/nn/safetensors/safetensors.h"
#include "starling/spec/run_spec.h"
#include "starling/train/checkpoint.h"

namespace starling {

// Not thread-safe, except for the factory that watch() returns.
class CarriedState {
 public:
  // Returns the factory, and remembers the models that it makes and that carry tensors. This object must
  // outlive what it returns.
  ModelFactory watch(ModelFactory factory);

  // Finds the replica that trains: of the models made so far, the one that still exists. Errors: ConfigError
  // if there are several, because each would carry tensors of its own.
  void find_replica();

  // Returns true if the replica carries tensors.
  bool any() const { return !tensors_.empty(); }

  // Returns copies of the tensors, by name. An undefined tensor stays undefined.
  TensorMap copy() const;
  // Puts copies of the tensors into the module. Names that the module does not have are left out.
  void put(const TensorMap& values);

  // Adds the tensors of all ranks to `ranks` (CheckpointState::ranks), complete on rank 0. `rank` is this
  // rank in the numbering that the run began with. Collective.
  void save(const RunSpec& spec, int rank, Group& group, std::map<std::string, TensorMap>& ranks) const;
  // Puts this rank's tensors of the checkpoint into the module. Returns false, and changes nothing, if the
  // checkpoint does not have the tensors of exactly the ranks of this run. The result is equal on all ranks.
  // A tensor that is undefined so far is put on `device`.
  bool load(const RunSpec& spec, int rank, const CheckpointState& checkpoint, at::Device device);

 private:
  struct Made {
    std::weak_ptr<torch::nn::Module> module;
    std::map<std::string, at::Tensor*> tensors;
  };
  std::mutex mutex_;
  std::vector<Made> made_;  // guarded by mutex_
  std::map<std::string, at::Tensor*> tensors_;
};

}  // namespace starling
