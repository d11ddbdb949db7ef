// Session: one rank's place in its job, from the environment to the group: it finds the others (launcher, torchrun, srun,
// or nobody), sets the threads and the algorithm of convolutions, opens the sinks, and turns signals into a flag.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/group.h"
#include "starling/comm/mesh.h"
#include "starling/comm/mpi/plugin.h"
#include "starling/comm/recorder.h"
#include "starling/launch/environment.h"
#include "starling/launch/step_board.h"
#include "starling/net/emulated_link.h"
#include "starling/nn/conv_im2col.h"
#include "starling/run/job_store.h"
#include "starling/run/members.h"
#include "starling/run/stop_signal.h"
#include "starling/run/surroundings.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/sink.h"

namespace starling {

class UcxLibrary;

struct OutputOptions {
  bool json = false;
  int verbosity = 0;           // -1 quiet
  std::string color = "auto";  // auto always never
};

class Session {
 public:
  // Collective over the job. spec.train.ranks and threads are set to what the environment says. keep: make the run
  // folder and its logs. Errors: ConfigError, CommError.
  Session(RunSpec spec, const Environment& environment, const OutputOptions& output, bool keep);
  ~Session();

  const RunSpec& spec() const { return spec_; }
  const Environment& environment() const { return environment_; }
  Group& group() { return *group_; }
  EventSink& sink() { return *sink_; }
  // The shard that this process serves, -1 where it is a worker.
  int server() const { return server_; }
  Store& store() { return store_->store(); }  // servers and workers of a job of several processes
  Surroundings surroundings();
  // Another group of all workers, with this algorithm between hosts. Collective.
  std::unique_ptr<Group> make_group_by(Algorithm algorithm, const std::string& name);
  // How the tuning file names what is between hosts: tcp, loopback, or the emulation; mpi, of which it has nothing.
  std::string link_name() const;
  bool by_mpi() const { return mpi_ != nullptr; }
  // This rank speaks for the run from now on; false if it did before.
  bool lead();
  // See Surroundings::regroup.
  Surroundings regroup(const CommError& why);

 private:
  std::string folder_from_rank_0();
  void open_recorder();
  void open_sinks();
  std::vector<std::unique_ptr<EventSink>> leaders_sinks();
  std::string bind_address() const;
  GroupSetup setup_of_workers(const std::string& name) const;
  std::unique_ptr<Group> group_of(const GroupSetup& setup);
  std::unique_ptr<Group> make_named_group(const std::string& name);
  std::unique_ptr<Group> make_subgroup(const std::string& name, const std::vector<int>& ranks);
  GroupOptions group_options() const;
  Connector connector() const;
  Meeting meeting() const;

  RunSpec spec_;
  Environment environment_;
  const OutputOptions output_;
  const bool keep_;
  std::unique_ptr<Im2colConvolution> im2col_;  // model.conv = im2col
  SystemClock clock_;
  StopSignal stop_;                     // before everything that has threads
  std::unique_ptr<EmulatedLink> link_;  // train.emulate; before all that has connections
  std::shared_ptr<UcxLibrary> ucx_;     // comm.engine=ucx
  std::shared_ptr<MpiLibrary> mpi_;     // comm.engine=mpi; then a store only where there are servers
  std::shared_ptr<FlightRecorder> recorder_;
  std::unique_ptr<JobStore> store_;
  Members members_;
  std::unique_ptr<Group> group_;
  std::unique_ptr<StepBoard> board_;
  std::unique_ptr<FanoutSink> sink_;
  bool leads_ = false;
  std::string run_dir_;
  int server_ = -1;
};

// Processes beside the ranks that hold parameters: exchange.servers, 0 for exchanges without servers.
int64_t servers_of(const RunSpec& spec);

// Where the run's files go: STARLING_RUN_DIR (our launcher, or the user on rank 0, has decided), run.dir, or runs/<date>-<model>.
std::string run_folder_of(const RunSpec& spec, const Environment& environment);
// Where its ranks keep their flight recorders.
std::filesystem::path recorder_folder(const std::string& run_dir);
// What a rank said of them when it gave up.
std::filesystem::path said_file(const std::string& run_dir);
// Makes the folder. Errors: ConfigError naming it where it cannot be made or written.
void make_run_folder(const std::string& path);

// Ranks and threads as the environment and the machine say: train.ranks = world size, train.threads = cores / local ranks.
RunSpec resolved(RunSpec spec, const Environment& environment);

}  // namespace starling
