// CutRanges holds the calibrated ranges of the tensors that cross the cuts between stages
// (pipeline.activations = "calibrated-int8").
//
// In its first `steps` steps a tensor crosses its cut exactly. Sender and receiver then see equal values, so
// both record the same range and no message needs a scale:
//
//   a = max over the messages of these steps of P_p(|x|)       p: percentile; p = 100 is the largest |x|
//
// From then on the tensor is sent as 8-bit codes with the range a (codec/symmetric_int8.h). An activation and
// its gradient have separate ranges, and so have several tensors on one cut. All tensors are calibrated anew,
// and are again exact for `steps` steps,
//
//   - in the steps every + 1, 2 every + 1, …, if `every` > 0, because ranges shrink;
//   - after a step in which more than 100 − percentile + limit percent of the values of some tensor were
//     beyond its range, because ranges grow. Only senders see this, so the ranks of a pipeline must tell each
//     other (StageNotice in pipeline/stage_model.h).
//
// A tensor that was zero in all of these steps stays exact until a step has another value.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace starling {

// Settings of CutRanges.
struct CalibrationOptions {
  int64_t steps = 2;        // pipeline.calibration_steps: at least 1
  int64_t every = 500;      // pipeline.recalibrate_every: steps; 0: never
  double limit = 1;         // pipeline.saturation_limit: percent of the values of a tensor in a step
  double percentile = 100;  // pipeline.percentile: above 0, at most 100
};

// Identifies a tensor that crosses a cut. Both ends of the cut name it equally, whatever the schedule.
struct CutTensor {
  size_t block = 0;       // the model's block that follows the cut
  bool gradient = false;  // whether it is the gradient, which goes backward
  size_t index = 0;       // place among the tensors of the activation
  auto operator<=>(const CutTensor&) const = default;
};

// The ranges that one rank knows: those of the cuts before and behind its stages. Not thread-safe.
class CutRanges {
 public:
  // Knows no range yet.
  explicit CutRanges(const CalibrationOptions& options) : options_(options) {}

  // Starts a step, whose number is from 1. Begins a new calibration if it is due.
  void begin_step(int64_t step);
  // Ends a step. Tensors of which a message was recorded in the step have one step of their calibration less.
  void end_step();

  // Returns the range with which the tensor is encoded, or 0 if it is sent exactly.
  float range_of(const CutTensor& of) const;
  // Records the values of a message that is sent exactly. Does nothing outside a step.
  void record(const CutTensor& of, std::span<const float> values);

  // Counts values that this rank has sent with a range, and those beyond it. Does nothing outside a step.
  void count(const CutTensor& of, size_t values, size_t saturated);
  // Returns true if some tensor that this rank sends exceeded the limit in the last step.
  bool exceeds_limit() const;
  // Calibrates all tensors in the next steps. All ranks of a pipeline must call it after the same step.
  void restart();

  // Returns a snapshot by name: "range@<replica>/cut<block>.activation<index>" or "….gradient<index>". Each
  // entry has three fp64 numbers: the range in use, the one that is being recorded, and the steps that are
  // left to record.
  std::map<std::string, at::Tensor> state(int replica) const;
  // Takes the entries of this replica. Tensors without an entry will be calibrated. Errors:
  // Error(kCheckpoint) for an entry of another shape.
  void load(const std::map<std::string, at::Tensor>& state, int replica);
  // Returns true for the name of an entry of any replica.
  static bool is_entry(const std::string& name) { return name.starts_with("range@"); }

 private:
  struct Calibration {
    float range = 0;                     // of the last calibration that has ended
    float recorded = 0;                  // largest percentile so far
    int64_t left = 0;                    // steps of the calibration that are not over; 0: `range` is in use
    bool seen = false;                   // whether a message was recorded in this step
    uint64_t values = 0, saturated = 0;  // sent with `range` in this step
  };

  CalibrationOptions options_;
  std::map<CutTensor, Calibration> tensors_;
  bool in_step_ = false;
};

}  // namespace starling
