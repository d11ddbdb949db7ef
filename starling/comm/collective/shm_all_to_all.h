// All-to-all with uneven splits among the p ranks of one host: each rank copies what everybody has for it.
// The p × p sizes are shown in the control blocks first; where sender and receiver disagree all ranks get a CommError.
// In windows: two synchronisations; staged: one a chunk, each of p parts. N = bytes that a rank receives:
// T = 2 α + 2 N β in windows, 2 α + 4 N β staged.
#pragma once

#include <cstdint>
#include <span>

#include "starling/comm/local_team.h"

namespace starling {

// in_bytes[r]: what this rank has for rank r, out_bytes[r]: what it expects from r; both lie one after another.
void shm_all_to_all(LocalTeam& team, const Operation& operation, const void* in,
                    std::span<const uint64_t> in_bytes, void* out, std::span<const uint64_t> out_bytes);

}  // namespace starling
