// All-to-all with uneven splits among the p ranks of one host. Each rank copies what the other ranks have for
// it.
//
// First the ranks show the p × p sizes in their control blocks. If sender and receiver disagree, all ranks
// get a CommError. In windows it takes two synchronizations, staged one per chunk. A chunk has p parts. If a
// rank receives N bytes, then T = 2 α + 2 N β in windows. Staged, a rank takes T = 2 α + 4 N β.
#pragma once

#include <cstdint>
#include <span>

#include "starling/comm/host/local_team.h"

namespace starling {

// Sends a part to each rank and receives one from each. in_bytes[r] is the size of the part for rank r.
// out_bytes[r] is the expected size of the part from rank r.
// The parts lie one after another in `in` and in `out`.
void shm_all_to_all(LocalTeam& team, const Operation& operation, const void* in,
                    std::span<const uint64_t> in_bytes, void* out, std::span<const uint64_t> out_bytes);

}  // namespace starling
