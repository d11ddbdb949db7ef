// Session connects one rank to its job, which our launcher, torchrun, mpiexec or srun has described in the
// environment. It makes the group, sets the number of threads and the algorithm of convolutions, and opens
// the event sinks. It turns signals into a flag.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/group.h"
#include "starling/comm/membership.h"
#include "starling/comm/mpi/mpi_plugin.h"
#include "starling/comm/network/peer_connections.h"
#include "starling/comm/recorder/flight_recorder.h"
#include "starling/launch/environment.h"
#include "starling/launch/step_board.h"
#include "starling/net/emulation/emulated_link.h"
#include "starling/run/folder/leaders_lock.h"
#include "starling/run/ranks/job_store.h"
#include "starling/run/run_environment.h"
#include "starling/run/stop_signal.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/sink.h"

namespace starling {

class Im2colConvolution;
class UcxLibrary;

struct OutputOptions {
  bool json = false;
  int verbosity = 0;           // -1 quiet, 0 normal, 1 verbose
  std::string color = "auto";  // auto always never
  // The program embeds the run (run/join.h): nothing is printed but warnings, on standard error, and signals
  // are left alone.
  bool embedded = false;
};

class Session {
 public:
  // Collective over the job. spec.train.ranks and threads are set to what the environment says. keep: make
  // the run folder and its logs. argv: the command line of this process, for the command that resumes the
  // run. Errors: ConfigError, CommError.
  Session(RunSpec spec, const Environment& environment, const OutputOptions& output, bool keep,
          std::vector<std::string> argv);
  ~Session();

  const RunSpec& spec() const { return spec_; }
  const Environment& environment() const { return environment_; }
  Group& group() { return *group_; }
  EventSink& sink() { return *sink_; }
  // The server shard that this process is, or -1 for a rank.
  int server() const { return server_; }
  Store& store() { return store_->store(); }  // servers and workers of a job of several processes
  RunEnvironment run_environment();
  // Makes another group of all workers that uses `algorithm` between hosts. Collective. Errors: ConfigError
  // under MPI, unless `algorithm` is kAuto.
  std::unique_ptr<Group> make_group_by(Algorithm algorithm, const std::string& name);
  // Returns the name of the link between hosts in the tuning file: tcp, loopback, the emulation, or mpi.
  // After tcp and loopback, the security and the engine may follow, as in "tcp,auth,ucx". The file never has
  // rows for mpi.
  std::string link_name() const;
  bool by_mpi() const { return mpi_ != nullptr; }
  // Makes this rank report the run from now on. Returns false if it already did.
  bool lead();
  // See RunMembership::regroup.
  RunEnvironment regroup(const CommError& why);
  // Asks the run to stop after the step, as a signal does. Any thread may call this.
  void request_stop() { stop_.raise(); }
  // Tells the launcher the last step that this rank finished in a loop of the program.
  void note_loop_step(int64_t step);
  // Says that this rank ends with a fault. When the session ends, all other ranks learn that it is lost.
  void abandon();

 private:
  std::string folder_from_rank_0();
  void begin_run_folder();
  std::unique_ptr<FolderLock> take_lock(bool takes_over);
  void note_other_files();
  void set_aside_other_files();
  void open_recorder();
  void open_sinks();
  std::vector<std::unique_ptr<EventSink>> leaders_sinks();
  void add_file_sinks(bool goes_on);
  std::string bind_address() const;
  GroupSetup setup_of_workers(const std::string& name) const;
  std::unique_ptr<Group> group_of(const GroupSetup& setup);
  std::unique_ptr<Group> make_named_group(const std::string& name);
  std::unique_ptr<Group> make_subgroup(const std::string& name, const std::vector<int>& ranks);
  GroupOptions group_options() const;
  MembershipRules membership_rules(const CommError& fault) const;
  Connector connector() const;
  ServerRendezvous rendezvous() const;

  RunSpec spec_;
  Environment environment_;
  const OutputOptions output_;
  const bool keep_;
  const std::vector<std::string> argv_;
  std::unique_ptr<Im2colConvolution> im2col_;  // model.conv = im2col
  SystemClock clock_;
  StopSignal stop_;                     // before everything that has threads
  std::unique_ptr<EmulatedLink> link_;  // train.emulate; before all that has connections
  std::shared_ptr<UcxLibrary> ucx_;     // comm.engine=ucx
  std::shared_ptr<MpiLibrary> mpi_;     // comm.engine=mpi; then a store only where there are servers
  std::shared_ptr<FlightRecorder> recorder_;
  std::unique_ptr<JobStore> store_;
  Membership membership_;
  int64_t forgotten_ = 0;  // the generations below it have left nothing in the store
  std::unique_ptr<Group> group_;
  LocalCores local_cores_;
  std::unique_ptr<StepBoard> board_;
  LockHolder known_holder_;       // of the run folder's lock when the run began
  std::string continued_;         // the checkpoint that the run continues; empty if there is none
  bool has_other_files_ = false;  // the run folder has files of another run, which this rank sets aside
  LeadersLock lock_;              // before what writes into the run folder
  std::atomic<bool> leads_{false};
  std::unique_ptr<FanoutSink> sink_;
  std::string run_dir_;
  std::string incarnation_;  // of this start of the run; empty if nothing is kept
  std::string set_aside_;    // what was done with the files of an earlier run, for the user
  int server_ = -1;
};

// Returns the number of server processes beside the ranks: exchange.servers, or 0 for an exchange without
// servers.
int64_t servers_of(const RunSpec& spec);

// Returns the folder of the run: STARLING_RUN_DIR, else run.dir, else runs/<date>-<time>-<model>. Our
// launcher sets STARLING_RUN_DIR. The last one is made here. If the folder exists, a number follows its name,
// so that runs that begin in one second have different folders.
std::string run_folder_of(const RunSpec& spec, const Environment& environment);
// Returns the folder of the ranks' flight recorders.
std::filesystem::path recorder_folder(const std::string& run_dir);
// Returns the file in which a rank that stopped waiting has written who waited for whom.
std::filesystem::path said_file(const std::string& run_dir);
// Makes the folder. Errors: ConfigError that names the folder if it cannot be made or written.
void make_run_folder(const std::string& path);

// Returns the configuration with the ranks and threads of this job. train.ranks is the world size without the
// servers. If train.threads is 0, it becomes OMP_NUM_THREADS, or else the number of usable cores per local
// rank. Errors: ConfigError if there are fewer processes than servers and one worker.
RunSpec resolved(RunSpec spec, const Environment& environment);

}  // namespace starling
