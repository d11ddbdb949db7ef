#include "starling/run/session.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>
#include <system_error>

#include "starling/base/error.h"
#include "starling/c10d/cuda_library.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/mpi/mpi_group.h"
#include "starling/comm/mpi/open.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/comm/network/ucx_connections.h"
#include "starling/launch/cpu_share.h"
#include "starling/launch/fault.h"
#include "starling/net/address.h"
#include "starling/nn/layers/conv_im2col.h"
#include "starling/run/folder/earlier_files.h"
#include "starling/run/folder/fenced_sink.h"
#include "starling/run/folder/resume_command.h"
#include "starling/run/folder/run_folder.h"
#include "starling/run/folder/tuning_file.h"
#include "starling/run/freed_memory.h"
#include "starling/run/ranks/broadcast_text.h"
#include "starling/spec/batch_share.h"
#include "starling/spec/emulation.h"
#include "starling/spec/extensions.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/validate.h"
#include "starling/telemetry/async_sink.h"
#include "starling/telemetry/jsonl_sink.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/progress_sink.h"
#include "starling/telemetry/sqlite_sink.h"
#include "starling/telemetry/tensorboard_sink.h"
#include "starling/train/checkpoint_folder.h"

namespace starling {
namespace {

// Tells the launcher the rank's last step. The launcher's message names that step if the rank is killed.
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

// Returns the name of the interface that has the address `bind_address`, so that UCX listens only there.
// Returns an empty string if UCX_NET_DEVICES is set, because UCX reads that variable itself. The variable is
// needed for RDMA devices, which have names of their own, such as mlx5_0:1.
std::string ucx_devices(const std::string& bind_address) {
  if (std::getenv("UCX_NET_DEVICES") != nullptr) return "";
  for (const Interface& interface : list_interfaces())
    if (interface.address.host() == bind_address) return interface.name;
  return "";
}

// Returns the address of an interface, if it has one. It is of the family (IPv4, IPv6) of the first of
// `masters` that the interface has an address for.
std::optional<std::string> address_of_interface(const std::string& name,
                                                const std::vector<SocketAddress>& masters) {
  std::vector<SocketAddress> own;
  for (const Interface& interface : list_interfaces())
    if (interface.name == name) own.push_back(interface.address);
  for (const SocketAddress& master : masters)
    for (const SocketAddress& address : own)
      if (address.family() == master.family()) return address.host();
  if (own.empty()) return std::nullopt;
  return own.front().host();
}

// An all-reduce that the program adds leaves the other collectives to the automatic choice.
Algorithm algorithm_of(const RunSpec& spec) {
  const std::string& name = spec.comm.algorithm;
  return find_added_all_reduce(spec.extensions.get(), name) ? Algorithm::kAuto : algorithm_named(name);
}

void warn_on_stderr(const std::string& text) {
  FdOutput(2).write(fmt::format("starling: warning: {}\n", text));
}

// Prints the warnings of this rank, for a program that embeds the run. The rank that leads also prints those
// about the whole run, which other ranks may emit, too.
class WarningSink final : public EventSink {
 public:
  // `leads` must outlive this object.
  explicit WarningSink(const std::atomic<bool>& leads) : leads_(leads) {}
  void emit(const Event& event) override {
    const auto* message = std::get_if<Message>(&event);
    if (message == nullptr || message->severity < Severity::kWarning) return;
    if (message->rank >= 0 || leads_) warn_on_stderr(message->text);
  }

 private:
  const std::atomic<bool>& leads_;
};

// Prints what a rank warns about itself while another rank leads. The rank that leads shows its own events
// only.
class OwnWarningSink final : public EventSink {
 public:
  // `leads` must outlive this object.
  OwnWarningSink(int rank, const std::atomic<bool>& leads) : rank_(rank), leads_(leads) {}
  void emit(const Event& event) override {
    const auto* message = std::get_if<Message>(&event);
    if (message == nullptr || message->severity < Severity::kWarning) return;
    if (message->rank == rank_ && !leads_) warn_on_stderr(message->text);
  }

