// RollCall: which ranks have entered the collective that this one waits in. MPI does not tell; so who has waited long says to all which
// collective it is in, and who hears that of its own collective says so at once. Costs nothing where nobody waits long.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "starling/comm/mpi/plugin.h"

namespace starling {

// One thread at a time.
class RollCall {
 public:
  // The communicator's tag 0 is taken by the notes; it outlives this.
  RollCall(MpiCommunicator& communicator, int rank, int size);
  ~RollCall();
  RollCall(const RollCall&) = delete;

  // From now on this rank is in that collective; numbers grow.
  void enter(uint64_t sequence) { current_ = static_cast<int64_t>(sequence); }
  // Takes what others say; says where this rank is if `ask`, or if another one has asked.
  void look(bool ask);
  // Ranks that have not said yet that they are there.
  std::vector<int> absent() const;

 private:
  struct Note {
    int64_t sequence;
    MpiStarted under_way;
  };

  void take_notes();

  MpiCommunicator& communicator_;
  const int rank_;
  int64_t current_ = 0;
  int64_t told_ = 0;
  std::vector<int64_t> heard_;  // by rank
  std::list<Note> notes_;
};

}  // namespace starling
