// What a command says when a signal has ended its loop: how far the loop came, and whether it goes on.
#pragma once

#include <cstdint>
#include <string>

namespace starling {

// A loop that a signal has ended.
struct InterruptedLoop {
  std::string unit;        // a part of the loop, in the singular, such as "sweep"; empty: none is counted
  int64_t done = 0;        // the parts that are done, with those before a resume
  int64_t of = 0;          // the parts of the whole loop; 0: not known
  std::string checkpoint;  // the folder of --checkpoint, which the loop has written at its end; empty: none
  std::string saved = {};  // what else the command has saved, as a clause; empty: nothing
};

// Returns for example "interrupted after sweep 18 of 60; ck has the checkpoint, and the same command goes
// on". Without a checkpoint, the text says that nothing was saved, or `saved`, and names
// --checkpoint.
std::string interrupted_text(const InterruptedLoop& loop);

}  // namespace starling
