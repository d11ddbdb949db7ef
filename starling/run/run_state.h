// RunState is what a Run holds. The classes of a program's own loop share it.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "starling/launch/environment.h"
#include "starling/parallel/loop_state.h"
#include "starling/run/loop/sharded_modules.h"
#include "starling/run/ranks/mesh_groups.h"
#include "starling/run/run.h"
#include "starling/run/session.h"
#include "starling/spec/config.h"

namespace starling {

// With --dry-run there is no session, because the run joins no job.
struct RunState {
  RunSpec spec;
  Origins origins;  // of the keys of the configuration
  Environment environment;
  std::vector<std::string> arguments;
  bool json = false;
  bool throw_faults = false;
  bool joined = false;          // by join(): every fault is thrown as an Error
  bool opened_data = false;     // by Run::data()
  bool reads_spec = false;      // by Run::spec()
  bool has_fitted = false;      // by Run::fit()
  bool has_replicated = false;  // by Run::replicate()
  std::unique_ptr<Session> session;
  std::shared_ptr<void> process_group;  // of Run::process_group(); it ends before the session
  // Of a program's own loop.
  LoopState loop;
  std::optional<RunEnvironment> loop_environment;  // made on first use
  std::unique_ptr<MeshGroups> loop_axes;           // made on first use
  std::unique_ptr<ShardedModules> sharded;         // null: there are none
  bool generator_begun = false;
  int64_t most_steps = 0;     // of one optimizer
  bool loop_told = false;     // what the loop trains
  bool loop_resumes = false;  // by ProgramCheckpoint::resume()
  bool has_saved = false;     // by ProgramCheckpoint::save()
  bool loop_saved = false;    // a checkpoint holds the state in which the loop was interrupted

  // Returns the environment of a program's own loop. Errors: those of Session.
  const RunEnvironment& own_loop();
  // Returns the groups of the device mesh for a program's own loop. The first call is collective.
  const MeshGroups& own_axes();
  // At the end of the program: says if its own loop has not written what --save asked for.
  void tell_unsaved() const;
  // Ends what a program's own loop has made of the session. The session ends afterwards.
  void end_loop();
  // The configuration, with the ranks and threads of this job.
  const RunSpec& resolved() const { return session ? session->spec() : spec; }
};

// Reaches the state of a Run.
class LoopAccess {
 public:
  static RunState& state_of(Run& run) { return *run.state_; }
};

// Reports a fault as the launcher expects it and ends the process with the exit status of its kind.
[[noreturn]] void end_with(const Environment& environment, bool json, const std::exception& error);

// Handles exceptions of Starling and libtorch that leave the program's main(). The process then prints the
// message of the exception, and ends with the exit status of its kind. Other exceptions still abort the
// process. Does nothing if the program has a terminate handler of its own.
void report_uncaught(bool json);

// Prints what remains and ends the process with `status`.
[[noreturn]] void leave_process(int status);

// Reports the exception that is being handled: ends the process, or throws it if the program asked for that.
// When the session of a program that goes on ends, all other ranks learn that this rank is lost.
[[noreturn]] void report_fault(const RunState& state);

// Calls `compute`. A fault ends the process, unless the program asked for faults to be thrown.
template <typename Compute>
auto with_faults_reported(const RunState& state, const Compute& compute) {
  try {
    return compute();
  } catch (...) {  // outermost level of a rank
    report_fault(state);
  }
}

// Ends the process of an own loop that SIGTERM or Ctrl-C has interrupted. If the program asked for faults to
// be thrown, it throws Error (kInterrupted) instead.
[[noreturn]] void end_interrupted(RunState& state);
// Ends the process of an interrupted loop. The rank that leads says `text`.
[[noreturn]] void end_interrupted(RunState& state, const std::string& text);

// Returns the settings of a program as texts.
std::vector<std::pair<std::string, std::string>> texts_of(const Settings& settings);

// Returns the extensions as the configuration carries them, or null if there are none. Errors: those of
// Extensions::check().
std::shared_ptr<const Extensions> checked(const Extensions& extensions);

}  // namespace starling
