#include "starling/run/session.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/mpi/mpi_group.h"
#include "starling/comm/mpi/open.h"
#include "starling/comm/tcp_mesh.h"
#include "starling/comm/ucx_mesh.h"
#include "starling/launch/cpu_share.h"
#include "starling/net/address.h"
#include "starling/run/broadcast_text.h"
#include "starling/run/freed_memory.h"
#include "starling/run/tuning_file.h"
#include "starling/run/ucx_devices.h"
#include "starling/spec/emulation.h"
#include "starling/spec/on_failure.h"
#include "starling/telemetry/async_sink.h"
#include "starling/telemetry/jsonl_sink.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/progress_sink.h"
#include "starling/telemetry/sqlite_sink.h"

namespace starling {
namespace {

// Tells the launcher the last step, for its message should this rank be killed.
class BoardSink final : public EventSink {
 public:
  BoardSink(StepBoard& board, int rank) : board_(board), rank_(rank) {}
  void emit(const Event& event) override {
    if (const auto* done = std::get_if<StepDone>(&event)) board_.set(rank_, done->step);
    if (const auto* begun = std::get_if<RunStarted>(&event)) board_.set(rank_, begun->first_step);
  }

 private:
  StepBoard& board_;
  int rank_;
};

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  ::localtime_r(&now, &tm);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &tm);
  return text;
}

bool use_color(const std::string& option, const Environment& environment, int fd) {
  if (option == "always") return true;
  if (option == "never" || environment.no_color || environment.term == "dumb") return false;
  return ::isatty(fd) == 1;
}

void warn_on_stderr(const std::string& text) {
  FdOutput(2).write(fmt::format("starling: warning: {}\n", text));
}

}  // namespace

std::string run_folder_of(const RunSpec& spec, const Environment& environment) {
  if (!environment.run_dir.empty()) return environment.run_dir;
  if (!spec.run.dir.empty()) return spec.run.dir;
  return fmt::format("runs/{}-{}", date_text(), spec.model.name);
}

std::filesystem::path recorder_folder(const std::string& run_dir) {
  return std::filesystem::path(run_dir) / "recorder";
}

std::filesystem::path said_file(const std::string& run_dir) {
  return recorder_folder(run_dir) / "said";
}

void make_run_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || ::access(path.c_str(), W_OK) != 0) {
    throw ConfigError("--run-dir",
                      fmt::format("{} cannot be written: {}; give a folder that you may write, by --run-dir",
                                  path, error ? error.message() : std::strerror(errno)));
  }
}

int64_t servers_of(const RunSpec& spec) {
  return has_servers(spec) ? spec.exchange.servers : 0;
}

RunSpec resolved(RunSpec spec, const Environment& environment) {
  spec.train.ranks = environment.identity.world_size - servers_of(spec);
  if (spec.train.ranks < 1) {
    throw ConfigError(
        "exchange.servers",
        fmt::format("{} processes are too few for {} servers and at least one worker: start {} or more",
                    environment.identity.world_size, servers_of(spec), servers_of(spec) + 1));
  }
  if (spec.train.threads == 0) {
    const int cores = count_cores(usable_cpus());
    // A rank that the launcher pinned sees its own cores only.
    const int ranks = environment.omp_num_threads > 0 ? 1 : environment.identity.local_world_size;
    spec.train.threads =
        environment.omp_num_threads > 0 ? environment.omp_num_threads : std::max(1, cores / ranks);
  }
  return spec;
}

Session::Session(RunSpec spec, const Environment& environment, const OutputOptions& output, bool keep)
    : spec_(resolved(std::move(spec), environment)), environment_(environment), output_(output), keep_(keep) {
  keep_freed_memory();
  at::set_num_threads(
      spec_.train.threads_mode == ThreadsMode::kBatch ? 1 : static_cast<int>(spec_.train.threads));
  if (spec_.model.conv == ConvAlgorithm::kIm2col) im2col_ = std::make_unique<Im2colConvolution>();
  const ProcessIdentity& self = environment_.identity;
  const Emulation emulation = parse_emulation(spec_.train.emulate);
  if (self.world_size > 1 && emulation.shapes_links()) {
    link_ =
        std::make_unique<EmulatedLink>(LinkLimits{emulation.bandwidth, emulation.latency_s, emulation.loss});
  }
  if (self.world_size > 1 && spec_.comm.engine == "mpi")
    mpi_ = open_mpi(self.rank, self.world_size, name_of(self.origin));
  if (self.world_size > 1 && (!mpi_ || servers_of(spec_) > 0)) {
    store_ = std::make_unique<JobStore>(spec_.comm, environment_);
    store_->announce(self.rank);
    if (spec_.comm.engine == "ucx") ucx_ = load_ucx(ucx_devices(bind_address()));
  }
  members_ = all_members(static_cast<int>(spec_.train.ranks));
  if (self.rank >= spec_.train.ranks) server_ = self.rank - static_cast<int>(spec_.train.ranks);
  if (self.world_size > 1 && keep) open_recorder();
  group_ = server_ < 0 ? make_named_group("world") : make_single_group({});
  if (environment_.board_fd >= 0) {
    board_ = std::make_unique<StepBoard>(StepBoard::open(environment_.board_fd, self.world_size));
  }
  open_sinks();
}

