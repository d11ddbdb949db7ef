// Compares the bytes that a group counts with the formulas of docs/reference/collectives.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "starling/comm/group.h"

namespace starling {

// Counted is the payload of one call.
struct Counted {
  uint64_t own = 0;   // what this rank has sent
  uint64_t sent = 0;  // what all ranks have sent
};

// Returns what `call` sends by Group::traffic(). All ranks call it. Errors: CommError that begins with `what`
// if the ranks have not received what they have sent.
Counted counted_bytes(Group& group, const std::string& what, const std::function<void()>& call);

// Runs every collective with `count` elements, and a message around a ring. All ranks call it. An all-reduce
// must not use an algorithm that sends more than 2 (p − 1)/p of the tensor. Errors: CommError that names the
// first collective whose counted bytes are not those of its formula.
void check_counted_bytes(Group& group, size_t count);

}  // namespace starling
