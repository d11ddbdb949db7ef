// The samples that a rank trains on: how they came to it, and what of them it takes over when others are lost.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "starling/base/clock.h"
#include "starling/data/factory.h"
#include "starling/data/loader.h"
#include "starling/parallel/sample_shuffle.h"
#include "starling/run/mesh_groups.h"
#include "starling/spec/run_spec.h"

namespace starling {

struct OwnSamples {
  std::shared_ptr<const Source> all;
  std::shared_ptr<const Source> source;  // those that this rank reads
  // By replica, where the samples are shared out for the whole run (data.partition); empty: every batch is drawn from all.
  std::vector<std::vector<int64_t>> parts;
  int replicas = 1;  // as the run began
  SampleShuffle shuffle;
};

// Collective for parallel-sgd, which moves the samples between the replicas until each part stands for the whole. All ranks of
// a replica have the same samples.
OwnSamples own_samples(const RunSpec& spec, const DataSets& data, const MeshGroups& axes, const Clock& clock);

// The batches of replica `rank` after `first_step` steps. members: the replicas that are left, ascending. A batch that is drawn from
// all samples is cut anew among them; of samples that were a lost rank's own each takes an equal part.
std::unique_ptr<Loader> loader_of(const RunSpec& spec, const OwnSamples& own, int rank,
                                  const std::vector<int>& members, int64_t first_step);

// Whether this rank asks a data server for the next batch of the epoch (data/served_loader.h), as ranks do that take their steps
// at different times: what a lost one would have had the others get by themselves.
bool takes_leases(const RunSpec& spec, const OwnSamples& own);

// The loader with which a generation begins: such a one, or loader_of(). Collective over the replicas.
std::unique_ptr<Loader> first_loader(const RunSpec& spec, const OwnSamples& own, Group& replicas, int rank,
                                     const std::vector<int>& members, int64_t first_step);

}  // namespace starling
