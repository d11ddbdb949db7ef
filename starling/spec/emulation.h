// What `train.emulate` asks for: ranks that are slower than they are, to show what stragglers do.
#pragma once

#include <string>
#include <vector>

namespace starling {

struct Emulation {
  struct SlowRank {
    int rank = 0;
    double factor = 1;  // a step takes this many times as long
  };
  std::vector<SlowRank> slow_ranks;
  double jitter_factor = 1;  // a step that is hit takes this many times as long, on any rank
  double jitter_share = 0;   // share of the steps that are hit
  bool any() const { return !slow_ranks.empty() || jitter_share > 0; }
};

// "slow-rank=1:2x", "jitter=4x@10%", or several between commas; empty = nothing. Errors: ConfigError that shows the form.
Emulation parse_emulation(const std::string& text);

}  // namespace starling
