// A job as the state of a queue holds it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/hosts.h"

namespace starling {

// The states of a job. The transitions are:
//
//   queued → starting → running → done | failed
//                          ↓
//                       stopping → queued | cancelled | done | failed
//
// A queued job may also become cancelled. A starting or running job whose processes are gone without a record
// of their end becomes queued again, or failed if that happened too often.
enum class QueueJobState { kQueued, kStarting, kRunning, kStopping, kDone, kFailed, kCancelled };

// Returns "queued", "starting", "running", "stopping", "done", "failed" or "cancelled".
const char* name_of(QueueJobState state);
// Returns the state of a name. Throws Error (kCheckpoint) for another text, which only a damaged file holds.
QueueJobState job_state_named(std::string_view name);

// Returns true for done, failed and cancelled.
constexpr bool is_final(QueueJobState state) {
  return state == QueueJobState::kDone || state == QueueJobState::kFailed ||
         state == QueueJobState::kCancelled;
}
// Returns true if a job of this state has slots.
constexpr bool holds_slots(QueueJobState state) {
  return state == QueueJobState::kStarting || state == QueueJobState::kRunning ||
         state == QueueJobState::kStopping;
}

// Why a job is stopping.
enum class StopReason { kNone, kPreempted, kCancelled };

// A row of the table of jobs. Times are seconds since 1970, and -1 if they are not known.
struct JobRecord {
  int64_t id = 0;
  std::string user;
  int slots = 1;
  int priority = 0;
  double expected_s = 3600;              // run time that the user expects
  std::vector<std::string> words;        // the command, as behind `starling launch`
  std::string folder;                    // where the command runs
  std::vector<std::string> environment;  // NAME=VALUE
  QueueJobState state = QueueJobState::kQueued;
  StopReason stop = StopReason::kNone;
  bool cancel_asked = false;  // a client wants the job to end; only clients set it
  int attempt = 0;            // number of starts
  int preemptions = 0;
  int losses = 0;  // how often its processes disappeared or did not begin
  double submitted_s = -1;
  double queued_s = -1;          // when the present or last wait began
  double started_s = -1;         // of the last attempt
  double stopped_s = -1;         // when the last attempt was told to stop
  double ended_s = -1;           // of the job
  double ran_s = 0;              // of all ended attempts
  int status = -1;               // exit status of a job that is done or failed
  std::vector<HostSlots> hosts;  // the slots that it holds
  std::vector<int> local_slots;  // the numbers of its slots on this host
};

// One row of the log of transitions.
struct JobTransition {
  double at_s = 0;
  std::string from, to;  // names of states; `from` is empty for the submission
  std::string why;
};

}  // namespace starling
