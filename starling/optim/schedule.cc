#include "starling/optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "starling/base/error.h"
#include "starling/base/suggest.h"

namespace starling {
namespace {

double after_warmup(double lr0, const ScheduleSpec& s, const ScheduleLength& length, int64_t it) {
  const double span = static_cast<double>(std::max<int64_t>(1, length.total_steps - s.warmup_steps));
  const double x = std::clamp(static_cast<double>(it - s.warmup_steps) / span, 0.0, 1.0);
  if (s.name == "constant") return lr0;
  if (s.name == "cosine") return s.min_lr + (lr0 - s.min_lr) * (1 + std::cos(std::numbers::pi * x)) / 2;
  if (s.name == "poly") return lr0 * std::pow(1 - x, s.power);
  if (s.name == "step") {
    const double per_epoch = static_cast<double>(std::max<int64_t>(1, length.steps_per_epoch));
    // Milestones are rounded to steps: 0.1 epochs of 30 steps is step 3, although 0.1 has no exact binary
    // form.
    const auto reached = std::count_if(s.milestones.begin(), s.milestones.end(),
                                       [&](double epoch) { return it >= std::llround(epoch * per_epoch); });
    return lr0 * std::pow(s.gamma, static_cast<double>(reached));
  }
  const std::string near = nearest(s.name, {"constant", "step", "cosine", "poly"});
  throw ConfigError("schedule.name",
                    fmt::format("unknown schedule '{}'{}; use one of constant, step, cosine, poly", s.name,
                                near.empty() ? "" : fmt::format(", did you mean '{}'?", near)));
}

// Returns the factor of the rate for a batch that is `ratio` times the one for which the rate was chosen.
double scaled(double ratio, const std::string& scale) {
  if (scale == "linear") return ratio;
  if (scale == "sqrt") return std::sqrt(ratio);
  // 32 times the batch gives 8 times the rate: 32^0.6 = 8.
  if (scale == "firecaffe") return std::pow(ratio, 0.6);
  throw ConfigError("schedule.scale",
                    fmt::format("unknown scaling '{}'; use one of linear, sqrt, firecaffe", scale));
}

}  // namespace

double learning_rate(double lr, const ScheduleSpec& spec, const ScheduleLength& length, int64_t it) {
  ScheduleSpec schedule = spec;
  if (schedule.warmup_steps == 0)
    schedule.warmup_steps = std::llround(spec.warmup_share * static_cast<double>(length.total_steps));
  double lr0 = lr;
  if (schedule.scale_base_batch > 0)
    lr0 *= scaled(static_cast<double>(length.global_batch) / static_cast<double>(schedule.scale_base_batch),
                  schedule.scale);
  const double rate = after_warmup(lr0, schedule, length, std::max(it, schedule.warmup_steps));
  if (it >= schedule.warmup_steps) return rate;
  return lr0 * static_cast<double>(it + 1) / static_cast<double>(schedule.warmup_steps);
}

}  // namespace starling
