// The learning rate of each step, as a pure function. With it = the number of updates done before this one,
// lr0 = optimizer.lr (times global_batch / schedule.scale_base_batch where that is set), w =
// schedule.warmup_steps and x = (it - w) / (total - w), the part done of the steps after warm-up:
//
//   it < w     lr0 (it + 1) / w                                       linear warm-up; Goyal et al., arXiv
//   1706.02677 constant   lr0 step       lr0 gamma^k, k = number of milestones (in epochs) that it /
//   steps_per_epoch has reached cosine     min_lr + (lr0 - min_lr) (1 + cos πx) / 2               Loshchilov
//   and Hutter, arXiv 1608.03983 poly       lr0 (1 - x)^power                                      FireCaffe,
//   arXiv 1511.00175
#pragma once

#include <cstdint>

#include "starling/spec/run_spec.h"

namespace starling {

struct ScheduleLength {
  int64_t total_steps = 0;      // of the whole run; cosine and poly need it
  int64_t steps_per_epoch = 1;  // step needs it
  int64_t global_batch = 0;     // scale_base_batch needs it
};

// it: 0 for the first update. After total_steps the last value stays.
// Errors: ConfigError for an unknown schedule.name (suggests the near one).
double learning_rate(double lr, const ScheduleSpec& schedule, const ScheduleLength& length, int64_t it);

}  // namespace starling
