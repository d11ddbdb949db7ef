// What `train.emulate` asks for: ranks that are slower than they are, to show what stragglers do, and a network that is
// slower than it is (net/link_shape.h).
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
  double compute_s = 0;      // forward and backward of a step take at least this long
  double bandwidth = 0;      // bit/s that a rank sends at most; 0: as the network has it
  double latency_s = 0;      // one way, added
  double loss = 0;           // of segments, share of 1

  // Steps take longer.
  bool any() const { return !slow_ranks.empty() || jitter_share > 0 || compute_s > 0; }
  // All ranks talk over an emulated link, those of one host too.
  bool shapes_links() const { return bandwidth > 0 || latency_s > 0 || loss > 0; }
};

// "slow-rank=1:2x", "jitter=4x@10%", "compute=20ms", "bandwidth=1gbit" (kbit mbit gbit), "latency=5ms" (us ms s), "loss=0.1%", or several
// between commas; empty = nothing. Errors: ConfigError that shows the form.
Emulation parse_emulation(const std::string& text);

}  // namespace starling
