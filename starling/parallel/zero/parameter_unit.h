// ParameterUnit holds parameters that lie in one flat range, of which each rank owns an equal share. The
// whole range has memory only while the parameters are used (ZeRO stage 3, arXiv 1910.02054).
//
// GatherOnUse finds the uses. It is a callback of libtorch that sees the arguments of each operation of this
// thread before the operation runs. It sees the operations in forward, in backward and between them. If an
// argument lies in the memory of a unit, the unit is gathered first. So the model may be any module that
// computes by operations of libtorch. Code that reads a parameter through data_ptr() must call an operation
// on it before, for example detach(). The pointer is valid until the next operation on another parameter.
// libtorch throws for an access to a parameter that has no memory.
//
// A unit that an operation uses stays whole until the operation ends. Of the other units, those that were
// used last stay whole, up to a number. All ranks must use their parameters in the same order, which is
// compared before each update.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/parallel/replica/flat_layout.h"
#include "starling/parallel/replica/own_gradients.h"
#include "starling/parallel/replica/replica.h"
#include "starling/parallel/zero/gradient_share.h"

namespace starling {

class ParameterUnit;

// Gathers units when operations of this thread use them. Not thread-safe: the thread that makes this object
// also destroys it, and computes.
class GatherOnUse {
 public:
  // kept: the number of units that stay whole though no operation uses them, at least 1.
  explicit GatherOnUse(size_t kept);
  ~GatherOnUse();
  GatherOnUse(const GatherOnUse&) = delete;

  // If `hold` is true, all units that are gathered from now on stay whole. If `hold` is false, releases all
  // units that no operation uses, and keeps at most the constructor's number of unused units from now on.
  void hold(bool hold);
  // Compares which units the ranks have gathered since the last call, and in which order. Errors: ConfigError
  // if the orders differ. Collective.
  void require_same_order(Group& group);
  // Rethrows the first error of a collective. libtorch discards the errors of callbacks, so the operation has
  // computed with zeros.
  void rethrow();

 private:
  friend class ParameterUnit;
  struct InUse;
  static std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& operation);
  static void ends(const at::RecordFunction& operation, at::ObserverContext* in_use);
  void use(ParameterUnit& unit);
  void note(size_t unit);
  void shrink(size_t kept);

  const size_t kept_;
  bool holds_ = false;
  uint64_t order_ = 0;               // a hash of the gathered units
  std::list<ParameterUnit*> whole_;  // the unit that was used last comes first
  std::exception_ptr fault_;
  at::CallbackHandle callback_;
};

// What the units of a rank count.
struct ParameterAccount {
  int64_t gathers = 0;           // of units
  double received_elements = 0;  // by Group::traffic()
  double gather_s = 0;           // time of the gathers
  size_t whole_bytes = 0;        // of units that are whole now
  size_t peak_whole_bytes = 0;   // the largest value of whole_bytes
};

// The objects that a unit uses. They must outlive the unit.
struct UnitEnvironment {
  Group& group;
  const Clock& clock;
  ParameterAccount& account;
  GatherOnUse& gatherer;
};

// Some parameters with this rank's share of them. Not thread-safe.
class ParameterUnit {
 public:
  // parameters: [i] is the index of a parameter of `replica`. All have one type. The unit takes their values,
  // and their memory becomes the unit's. master: the type of the update.
  ParameterUnit(std::vector<size_t> parameters, Replica& replica, at::ScalarType master,
                const UnitEnvironment& environment);
  // The parameters keep their values if the unit is whole. Otherwise libtorch throws for an access.
  ~ParameterUnit();
  ParameterUnit(const ParameterUnit&) = delete;

  // Makes the parameters whole. Collective, unless they are whole.
  void gather();
  // Frees the memory of the whole parameters, after keep_changes().
  void release();
  // Takes over what the program has changed in the whole parameters, if they have the type of the update. All
  // ranks must have made the same changes.
  void keep_changes();

  // The range that this rank's optimizer updates, and its number of elements with padding.
  OwnedRange& range() { return range_; }
  int64_t share() const { return share_; }
  // Call it after an update of range(). Frees the memory of the whole parameters, whose values are old.
  void updated();

  // Takes the gradients (.grad) of the parameters, times `weight`, into one flat range, which .grad then
  // shows. used: by parameter of the replica. The unit sets the entry of each of its parameters: 1 if the
  // parameter had a gradient, otherwise 0.
  void take_gradients(Replica& replica, double weight, std::vector<double>& used);
  // Replaces the gradients by their mean over the ranks. whole: on every element, and otherwise on this
  // rank's share. Collective.
  void reduce(bool whole);
  // This rank's share of the gradients. After reduce(), that of the mean.
  at::Tensor own_gradient();
  // Returns own_gradient() with its place. It refers to this unit and to `replica`.
  GradientShare gradient_share(const Replica& replica);
  // Frees the whole gradients, and makes each .grad that shows them undefined.
  void release_gradients(Replica& replica);
  // Frees this rank's share of the gradients.
  void forget_gradients();
  // The elements of gradients that this rank holds.
  int64_t gradient_elements() const;

  // Copies each parameter into `out` on rank 0. Collective.
  void collect(const Replica& replica, std::map<std::string, at::Tensor>& out);
  // Loads this rank's share. Errors: Error(kCheckpoint) naming the tensor that does not fit.
  void load(const Replica& replica, const std::map<std::string, at::Tensor>& in);

  // Indices into the parameters of the replica.
  const std::vector<size_t>& parameters() const { return parameters_; }
  // Where each parameter lies in the unit.
  const FlatLayout& layout() const { return layout_; }
  // Bytes of parameters that this rank holds between steps.
  size_t own_bytes() const;
  // The first element of this rank's share.
  int64_t begin() const { return begin_; }

 private:
  friend class GatherOnUse;
  struct Memory;
  static ParameterUnit* unit_of(const at::Tensor& tensor);
  static void free_memory(void* memory);
  void own_memory(c10::DataPtr bytes);
  void hold(size_t bytes);
  void drop();
  at::Tensor view(const at::Tensor& flat, size_t position) const;

  const std::vector<size_t> parameters_;
  const UnitEnvironment environment_;
  FlatLayout layout_;  // by position in parameters_
  int64_t share_ = 0, begin_ = 0;
  std::vector<at::Tensor> likes_;  // sizes, strides and type of each parameter, without memory
  at::Tensor whole_;               // all parameters, with padding; it has no memory while released
  at::Tensor own_;                 // this rank's share
  at::Tensor master_;              // own_, or its original in the type of the update
  OwnedRange range_;
  at::Tensor gradient_;      // the whole gradient, from take_gradients() until it is released
  at::Tensor own_gradient_;  // this rank's share of the mean, from reduce() on
  bool gathered_ = true;
  bool broken_ = false;  // whether the last gather has failed, so that the whole parameters are zeros
  int pins_ = 0;         // operations that use the unit now
};

// Cuts the parameters, in the order of the module, into units of one type. A unit ends when it has at least
// `bytes` bytes.
std::vector<std::vector<size_t>> plan_units(const Replica& replica, size_t bytes);

}  // namespace starling
