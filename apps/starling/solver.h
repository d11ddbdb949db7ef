// What the commands that run no training loop of a network have in common: factorize, lbfgs, mcmc, lasso,
// topics, autoencoder and place.
#pragma once

#include <string_view>
#include <vector>

#include "starling/spec/command_line.h"

namespace starling {

constexpr int64_t kUsualRanks = 2;  // of a command whose ranks are not given

// Counts the ranks of the named hosts (spec/hosts.h). Takes kUsualRanks if neither hosts nor train.ranks are
// given. Changes nothing in a process of a job that is started already.
void count_solver_ranks(Config& config);

// Returns the flags that the help shows: those of ranks and the network, the seed, and the flags of `keys`.
FlagChoice solver_flags(std::vector<std::string_view> keys = {});

}  // namespace starling
