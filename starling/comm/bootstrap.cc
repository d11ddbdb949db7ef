#include "starling/comm/bootstrap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <type_traits>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/engine.h"
#include "starling/comm/host/numa.h"
#include "starling/comm/host/shared_memory.h"
#include "starling/net/deadline.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

std::string machine_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

// The first and the longest time between two checks whether an awaited rank is lost.
constexpr Milliseconds kFirstLook{200}, kLook{1'000};

// Rendezvous writes and awaits the store keys of one group.
class Rendezvous {
 public:
  Rendezvous(Store& store, const GroupSetup& setup)
      : store_(store),
        setup_(setup),
        prefix_(fmt::format("{}{}/", group_keys(setup.generation), setup.name)) {}

  const std::string& prefix() const { return prefix_; }
  void put(const std::string& what, const std::string& value) {
    store_.put(fmt::format("{}{}/{}", prefix_, what, setup_.rank), value);
  }
  // Returns what every rank has put, by rank.
  std::vector<std::string> gather(const std::string& what) {
    const std::string keys = fmt::format("{}{}/", prefix_, what);
    return patiently(keys, [&](Milliseconds wait) { return store_.gather(keys, setup_.size, wait); });
  }
  // Returns what one rank has put.
  std::string get(const std::string& what, int rank) {
    const std::string keys = fmt::format("{}{}/", prefix_, what);
    return patiently(keys, [&](Milliseconds wait) {
      try {
        return store_.get(keys + std::to_string(rank), wait);
      } catch (const TimeoutError& error) {
        throw TimeoutError(error.what(), rank);
      }
    });
  }
  // Throws CommError if the store knows that the rank is lost. `rank` is a rank of the group.
  void refuse_lost(int rank) {
    const int in_job = setup_.world_ranks.empty() ? rank : setup_.world_ranks[static_cast<size_t>(rank)];
    if (const auto why = store_.try_get(lost_key(in_job)))
      throw CommError(fmt::format("rank {} is lost: {}", in_job, *why), rank);
  }

 private:
  // Repeats a call that waits in the store until the call succeeds or the group's timeout has passed. peer()
  // of the call's TimeoutError is the awaited rank. The function throws CommError if that rank is lost.
  template <typename Call>
  std::invoke_result_t<Call, Milliseconds> patiently(const std::string& keys, const Call& call) {
    const Deadline deadline = deadline_in(setup_.options.timeout);
    for (Milliseconds wait = kFirstLook;; wait = std::min(2 * wait, kLook)) {
      try {
        const auto left = std::chrono::ceil<Milliseconds>(deadline - SteadyClock::now());
        return call(std::clamp(left, Milliseconds(0), wait));
      } catch (const TimeoutError& error) {
        const int rank = error.peer();
        if (rank < 0) throw;  // the store does not answer
        refuse_lost(rank);
        if (has_passed(deadline)) {
          throw TimeoutError(fmt::format("rank {} did not join group '{}' (generation {}) within {} ms. "
                                         "The store at {} has no key {}{}. See the log of the rank, or raise "
                                         "comm.timeout_s",
                                         rank, setup_.name, setup_.generation, setup_.options.timeout.count(),
                                         store_.address(), keys, rank),
                             rank);
        }
      }
    }
  }

  Store& store_;
  const GroupSetup& setup_;
  const std::string prefix_;
};

// Tells the other ranks about this rank, learns about them, and sorts them by host.
// Each rank writes "host_id\nhost_name\nNUMA node\nprocessors". cpu_list_text() writes the processors.
Places find_places(Rendezvous& rendezvous, const GroupSetup& setup) {
  std::string id = setup.host_id.empty() ? this_host_id() : setup.host_id;
  if (!setup.options.shared_memory) id += fmt::format(" alone {}", setup.rank);
  const std::vector<int> processors = usable_processors();
  rendezvous.put("host",
                 fmt::format("{}\n{}\n{}\n{}", id, setup.host_name.empty() ? machine_name() : setup.host_name,
                             setup.numa_node.value_or(numa_node_of(processors)), cpu_list_text(processors)));
  Places places;
  places.rank = setup.rank;
  std::map<std::string, int> index;
  std::vector<std::string> numa_of(setup.size), processors_of(setup.size);
  const std::vector<std::string> hosts = rendezvous.gather("host");
  for (int r = 0; r < setup.size; ++r) {
    std::istringstream told(hosts[r]);
    std::string host, name;
    std::getline(told, host);
    std::getline(told, name);
    std::getline(told, numa_of[r]);
    std::getline(told, processors_of[r]);
    const auto [it, added] = index.emplace(host, static_cast<int>(places.hosts.size()));
    if (added) places.hosts.emplace_back();
    places.hosts[it->second].push_back(r);
    places.host_of.push_back(it->second);
    places.host_names.push_back(name);
  }
  std::set<int> together;
  for (const int r : places.local()) {
    places.local_numa.push_back(std::atoi(numa_of[r].c_str()));
    for (const int processor : parse_cpu_list(processors_of[r])) together.insert(processor);
  }
  places.local_processors = static_cast<int>(together.size());
  return places;
}

// LostRanks reads the launcher's `lost/<rank>` keys, at most every half second.
class LostRanks {
 public:
  LostRanks(Store& store, const GroupSetup& setup, const Places& places)
      : store_(store), world_(setup.world_ranks), places_(places) {}

  std::optional<Failure> look() {
    const std::lock_guard lock(mutex_);
    if (SteadyClock::now() < next_) return found_;
    next_ = SteadyClock::now() + std::chrono::milliseconds(500);
    try {
      const auto lost = store_.list(kLostKeys);
      for (int r = 0; r < places_.size() && !lost.empty() && !found_; ++r) {
        if (r == places_.rank) continue;
        const auto why = lost.find(lost_key(world_.empty() ? r : world_[r]));
        if (why == lost.end()) continue;
        found_ =
            Failure{fmt::format("rank {} ({}) is lost: {}", r, places_.host_names[r], why->second), r, false};
      }
    } catch (const CommError&) {
      // The store is gone. Sockets and process descriptors still report lost ranks.
      next_ = SteadyClock::time_point::max();
    }
    return found_;
  }

 private:
  Store& store_;
  const std::vector<int> world_;
  const Places places_;
  std::mutex mutex_;
  SteadyClock::time_point next_{};
  std::optional<Failure> found_;
};

LocalTeamSetup local_setup(Store* store, const std::string& prefix, const Places& places,
                           const GroupOptions& options, const std::function<void(int)>& look) {
  const int p = static_cast<int>(places.local().size());
  const int me = places.local_rank_of(places.rank);
  const auto window = [&](const char* what, size_t bytes) {
    return make_shared_window(store,
                              {.key = fmt::format("{}{}/{}", prefix, what, places.host_of[places.rank]),
                               .local_rank = me,
                               .local_size = p,
                               .bytes = bytes,
                               .timeout = options.timeout,
                               .look = look});
  };
  LocalTeamSetup setup;
  setup.local_rank = me;
  setup.ranks = places.local();
  setup.host = places.host_names[places.rank];
  setup.numa_of = places.local_numa;
  setup.control = window("control", ControlLayout(p).bytes());
  setup.staging = window("staging", p > 1 ? kStagingBytes : 0);
  setup.timeout = options.timeout;
  setup.policy = WaitPolicy::for_ranks(p, places.local_processors);
  setup.shared_cores = p > places.local_processors;
  setup.warn = options.warn;
  return setup;
}

// Connects this rank to the ranks of other hosts.
void connect_remote(Rendezvous& rendezvous, const GroupSetup& setup, EngineParts& parts) {
  if (!setup.connect) {
    throw CommError(fmt::format(
        "group '{}' has ranks on {} hosts ({}, {}, …), but no way to connect them was given; several hosts "
        "need a job key",
        setup.name, parts.places.hosts.size(), parts.places.host_names[parts.places.hosts[0][0]],
        parts.places.host_names[parts.places.hosts[1][0]]));
  }
  ConnectionSetup connection;
  connection.rank = setup.rank;
  connection.group = rendezvous.prefix();
  connection.host_names = parts.places.host_names;
  for (const int host : parts.places.host_of) connection.remote.push_back(host != parts.places.my_host());
  connection.deadline = deadline_in(setup.options.timeout);
  connection.publish = [&](const std::string& address) { rendezvous.put("address", address); };
  connection.addresses = [&] { return rendezvous.gather("address"); };
  connection.refuse_lost = [&](int rank) { rendezvous.refuse_lost(rank); };
  PeerConnections made = setup.connect(connection);
  parts.collective_endpoints = std::move(made.collectives);
  parts.message_endpoints = std::move(made.messages);
}

}  // namespace

