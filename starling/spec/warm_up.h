// Warnings about warm-ups that a run ends before: that of the learning rate (schedule.warmup_steps), and that
// of a codec (setting warmup of exchange.codec).
#pragma once

#include <string>
#include <vector>

#include "starling/spec/config.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns one sentence for each warm-up whose end the run does not reach. Nothing if train.steps is 0,
// because the number of samples is then needed to know the length of the run. A recipe's warm-up of the
// learning rate is not reported.
std::vector<std::string> warm_up_warnings(const RunSpec& spec, const Origins& origins);

}  // namespace starling
