// The learning rate of each step, as a pure function.
//
// `it` is the number of updates done before the step. lr0 is optimizer.lr, times s(global_batch /
// schedule.scale_base_batch) if scale_base_batch is set. w is the number of warm-up steps:
// schedule.warmup_steps, or, if that is 0, the part schedule.warmup_share of the run's steps. x = (it - w) /
// (total - w) is the completed share of the steps after warm-up. k is the number of milestones (in epochs)
// that `it` has reached. schedule.scale chooses s:
//
//   linear     s(b) = b        Goyal et al., arXiv 1706.02677
//   sqrt       s(b) = √b       Krizhevsky, arXiv 1404.5997
//   firecaffe  s(b) = b^0.6    FireCaffe, arXiv 1511.00175: 0.01 at a batch of 32, 0.08 at 1024
//
// schedule.name chooses the course of the rate:
//
//   it < w     lr0 (it + 1) / w                          linear warm-up; Goyal et al., arXiv 1706.02677
//   constant   lr0
//   step       lr0 gamma^k
//   cosine     min_lr + (lr0 - min_lr) (1 + cos πx) / 2  Loshchilov and Hutter, arXiv 1608.03983
//   poly       lr0 (1 - x)^power                         FireCaffe, arXiv 1511.00175
#pragma once

#include <cstdint>

#include "starling/spec/run_spec.h"

namespace starling {

// The lengths that a learning rate schedule depends on.
struct ScheduleLength {
  int64_t total_steps = 0;      // of the whole run; cosine, poly and warmup_share need it
  int64_t steps_per_epoch = 1;  // step needs it
  int64_t global_batch = 0;     // scale_base_batch needs it
};

// Returns the learning rate of update number `it`, counted from 0. `lr` is optimizer.lr. From total_steps on,
// cosine and poly keep the value that they have there. Errors: ConfigError for an unknown schedule.name or
// schedule.scale; the message lists the known names.
double learning_rate(double lr, const ScheduleSpec& schedule, const ScheduleLength& length, int64_t it);

}  // namespace starling
