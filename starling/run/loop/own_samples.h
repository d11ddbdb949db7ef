// The samples that a rank trains on: their origin, and what a rank takes over when other ranks are lost.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "starling/data/loader.h"
#include "starling/data/source_factory.h"
#include "starling/parallel/replica/sample_shuffle.h"
#include "starling/run/ranks/mesh_groups.h"
#include "starling/run/run_environment.h"
#include "starling/spec/run_spec.h"

namespace starling {

// The samples of one rank.
struct OwnSamples {
  // All training samples.
  std::shared_ptr<const Source> all;
  std::shared_ptr<const Source> source;  // the samples that this rank reads
  // The sample indices of each replica, if the samples are divided for the whole run (data.partition). Empty
  // if every batch is drawn from all samples.
  std::vector<std::vector<int64_t>> parts;
  int replicas = 1;  // number of replicas when the run began
  // The parts of the ranks in each batch, if they are unequal (data.share). Empty: equal parts. A rank that
  // was lost before the ranks were measured has the part 0.
  std::vector<double> shares;
  // The result of the initial shuffle of parallel-sgd.
  SampleShuffle shuffle;
  // This rank's samples on which no rank trains. exchange.combine = best selects models by them.
  Batch held_out;
  // Warns that a step of this rank waits for data, and when such a wait ends. The process's sink outlives it.
  std::function<void(const ReadStall&)> on_stall;
};

// Returns the samples of this rank. All ranks of a replica have the same samples. For parallel-sgd, the
// function is collective: it moves samples between the replicas until each part represents the whole.
OwnSamples own_samples(const RunSpec& spec, const DataSets& data, const MeshGroups& axes,
                       const RunEnvironment& environment);

// Returns `print` with the statistics of the initial shuffle of parallel-sgd, if there was one, before a run
// of `run_s` seconds. Collective over the replicas.
std::map<std::string, double> with_shuffle(std::map<std::string, double> print, const OwnSamples& own,
                                           Group& group, double run_s);

// Makes the loader of replica `rank` that begins after `first_step` steps. `remaining` lists the remaining
// replicas in ascending order. If batches are drawn from all samples, each batch is divided among the
// remaining replicas, by own.shares if there are some. If the samples are divided, each remaining replica
// also takes an equal part of each lost replica's samples.
std::unique_ptr<Loader> loader_of(const RunSpec& spec, const OwnSamples& own, int rank,
                                  const std::vector<int>& remaining, int64_t first_step);

// Returns true if this rank asks a data server for its next batch (data/served/served_loader.h). Ranks do so
// if data.source is a data server, they take their steps at different times, and their batches are drawn from
// all samples. The remaining ranks then get the batches of a lost rank from the server.
bool takes_leases(const RunSpec& spec, const OwnSamples& own);

// Makes a generation's loader: leased if takes_leases(), otherwise loader_of(). Collective over the replicas.
std::unique_ptr<Loader> first_loader(const RunSpec& spec, const OwnSamples& own, Group& replicas, int rank,
                                     const std::vector<int>& remaining, int64_t first_step);

}  // namespace starling