std::string this_host_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id.empty() ? machine_name() : id;
}

std::string group_keys(int64_t generation) {
  return fmt::format("comm/{}/", generation);
}

std::unique_ptr<Group> make_group(Store& store, const GroupSetup& setup) {
  if (setup.size < 1 || setup.rank < 0 || setup.rank >= setup.size) {
    throw CommError(fmt::format("rank {} does not exist in a group of {} ranks", setup.rank, setup.size));
  }
  Rendezvous rendezvous(store, setup);
  EngineParts parts;
  parts.places = find_places(rendezvous, setup);
  parts.options = setup.options;
  parts.store = &store;
  parts.key = rendezvous.prefix();
  parts.name = setup.name;
  parts.job_ranks = setup.world_ranks;
  const int p = static_cast<int>(parts.places.local().size());
  const auto look = [&](int local_rank) {
    rendezvous.refuse_lost(parts.places.local()[static_cast<size_t>(local_rank)]);
  };
  LocalTeamSetup local = local_setup(&store, rendezvous.prefix(), parts.places, setup.options, look);
  auto lost = std::make_shared<LostRanks>(store, setup, parts.places);
  local.outside = [lost] { return lost->look(); };
  if (setup.waiting) local.policy = *setup.waiting;
  if (p > 1) {
    parts.rings = make_shared_window(
        &store, {.key = rendezvous.prefix() + "rings/" + std::to_string(parts.places.host_of[setup.rank]),
                 .local_rank = local.local_rank,
                 .local_size = p,
                 .bytes = p * ring_bytes(p),
                 .populate = false,
                 .timeout = setup.options.timeout,
                 .look = look});
  }
  if (parts.places.hosts.size() > 1) {
    connect_remote(rendezvous, setup, parts);
    if (setup.rank == 0) {
      const Tuning all = Tuning::parse(setup.options.tuning, "tuning");
      const auto hosts = static_cast<int>(parts.places.hosts.size());
      rendezvous.put("tuning", all.of(setup.size, hosts, setup.options.link).text());
    }
    parts.tuning = rendezvous.get("tuning", 0);
  }
  parts.team = std::make_unique<LocalTeam>(std::move(local));
  return std::make_unique<Engine>(std::move(parts));
}

GroupSetup subset_of(const GroupSetup& whole, const std::string& name, const std::vector<int>& ranks) {
  const auto own = std::find(ranks.begin(), ranks.end(), whole.rank);
  if (own == ranks.end()) throw CommError(fmt::format("rank {} is not in group '{}'", whole.rank, name));
  GroupSetup setup = whole;
  setup.rank = static_cast<int>(own - ranks.begin());
  setup.size = static_cast<int>(ranks.size());
  setup.name = fmt::format("{}-of-{}", name, ranks.front());  // disjoint subsets differ in their first rank
  setup.world_ranks.clear();
  for (const int r : ranks) setup.world_ranks.push_back(whole.world_ranks.empty() ? r : whole.world_ranks[r]);
  return setup;
}

std::unique_ptr<Group> make_single_group(const GroupOptions& options, int job_rank) {
  EngineParts parts;
  parts.job_ranks = {job_rank};
  parts.places = Places{.rank = 0, .host_names = {machine_name()}, .hosts = {{0}}, .host_of = {0}};
  parts.options = options;
  parts.team = std::make_unique<LocalTeam>(local_setup(nullptr, "", parts.places, options, {}));
  return std::make_unique<Engine>(std::move(parts));
}

}  // namespace starling