 private:
  const int rank_;
  const std::atomic<bool>& leads_;
};

}  // namespace

std::string run_folder_of(const RunSpec& spec, const Environment& environment) {
  if (!environment.run_dir.empty()) return environment.run_dir;
  if (!spec.run.dir.empty()) return spec.run.dir;
  std::string name = fmt::format("runs/{}-{}", date_text(), spec.model.name);
  std::error_code error;
  std::filesystem::create_directories("runs", error);
  for (int i = 2; !error; ++i) {
    std::string made = i == 2 ? name : fmt::format("{}-{}", name, i - 1);
    if (std::filesystem::create_directory(made, error)) return made;
  }
  return name;  // it cannot be made; make_run_folder() says why
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
    // A rank that the launcher pinned sees only its own cores.
    const int ranks = environment.omp_num_threads > 0 ? 1 : environment.identity.local_world_size;
    spec.train.threads =
        environment.omp_num_threads > 0 ? environment.omp_num_threads : std::max(1, cores / ranks);
    // What a rank computes at least depends on the number of threads.
    const bool hogwild = spec.train.threads_mode == ThreadsMode::kHogwild;
    if (spec.train.accumulate > 1 || has_unequal_shares(spec) || hogwild) validate(spec);
  }
  return spec;
}

Session::Session(RunSpec spec, const Environment& environment, const OutputOptions& output, bool keep,
                 std::vector<std::string> argv)
    : spec_(resolved(std::move(spec), environment)),
      environment_(environment),
      output_(output),
      keep_(keep),
      argv_(std::move(argv)),
      stop_(!output.embedded) {
  keep_freed_memory();
  // Before the first question for CUDA. If it is impossible, run_device() reports the reason.
  if (spec_.train.device == DeviceKind::kCuda || spec_.train.device == DeviceKind::kAuto) load_cuda_library();
  at::set_num_threads(spec_.train.threads_divide_samples() ? 1 : static_cast<int>(spec_.train.threads));
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
    put_cores(store_->store(), self.rank, this_host_id(), usable_cpus());
    if (spec_.comm.engine == "ucx") ucx_ = load_ucx(ucx_devices(bind_address()));
  }
  if (keep && self.rank == 0) begin_run_folder();
  membership_ = full_membership(static_cast<int>(spec_.train.ranks));
  if (self.rank >= spec_.train.ranks) server_ = self.rank - static_cast<int>(spec_.train.ranks);
  if (self.world_size > 1 && keep) open_recorder();
  group_ = server_ < 0 ? make_named_group("world") : make_single_group({});
  if (keep && server_ < 0) incarnation_ = broadcast_text(*group_, incarnation_);
  if (self.world_size == 1) local_cores_.cores = std::ssize(usable_cpus());
  if (store_ && self.rank == 0)
    local_cores_ = local_cores(store_->store(), 0, self.world_size, group_options().timeout);
  if (environment_.board_fd >= 0) {
    board_ = std::make_unique<StepBoard>(StepBoard::open(environment_.board_fd, self.world_size));
    if (server_ >= 0) board_->set_server(self.rank);
  }
  open_sinks();
}

Session::~Session() {
  if (std::uncaught_exceptions() > 0) abandon();
}

void Session::note_loop_step(int64_t step) {
  if (board_) board_->set_of_loop(environment_.identity.rank, step);
}

void Session::abandon() {
  if (store_) store_->abandon();
  if (mpi_) mpi_->abandon();
}

// Names and makes the run folder, takes its lock and sets the files of an earlier run aside. On rank 0.
void Session::begin_run_folder() {
  environment_.run_dir = run_folder_of(spec_, environment_);
  make_run_folder(environment_.run_dir);
  incarnation_ = new_incarnation();
  lock_.take([this] { return take_lock(/*takes_over=*/false); });
  require_startable(spec_);  // an error leaves the files of an earlier run where they are
  set_aside_ = set_aside_earlier_files(environment_.run_dir, spec_.run.resume);
}

// Takes the lock of the run folder. If another process has it or takes it later, this rank asks all ranks to
// stop.
std::unique_ptr<FolderLock> Session::take_lock(bool takes_over) {
  FolderLockOptions options;
  if (takes_over) options.known = known_holder_;
  options.say = warn_on_stderr;
  options.replaced = [this] { stop_.raise(); };
  if (takes_over) note_other_files();
  try {
    auto lock = std::make_unique<FolderLock>(environment_.run_dir, incarnation_, options);
    if (takes_over) set_aside_other_files();
    remove_leftovers(environment_.run_dir);
    return lock;
  } catch (const ConfigError&) {
    stop_.raise();
    throw;
  }
}

