#include "starling/launch/launch_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "starling/base/descriptor_limit.h"

namespace starling {

namespace {

bool says_how_threads_wait(std::string_view variable) {
  return variable.starts_with("OMP_WAIT_POLICY=") || variable.starts_with("GOMP_SPINCOUNT=");
}

// Returns whether this process has the variables about waiting threads that rank_environment() sets. OpenMP
// reads them when a process begins. A single thread waits for no other.
bool waits_like_rank(const LaunchOptions& options) {
  if (rank_threads(options, usable_cpus()).count <= 1) return true;
  const char* const* entry = options.environment;
  while (entry && *entry && !says_how_threads_wait(*entry)) ++entry;
  return entry && *entry;
}

}  // namespace

int threads_per_rank(const LaunchOptions& options, int cores) {
  return options.threads > 0 ? options.threads : std::max(1, cores / std::max(1, options.ranks));
}

RankThreads rank_threads(const LaunchOptions& options, const std::vector<Cpu>& cpus) {
  const int cores = static_cast<int>(cpus.size());
  const int threads = threads_per_rank(options, count_cores(cpus));
  return {threads, cores > 0 && options.ranks * threads > cores};
}

std::optional<std::string> crowd_warning(const LaunchOptions& options, const std::vector<Cpu>& cpus) {
  const RankThreads threads = rank_threads(options, cpus);
  if (!threads.crowded) return std::nullopt;
  return fmt::format(
      "{} rank{} of {} thread{} on {} core{}: the threads share cores. Fewer ranks or threads would be "
      "faster",
      options.ranks, options.ranks == 1 ? "" : "s", threads.count, threads.count == 1 ? "" : "s", cpus.size(),
      cpus.size() == 1 ? "" : "s");
}

RankForks fork_ranks(const LaunchOptions& options) {
  const bool here = options.hosts.hosts.empty() && options.program.empty();
  if (!here || !waits_like_rank(options) || !RankForks::possible()) return {};
  raise_descriptor_limit();  // as the launcher does later, for many ranks
  return RankForks(options.ranks);
}

std::vector<std::string> rank_environment(const LaunchOptions& options, int index, const RankThreads& threads,
                                          int master_port, const Rendezvous& rendezvous,
                                          const ChildFds& fds) {
  static constexpr std::string_view kOurs[] = {
      "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS",
      // Ranks get the key through a descriptor only. A key file is for jobs that other launchers start on
      // several hosts.
      "STARLING_KEY_FILE", "STARLING_KEY_FD", "STARLING_ERROR_FD", "STARLING_BOARD_FD", "STARLING_STORE",
      "STARLING_JOB_ID", "STARLING_RUN_DIR", "STARLING_JOB_STORE"};
  std::vector<std::string> out;
  for (const char* const* entry = options.environment; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (std::find(std::begin(kOurs), std::end(kOurs), name) == std::end(kOurs)) out.emplace_back(text);
  }
  const auto set = [&out](const char* name, const auto& value) {
    out.push_back(fmt::format("{}={}", name, value));
  };
  set("RANK", options.share.first + index);
  set("WORLD_SIZE", options.world());
  set("LOCAL_RANK", index);
  set("LOCAL_WORLD_SIZE", options.ranks);
  set("MASTER_ADDR", options.share.master_host);
  set("MASTER_PORT", master_port);
  set("OMP_NUM_THREADS", threads.count);
  const bool told = std::any_of(out.begin(), out.end(), says_how_threads_wait);
  if (threads.crowded && !told) set("OMP_WAIT_POLICY", "passive");
  if (!threads.crowded && threads.count > 1 && !told) set("GOMP_SPINCOUNT", kBriefSpin);
  set("STARLING_STORE", rendezvous.address);
  if (!rendezvous.job_id.empty()) set("STARLING_JOB_ID", rendezvous.job_id);
  if (!options.share.job_store.empty()) set("STARLING_JOB_STORE", options.share.job_store);
  if (!options.run_dir.empty()) set("STARLING_RUN_DIR", options.run_dir);
  if (fds.key >= 0) set("STARLING_KEY_FD", fds.key);
  if (fds.error >= 0) set("STARLING_ERROR_FD", fds.error);
  if (fds.board >= 0) set("STARLING_BOARD_FD", fds.board);
  return out;
}

}  // namespace starling
