// `starling autoencoder` trains the network of Coates et al. (Deep learning with COTS HPC systems, ICML 2013)
// on a grid of ranks: grid/train_autoencoder.h, docs/explanation/locally-connected.md.
#pragma once

#include "starling/commands/commands.h"
#include "starling/run/session.h"

namespace starling {

// Runs one rank of the job. Rank 0 prints the progress and the result. Returns the exit status.
int run_autoencoder(const AutoencoderSpec& what, const CommandOptions& options, Session& session);

// Opens the data and checks the layers, the grid and the memory for it, as every rank does before it trains.
// Errors: ConfigError; Error(kMemory); those of open_data().
void check_autoencoder_run(const RunSpec& spec, const AutoencoderSpec& what);

// Checks the options before anything is started. Errors: ConfigError.
void check_autoencoder_command(const RunSpec& spec, const AutoencoderSpec& what);

}  // namespace starling