// Finds out whether the run folder may have files of another run. The folder of a rank that begins to lead
// may be on another disk than that of the first leader. If the last holder of its lock is not this run, it is
// an earlier one.
void Session::note_other_files() {
  const LockHolder last = last_lock_holder(environment_.run_dir);
  const bool other = last.epoch > 0 && !last.incarnation.empty() && last.incarnation != incarnation_;
  has_other_files_ = has_other_files_ || other;
}

// Sets aside what another run has left in the run folder. Files that this run continues stay.
void Session::set_aside_other_files() {
  if (!has_other_files_) return;
  const std::string text =
      set_aside_earlier_files(environment_.run_dir, continued_.empty() ? "never" : continued_);
  has_other_files_ = false;
  if (!text.empty()) warn_on_stderr(text);
}

// Returns the folder of the run, which rank 0 names when it has the folder's lock. Rank 0 also removes an
// earlier run's recordings from the folder, perhaps of more ranks. Collective.
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

// Opens the flight recorder. A rank that cannot open one trains without it.
void Session::open_recorder() {
  // Other launchers than ours may give each host or process its own STARLING_RUN_DIR or none. Our launcher
  // names the folder, but another start may take its lock first. Rank 0 is then refused, and no rank has
  // written into the folder.
  environment_.run_dir = folder_from_rank_0();
  const ProcessIdentity& self = environment_.identity;
  std::error_code ignored;
  if (self.local_rank == 0) std::filesystem::remove(said_file(environment_.run_dir), ignored);
  try {
    recorder_ =
        std::make_shared<FlightRecorder>(recorder_file(recorder_folder(environment_.run_dir), self.rank),
                                         self.rank, self.world_size, host_name());
  } catch (const Error& error) {
    warn_on_stderr(fmt::format("{}. The run goes on without it", error.what()));
  }
}

// Returns the address of this host that ranks of other hosts reach: comm.interface, otherwise that of the
// route to rank 0. If all ranks are on one host and comm.interface is empty, that is 127.0.0.1.
std::string Session::bind_address() const {
  const bool one_host = environment_.identity.local_world_size == environment_.identity.world_size;
  std::vector<SocketAddress> masters;  // the addresses of rank 0's host
  if (!one_host && !environment_.master_host.empty())
    masters = resolve_all({environment_.master_host, static_cast<uint16_t>(environment_.master_port)});
  const std::string& wanted = spec_.comm.interface;
  if (!wanted.empty()) return address_of_interface(wanted, masters).value_or(wanted);
  return masters.empty() ? "127.0.0.1" : local_address_towards_any(masters).host();
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
  options.algorithm = algorithm_of(spec_);
  if (const AddedAllReduce* added = find_added_all_reduce(spec_.extensions.get(), spec_.comm.algorithm))
    options.all_reduce = added->run;
  options.recorder = recorder_;
  options.warn = warn_on_stderr;
  // On one host, shared memory offers no choice of algorithms.
  const ProcessIdentity& self = environment_.identity;
  if (!options.shared_memory || self.local_world_size < self.world_size) {
    options.link = link_name();
    options.tuning = tuning_for(self.rank, tuning_file());
  }
  return options;
}

Connector Session::connector() const {
  if (ucx_) return ucx_connector(ucx_, bind_address(), store_->identity());
  if (!link_) return tcp_connector(bind_address(), store_->identity());
  return tcp_connector(bind_address(), store_->identity(),
                       [link = link_.get()](UniqueFd socket) { return link->attach(std::move(socket)); });
}

GroupSetup Session::setup_of_workers(const std::string& name) const {
  GroupSetup setup;
  setup.options = group_options();
  const std::vector<int>& ranks = membership_.ranks;
  setup.world_ranks = ranks;
  if ((!store_ && !mpi_) || ranks.size() == 1) return setup;
  setup.rank =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), environment_.identity.rank) - ranks.begin());
  setup.size = static_cast<int>(ranks.size());
  setup.name = name;
  setup.generation = membership_.generation;
  if (mpi_) return setup;
  setup.host_id = host_id();
  setup.connect = connector();
  return setup;
}

