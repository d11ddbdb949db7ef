// Checkpoints of Sandblaster L-BFGS. Each rank writes its slice of the vectors to a file of its own, so that
// no vector passes the coordinator. Then rank 0 writes `lbfgs.txt`, which names the iteration and holds the
// scalars. A run on any number of ranks reads the files of any number. Numbers have the byte order of the
// machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "starling/lbfgs/minimize.h"
#include "starling/lbfgs/vector_shard.h"

namespace starling {

// Names one rank's part of a checkpoint.
struct CheckpointPlace {
  std::string folder;
  int64_t iteration = 0;
  int ranks = 1;
  int rank = 0;
  // Returns the path of the file.
  std::string file() const;
};

// The text file of a checkpoint.
struct LbfgsManifest {
  int64_t elements = 0;  // of a vector
  int memory = 0;        // pairs
  double ridge = 0;
  uint64_t samples = 0;  // hash_of() the samples
  int ranks = 1;         // that wrote the parts
  MinimizeState state;
};

// Makes the folder, and a file in it for a moment. Errors: Error(kCheckpoint) if one of both is impossible.
void prepare_checkpoint_folder(const std::string& folder);

// Writes the weights, the gradient and all pairs of a shard. The file appears under its name when it is whole
// and on the disk. Errors: Error(kCheckpoint) that names the file.
void write_checkpoint_part(const CheckpointPlace& place, VectorShard& shard, int memory);
// Removes the parts that the rank of `place` wrote as one of as many ranks, except those of the iterations
// place.iteration and `kept`. Does nothing if that is impossible.
void remove_older_parts(const CheckpointPlace& place, int64_t kept);
// Reads the shard's slices from the parts of `ranks` ranks. Errors: Error(kCheckpoint) that names a file
// which is missing, damaged or of another problem.
void read_checkpoint_parts(const std::string& folder, int64_t iteration, int ranks, VectorShard& shard,
                           int64_t elements, int memory);

// Writes lbfgs.txt in place of an older one. Errors: Error(kCheckpoint).
void write_manifest(const std::string& folder, const LbfgsManifest& manifest);
// Reads lbfgs.txt, which has a hash since format 3. A file of format 2 is read, too. Returns nothing if the
// folder has none. Errors: Error(kCheckpoint) if the file is damaged or cannot be opened, and if the folder
// has parts of a checkpoint but no lbfgs.txt.
std::optional<LbfgsManifest> read_manifest(const std::string& folder);

}  // namespace starling
