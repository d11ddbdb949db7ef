// Emulation describes slow ranks and a slow network (train.emulate), so that their effect can be studied on
// one machine. The network is emulated by net/emulation/link_shape.h.
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
  double jitter_factor = 1;  // an affected step takes this many times as long, on any rank
  double jitter_share = 0;   // fraction of the steps that are affected
  double compute_s = 0;      // forward and backward of a step take at least this many seconds
  double bandwidth = 0;      // largest rate at which a rank sends, in bit/s; 0: that of the network
  double latency_s = 0;      // added latency in one direction, in seconds
  double loss = 0;           // fraction of lost segments

  // Returns true if some steps take longer.
  bool any() const { return !slow_ranks.empty() || jitter_share > 0 || compute_s > 0; }
  // Returns true if all ranks communicate over an emulated link, including ranks of one host.
  bool shapes_links() const { return bandwidth > 0 || latency_s > 0 || loss > 0; }
};

// Parses "slow-rank=1:2x", "jitter=4x@10%", "compute=20ms", "bandwidth=1gbit", "latency=5ms", "loss=0.1%", or
// several of them separated by commas. The units are kbit, mbit and gbit, and us, ms and s. An empty text
// emulates nothing. Throws ConfigError that shows the form.
Emulation parse_emulation(const std::string& text);

}  // namespace starling