std::unique_ptr<Group> Session::make_named_group(const std::string& name) {
  return make_group_by(algorithm_of(spec_), name);
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
  if (setup.size == 1) return make_single_group(setup.options, setup.world_ranks.front());
  return mpi_ ? make_mpi_group(mpi_, setup) : make_group(store_->store(), setup);
}

std::unique_ptr<Group> Session::make_subgroup(const std::string& name, const std::vector<int>& ranks) {
  return group_of(subset_of(setup_of_workers(name), name, ranks));
}

void Session::open_sinks() {
  std::vector<std::unique_ptr<EventSink>> sinks;
  if (board_) sinks.push_back(std::make_unique<BoardSink>(*board_, environment_.identity.rank));
  if (output_.embedded) {
    sinks.push_back(std::make_unique<WarningSink>(leads_));
  } else if (server_ >= 0) {  // a server does not train, but reports the workers that it lost
    sinks.push_back(std::make_unique<ProgressSink>(std::make_unique<FdOutput>(2), clock_, ProgressOptions{}));
  } else if (environment_.identity.rank > 0) {
    sinks.push_back(std::make_unique<OwnWarningSink>(environment_.identity.rank, leads_));
  }
  sink_ = std::make_unique<FanoutSink>(std::move(sinks));
  // If the launcher chose the folder, every rank knows it, in case the rank has to lead.
  if (keep_ && server_ < 0 && !environment_.run_dir.empty()) {
    run_dir_ = environment_.run_dir;
    known_holder_ = ended_lock_holder(run_dir_);
  }
  if (group_->rank() == 0 && server_ < 0) lead();
  if (!set_aside_.empty()) sink_->emit(Message{Severity::kInfo, 0, set_aside_});
}

bool Session::lead() {
  if (leads_) return false;
  leads_ = true;
  for (auto& sink : leaders_sinks()) sink_->add(std::move(sink));
  if (!keep_) return true;
  const bool takes_over = !lock_.wanted();  // the former leader was lost
  if (takes_over) environment_.run_dir = run_folder_of(spec_, environment_);
  run_dir_ = environment_.run_dir;
  if (takes_over) {
    std::string why;
    try {
      why = lock_.try_take([this] { return take_lock(/*takes_over=*/true); });
    } catch (const ConfigError&) {  // take_lock() has asked all ranks to stop, and finish() reports the error
      return true;
    }
    if (!why.empty()) {
      warn_on_stderr(why +
                     ". Training continues, but no events are stored. This rank tries to write the lock "
                     "again when it writes a checkpoint");
      return true;
    }
  }
  add_file_sinks(takes_over);
  return true;
}

// Adds the sinks that write into the run folder. If one cannot be opened, the rank `goes_on` without it.
void Session::add_file_sinks(bool goes_on) {
  const std::string& folder = run_dir_;
  const auto held = [this] { return lock_.held(); };
  const AsyncSinkOptions lines{.capacity = 1 << 16};
  const auto add = [&](const auto& open, const AsyncSinkOptions& options) {
    try {
      sink_->add(std::make_unique<AsyncSink>(open(), options));
    } catch (const Error& error) {
      if (!goes_on) throw;
      warn_on_stderr(fmt::format("{}. Training continues without this file", error.what()));
    }
  };
  add([&] { return open_jsonl_file(folder + "/events.jsonl", clock_, held, incarnation_); }, lines);
  add(
      [&] {
        return std::make_unique<FencedSink>(open_sqlite_sink(folder + "/run.sqlite", clock_), held, clock_);
      },
      {});
  if (spec_.run.tensorboard)
    add([&] { return open_tensorboard_sink(folder + "/tensorboard", clock_, held); }, lines);
}

