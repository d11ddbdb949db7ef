// The lineage of a checkpoint says which start of which run wrote it, and from which checkpoints that start
// went on. A run deletes only checkpoints of its own lineage.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace starling {

// An earlier start of a run, and the step of its checkpoint from which the next start went on.
struct Ancestor {
  std::string incarnation;
  int64_t step = 0;
};

// Identifies the writer of a checkpoint. Format version 1 has no lineage: all members are then empty.
struct Lineage {
  std::string run;                  // the run: the incarnation that began at step 0
  std::string incarnation;          // one start of the run, also after its leader has changed
  int64_t epoch = 0;                // the epoch of the writer's lock on its run folder (job/folder_lock.h)
  std::vector<Ancestor> ancestors;  // oldest first; the last one is the parent

  // Returns true if this start, or an ancestor before it was left, wrote the checkpoint of `step` with the
  // lineage `other`. Returns false if the writer is not known.
  bool holds(const Lineage& other, int64_t step) const;
};

// Returns the lineage of a start that goes on after the checkpoint of `step` with the lineage `parent`.
Lineage continued(const Lineage& parent, int64_t step, const std::string& incarnation, int64_t epoch);

// Adds the lineage to a manifest, and reads it back. A manifest without a lineage gives an empty one. Errors:
// nlohmann::json::exception for a member of another type.
void put_lineage(nlohmann::json& manifest, const Lineage& lineage);
Lineage lineage_of(const nlohmann::json& manifest);

}  // namespace starling
