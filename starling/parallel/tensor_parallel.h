// Tensor parallelism as a strategy: the t ranks of a group divide the layers of one replica (nn/tensor_parallel/divide.h), and
// any strategy trains a rank's part as if it were a model, over the ranks that hold the same part of the other replicas. This
// class puts the two together: to the trainer it is a strategy of whole models.
//
// What keeps the copies equal that every rank holds (normalisation, biases behind a sum): their gradients are equal bit for bit
// on the ranks of a replica, and so is what an exchange makes of them, because it treats every part alike.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/model.h"
#include "starling/nn/tensor_parallel/divide.h"
#include "starling/nn/tensor_parallel/tensor_group.h"
#include "starling/parallel/built_strategy.h"
#include "starling/parallel/model_parts.h"
#include "starling/parallel/strategy.h"

namespace starling {

class TensorParallel final : public Strategy {
 public:
  // What trains a rank's part. parts: what of it other ranks of the tensor group count.
  using MakeExchange = std::function<BuiltStrategy(const ModelFactory& part, const ModelParts& parts)>;

  // Collective over `tensor`, the ranks of one replica that divide its layers, and over what make_exchange needs. `counting`:
  // groups whose traffic is in update()'s bytes_sent, because nobody else counts it. All outlive this. Errors: ConfigError
  // where the model cannot be divided.
  TensorParallel(ModelFactory factory, Group& tensor, std::vector<Group*> counting, const Clock& clock,
                 const MakeExchange& make_exchange);

  // A rank's wish to stop becomes that of all ranks of its replica.
  void begin_step(const Step& step) override;
  // batch: the replica's samples of the step, on each of its ranks.
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  void consensus() override;
  // Collective. Whole tensors, complete on rank 0 of the group where the exchange's state is complete.
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // This rank's part of the agreed model after consensus(): all ranks of the tensor group evaluate the same samples.
  Replica& evaluated() { return *exchange_.evaluated; }
  int64_t whole_parameters() const { return whole_parameters_; }
  // What trains this rank's part.
  const BuiltStrategy& exchange() const { return exchange_; }

  // That of the exchange, on this rank's part, and: tensor_ranks; held_parameters, whole_parameters; tensor_elements: moved in
  // the last step (nn/tensor_parallel/tensor_group.h). Of a transformer also layer_elements, those of a layer, and
  // layer_formula, 8 b s h (t − 1)/t: four all-reduces of b samples, s tokens, width h.
  std::map<std::string, double> fingerprint();

 private:
  ModelFactory divided(ModelFactory factory);
  std::map<std::string, at::Tensor> whole_of(const std::map<std::string, at::Tensor>& parts);
  uint64_t counted_bytes() const;

  const Clock& clock_;
  TensorGroup group_;
  std::vector<Group*> counting_;
  Division division_;  // filled by the factory
  int64_t whole_parameters_ = 0;
  BuiltStrategy exchange_;
  std::map<std::string, LayerTraffic> traffic_;  // of the last step
  int64_t step_ = 0, tokens_ = 0;
  uint64_t bytes_before_ = 0;
};

}  // namespace starling
