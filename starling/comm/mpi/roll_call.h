// RollCall: which ranks have entered the collective in which this rank waits. MPI does not tell.
//
// A rank that has waited long tells all ranks which collective it is in. A rank that hears of its own
// collective answers at once. Nothing is sent unless a rank waits long.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "starling/comm/mpi/mpi_plugin.h"

namespace starling {

// RollCall sends and receives the notes of one rank. Only one thread at a time may use it.
class RollCall {
 public:
  // The notes use tag 0 of the communicator, which must outlive this object.
  RollCall(MpiCommunicator& communicator, int rank, int size);
  ~RollCall();
  RollCall(const RollCall&) = delete;

  // Records that this rank has entered this collective. The numbers grow.
  void enter(uint64_t sequence) { current_ = static_cast<int64_t>(sequence); }
  // Takes the notes that have arrived. If `ask`, or if another rank has told that it is in this collective,
  // tells all ranks which collective this rank is in. It tells this once per collective.
  void look(bool ask);
  // Returns the ranks that have not told that they have entered this collective or a later one.
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