// Returns the sinks that show the run to the user.
std::vector<std::unique_ptr<EventSink>> Session::leaders_sinks() {
  std::vector<std::unique_ptr<EventSink>> sinks;
  const int fd = output_.json ? 2 : 1;  // standard output is reserved for the JSON lines
  const std::string run_id = incarnation_.empty() ? new_incarnation() : incarnation_;
  ProgressOptions progress;
  progress.terminal = ::isatty(fd) == 1 && environment_.term != "dumb";
  progress.color = wants_color(environment_, output_.color, fd);
  progress.verbosity = output_.verbosity < 0   ? Verbosity::kQuiet
                       : output_.verbosity > 0 ? Verbosity::kVerbose
                                               : Verbosity::kNormal;
  // The events of the leading rank are written by threads of their own. A stopped terminal, a reader that
  // pauses or a disk that does not answer delays no step. The lines for people leave out most steps anyway.
  constexpr std::chrono::seconds kPatience(1);
  if (!output_.embedded && (!output_.json || progress.terminal))
    sinks.push_back(std::make_unique<AsyncSink>(
        std::make_unique<ProgressSink>(std::make_unique<FdOutput>(fd), clock_, progress),
        AsyncSinkOptions{.capacity = 256, .patience = kPatience, .progress = true, .missing_from = ""}));
  if (output_.json && !output_.embedded)
    sinks.push_back(std::make_unique<AsyncSink>(
        std::make_unique<JsonlSink>(std::make_unique<FdOutput>(1), clock_, "standard output",
                                    std::chrono::milliseconds(200), run_id),
        AsyncSinkOptions{.capacity = 1 << 16,
                         .patience = kPatience,
                         .missing_from = "standard output, because its reader was too slow"}));
  return sinks;
}

ServerRendezvous Session::rendezvous() const {
  ServerRendezvous rendezvous;
  rendezvous.workers = static_cast<int>(spec_.train.ranks);
  rendezvous.servers = static_cast<int>(servers_of(spec_));
  rendezvous.group = group_options();
  if (store_) {
    rendezvous.host_id = host_id();
    rendezvous.connect = connector();
  }
  if (mpi_) rendezvous.make = [mpi = mpi_](const GroupSetup& setup) { return make_mpi_group(mpi, setup); };
  return rendezvous;
}

// `fault` is why the ranks have to agree. A rank that was awaited in vain for comm.timeout_s gets a tenth of
// that time again, in case its step has just ended.
MembershipRules Session::membership_rules(const CommError& fault) const {
  MembershipRules rules;
  rules.patience = group_options().timeout;
  const auto late = static_cast<size_t>(std::max(fault.peer(), 0));
  if (fault.code() == ErrorCode::kTimeout && fault.peer() >= 0 && late < membership_.ranks.size())
    rules.suspect = membership_.ranks[late];
  rules.suspect_patience = rules.patience / 10;
  rules.majority = spec_.train.quorum == Quorum::kMajority;
  if (environment_.error_fd < 0) return rules;
  rules.evict = [this](int rank, const std::string& why) { report_stuck(environment_, rank, why); };
  return rules;
}

RunEnvironment Session::regroup(const CommError& why) {
  CommError fault = why;
  for (;;) {
    const Membership next = agree_on_membership(store_->store(), environment_.identity.rank, membership_,
                                                membership_rules(fault));
    if (next.ranks == membership_.ranks) throw fault;
    membership_ = next;
    group_.reset();
    try {
      group_ = make_named_group("world");
      for (; forgotten_ < membership_.generation; ++forgotten_)
        forget_generation(store_->store(), forgotten_);
      return run_environment();
    } catch (const CommError& error) {  // one more rank was lost meanwhile
      fault = error;
    }
  }
}

RunEnvironment Session::run_environment() {
  RunEnvironment environment{*group_,
                             [this](const std::string& name, const std::vector<int>& ranks) {
                               return ranks.empty() ? make_named_group(name) : make_subgroup(name, ranks);
                             },
                             {*sink_, clock_, stop_.flag(), &stop_.requests()}};
  environment.kept.folder = run_dir_;
  environment.kept.resume = resume_hint(argv_, spec_, environment_, run_dir_);
  environment.kept.incarnation = incarnation_;
  environment.kept.lock_epoch = [this] { return lock_.epoch(); };
  environment.kept.require_lock = [this] { lock_.require(); };
  environment.kept.note_continued = [this](const std::string& checkpoint) { continued_ = checkpoint; };
  environment.membership.ranks = membership_.ranks;
  environment.membership.is_leader = [this] { return leads_.load(); };
  environment.membership.lead = [this] { return lead(); };
  environment.membership.regroup = [this](const CommError& why) { return regroup(why); };
  environment.store = store_ ? &store_->store() : nullptr;
  environment.rendezvous = rendezvous();
  environment.local_cores = local_cores_;
  return environment;
}

}  // namespace starling