Session::~Session() {
  if (std::uncaught_exceptions() == 0) return;
  if (store_) store_->abandon();
  if (mpi_) mpi_->abandon();
}

// Collective: rank 0 names the folder of the run, and empties it of an earlier run's recordings, perhaps of more ranks.
std::string Session::folder_from_rank_0() {
  constexpr const char* kKey = "run folder";
  std::string folder;
  if (environment_.identity.rank == 0) {
    folder = run_folder_of(spec_, environment_);
    std::error_code ignored;
    std::filesystem::remove_all(recorder_folder(folder), ignored);
  }
  if (!store_) return broadcast_text(*make_mpi_group(mpi_, setup_of_workers(kKey)), folder);
  if (environment_.identity.rank != 0) return store_->store().get(kKey, group_options().timeout);
  store_->store().put(kKey, folder);
  return folder;
}

// A rank that cannot keep one trains without.
void Session::open_recorder() {
  // Our launcher tells all ranks the folder, or none; of others, each host or process may have its own STARLING_RUN_DIR, or none.
  if (environment_.identity.origin != ProcessOrigin::kLauncher || environment_.run_dir.empty())
    environment_.run_dir = folder_from_rank_0();
  const ProcessIdentity& self = environment_.identity;
  std::error_code ignored;
  if (self.local_rank == 0) std::filesystem::remove(said_file(environment_.run_dir), ignored);
  try {
    recorder_ =
        std::make_shared<FlightRecorder>(recorder_file(recorder_folder(environment_.run_dir), self.rank),
                                         self.rank, self.world_size, host_name());
  } catch (const Error& error) {
    warn_on_stderr(error.what());
  }
}

// The address of this host that ranks of other hosts reach: comm.interface, else that of the route to rank 0.
std::string Session::bind_address() const {
  const std::string& wanted = spec_.comm.interface;
  for (const Interface& interface : list_interfaces()) {
    if (interface.name == wanted) return interface.address.host();
  }
  if (!wanted.empty()) return wanted;
  const bool one_host = environment_.identity.local_world_size == environment_.identity.world_size;
  if (one_host || environment_.master_host.empty()) return "127.0.0.1";
  return local_address_towards(
             resolve({environment_.master_host, static_cast<uint16_t>(environment_.master_port)}))
      .host();
}

std::string Session::link_name() const {
  if (mpi_) return "mpi";
  const Emulation emulation = parse_emulation(spec_.train.emulate);
  if (emulation.shapes_links())
    return fmt::format("{:g}bit/s,{:g}s,{:g}", emulation.bandwidth, emulation.latency_s, emulation.loss);
  const std::string& security = spec_.comm.security;
  return std::string(store_ && bind_address() != "127.0.0.1" ? "tcp" : "loopback") +
         (security == "none" ? "" : "," + security) + (ucx_ ? ",ucx" : "");
}

GroupOptions Session::group_options() const {
  GroupOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(spec_.comm.timeout_s * 1000));
  options.shared_memory = spec_.comm.shared_memory && !link_;
  options.algorithm = algorithm_named(spec_.comm.algorithm);
  options.recorder = recorder_;
  options.warn = warn_on_stderr;
  // One host in shared memory has nothing to choose.
  const ProcessIdentity& self = environment_.identity;
  if (!options.shared_memory || self.local_world_size < self.world_size) {
    options.link = link_name();
    options.tuning = read_tuning(tuning_file()).text();
  }
  return options;
}

Connector Session::connector() const {
  if (ucx_) return ucx_mesh(ucx_, bind_address(), store_->identity());
  if (!link_) return tcp_mesh(bind_address(), store_->identity());
  return tcp_mesh(bind_address(), store_->identity(),
                  [link = link_.get()](UniqueFd socket) { return link->attach(std::move(socket)); });
}

GroupSetup Session::setup_of_workers(const std::string& name) const {
  GroupSetup setup;
  setup.options = group_options();
  const std::vector<int>& ranks = members_.ranks;
  if ((!store_ && !mpi_) || ranks.size() == 1) return setup;
  setup.rank =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), environment_.identity.rank) - ranks.begin());
  setup.size = static_cast<int>(ranks.size());
  setup.name = name;
  setup.generation = members_.generation;
  setup.world_ranks = ranks;
  if (mpi_) return setup;
  setup.host_id = host_id();
  setup.connect = connector();
  return setup;
}

