#include "starling/comm/mpi/roll_call.h"

#include <algorithm>

namespace starling {
namespace {

constexpr int kNoteTag = 0;

}  // namespace

RollCall::RollCall(MpiCommunicator& communicator, int rank, int size)
    : communicator_(communicator), rank_(rank), heard_(static_cast<size_t>(size)) {}

RollCall::~RollCall() {
  take_notes();
}

void RollCall::take_notes() {
  for (int peer = communicator_.probe(-1, kNoteTag); peer >= 0; peer = communicator_.probe(-1, kNoteTag)) {
    int64_t sequence = 0;
    const MpiStarted note = communicator_.receive(&sequence, sizeof(sequence), peer, kNoteTag);
    while (!note->test()) continue;  // the note is here, so this only copies a few bytes
    int64_t& heard = heard_[static_cast<size_t>(peer)];
    heard = std::max(heard, sequence);
  }
  notes_.remove_if([](const Note& note) { return note.under_way->test(); });
}

void RollCall::look(bool ask) {
  take_notes();
  const bool asked = std::find(heard_.begin(), heard_.end(), current_) != heard_.end();
  if (told_ == current_ || !(ask || asked)) return;
  told_ = current_;
  for (int peer = 0; peer < static_cast<int>(heard_.size()); ++peer) {
    if (peer == rank_) continue;
    Note& note = notes_.emplace_back(Note{current_, nullptr});
    note.under_way = communicator_.send(&note.sequence, sizeof(note.sequence), peer, kNoteTag);
  }
}

std::vector<int> RollCall::absent() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < static_cast<int>(heard_.size()); ++peer)
    if (peer != rank_ && heard_[static_cast<size_t>(peer)] < current_) ranks.push_back(peer);
  return ranks;
}

}  // namespace starling