std::unique_ptr<Group> Session::make_named_group(const std::string& name) {
  return make_group_by(algorithm_named(spec_.comm.algorithm), name);
}

std::unique_ptr<Group> Session::make_group_by(Algorithm algorithm, const std::string& name) {
  if (mpi_ && algorithm != Algorithm::kAuto)
    throw ConfigError("comm.engine",
                      "MPI chooses its algorithms itself; to compare ours use comm.engine=starling");
  GroupSetup setup = setup_of_workers(name);
  setup.options.algorithm = algorithm;
  return group_of(setup);
}

std::unique_ptr<Group> Session::group_of(const GroupSetup& setup) {
  if (setup.size == 1) return make_single_group(setup.options);
  return mpi_ ? make_mpi_group(mpi_, setup) : make_group(store_->store(), setup);
}

std::unique_ptr<Group> Session::make_subgroup(const std::string& name, const std::vector<int>& ranks) {
  return group_of(subset_of(setup_of_workers(name), name, ranks));
}

void Session::open_sinks() {
  std::vector<std::unique_ptr<EventSink>> sinks;
  if (board_) sinks.push_back(std::make_unique<BoardSink>(*board_, environment_.identity.rank));
  if (server_ >= 0) {  // trains nothing, but tells which workers it lost
    sinks.push_back(std::make_unique<ProgressSink>(std::make_unique<FdOutput>(2), clock_, ProgressOptions{}));
  }
  sink_ = std::make_unique<FanoutSink>(std::move(sinks));
  // Where the launcher has decided on the folder every rank knows it, should it have to lead.
  if (keep_ && server_ < 0 && !environment_.run_dir.empty()) run_dir_ = environment_.run_dir;
  if (group_->rank() == 0 && server_ < 0) lead();
}

bool Session::lead() {
  if (leads_) return false;
  leads_ = true;
  for (auto& sink : leaders_sinks()) sink_->add(std::move(sink));
  return true;
}

std::vector<std::unique_ptr<EventSink>> Session::leaders_sinks() {
  std::vector<std::unique_ptr<EventSink>> sinks;
  const int fd = output_.json ? 2 : 1;  // standard output belongs to the JSON lines
  ProgressOptions progress;
  progress.terminal = ::isatty(fd) == 1 && environment_.term != "dumb";
  progress.color = use_color(output_.color, environment_, fd);
  progress.verbosity = output_.verbosity < 0   ? Verbosity::kQuiet
                       : output_.verbosity > 0 ? Verbosity::kVerbose
                                               : Verbosity::kNormal;
  if (!output_.json || progress.terminal)
    sinks.push_back(std::make_unique<ProgressSink>(std::make_unique<FdOutput>(fd), clock_, progress));
  if (output_.json)
    sinks.push_back(std::make_unique<JsonlSink>(std::make_unique<FdOutput>(1), clock_, "standard output"));
  if (keep_) {
    run_dir_ = run_folder_of(spec_, environment_);
    make_run_folder(run_dir_);
    sinks.push_back(open_jsonl_file(run_dir_ + "/events.jsonl", clock_));
    sinks.push_back(open_run_store(run_dir_, clock_));
  }
  return sinks;
}

Meeting Session::meeting() const {
  Meeting meeting;
  meeting.workers = static_cast<int>(spec_.train.ranks);
  meeting.servers = static_cast<int>(servers_of(spec_));
  meeting.group = group_options();
  if (store_) {
    meeting.host_id = host_id();
    meeting.connect = connector();
  }
  if (mpi_) meeting.make = [mpi = mpi_](const GroupSetup& setup) { return make_mpi_group(mpi, setup); };
  return meeting;
}

Surroundings Session::regroup(const CommError& why) {
  CommError fault = why;
  for (;;) {
    const Members next = agree_on_members(store_->store(), environment_.identity.rank, members_,
                                          setup_of_workers("").options.timeout);
    if (next.ranks == members_.ranks) throw fault;
    members_ = next;
    group_.reset();
    try {
      group_ = make_named_group("world");
      return surroundings();
    } catch (const CommError& error) {  // one more was lost meanwhile
      fault = error;
    }
  }
}

Surroundings Session::surroundings() {
  return {
      *group_,
      [this](const std::string& name) { return make_named_group(name); },
      [this](const std::string& name, const std::vector<int>& ranks) { return make_subgroup(name, ranks); },
      *sink_,
      clock_,
      stop_.flag(),
      run_dir_,
      store_ ? &store_->store() : nullptr,
      meeting(),
      [this] { return leads_; },
      [this] { return lead(); },
      members_.ranks,
      [this](const CommError& why) { return regroup(why); }};
}

}  // namespace starling
