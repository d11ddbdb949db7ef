#include "starling/c10d/c10d_rendezvous.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/net/address.h"
#include "starling/net/security/job_key.h"
#include "starling/net/store/split_store.h"
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

// The facts about themselves that ranks write into the c10d store.
class Roll {
 public:
  Roll(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const RendezvousOptions& options)
      : store_(std::move(store)), size_(size), options_(options) {
    // A rank begins its next rendezvous only after this one has received all facts. Every size_ arrivals are
    // therefore one rendezvous.
    round_ = (store_->add("starling/arrivals", 1) - 1) / size;
    put(fmt::format("host/{}", rank), host_id());
    for (int r = 0; r < size; ++r) hosts_.push_back(get(fmt::format("host/{}", r), r));
  }

  bool several_hosts() const {
    return std::any_of(hosts_.begin(), hosts_.end(), [&](const std::string& h) { return h != hosts_[0]; });
  }
  // Returns the first rank on the host of `rank`.
  int leader_of(int rank) const {
    return static_cast<int>(std::find(hosts_.begin(), hosts_.end(), hosts_[rank]) - hosts_.begin());
  }
  void put(const std::string& what, const std::string& value) { store_->set(key(what), value); }
  // Waits for a value that rank `from` writes.
  std::string get(const std::string& what, int from) {
    try {
      store_->wait({key(what)}, options_.group.timeout);
      return store_->get_to_str(key(what));
    } catch (const c10::Error& error) {
      const std::string why = error.what_without_backtrace();
      throw TimeoutError(
          fmt::format(
              "rank {} did not join group '{}' of {} ranks within {} ms. It was awaited in the store of "
              "torch.distributed at {}, as {}. See its log, or raise the timeout of init_process_group ({})",
              from, options_.name, size_, options_.group.timeout.count(), master(), key(what),
              why.substr(0, why.find('\n'))),
          from);
    }
  }

 private:
  std::string master() const {
    return options_.master_host.empty() ? "an address that the caller chose" : options_.master_host;
  }
  std::string key(const std::string& what) const { return fmt::format("starling/{}/{}", round_, what); }

  const c10::intrusive_ptr<c10d::Store> store_;
  const int size_;
  const RendezvousOptions& options_;
  int64_t round_ = 0;
  std::vector<std::string> hosts_;  // of each rank
};

// A group and the stores that it needs, in the order in which they must end.
struct RendezvousParts {
  std::unique_ptr<StoreServer> host_server, job_server;
  std::unique_ptr<StoreClient> host_store, job_store;
  std::unique_ptr<Store> both;
  std::unique_ptr<Group> group;
  StoreClient* announced = nullptr;

  RendezvousParts() = default;
  RendezvousParts(const RendezvousParts&) = delete;
  ~RendezvousParts() {
    group.reset();
    if (announced == nullptr) return;
    try {
      announced->goodbye();
    } catch (const Error&) {
      // The rank that served the store has already left. No other rank has to be told.
    }
  }
};

// Returns the identity for ranks of one host. The kernel tells which user's process is at the other end. The
// handshake needs a key, which is made from the name.
JobIdentity identity_on_host(const std::string& name) {
  std::array<std::byte, JobKey::kBytes> bytes{};
  for (size_t i = 0; i < name.size(); ++i)
    bytes[i % bytes.size()] ^= static_cast<std::byte>(name[i] + 131 * i);
  return {JobKey(std::span<const std::byte, JobKey::kBytes>(bytes)), name};
}

JobKey key_of_job(const RendezvousOptions& options) {
  if (!options.key_file.empty()) return read_job_key_file(options.key_file);
  throw ConfigError("STARLING_KEY_FILE",
                    fmt::format("the ranks of group '{}' are on several hosts, whose connections need a "
                                "job key: make one with `(umask 077; python3 -c 'import secrets; "
                                "print(secrets.token_hex(32))' > job.key)`, copy it to every host, and set "
                                "STARLING_KEY_FILE to its path on each",
                                options.name));
}

// Returns the address of this host that has this name, if there is one.
std::optional<std::string> own_address(const std::string& host) {
  std::string wanted = resolve({host, 0}).host();
  for (const Interface& interface : list_interfaces()) {
    if (interface.address.host() == wanted) return wanted;
  }
  return std::nullopt;
}

// Returns the host as it stands before ":port".
std::string before_port(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

// Returns the address on which this rank listens. `rank_0` is the address of the store of rank 0. It is empty
// on rank 0 itself.
std::string bind_address(const RendezvousOptions& options, const std::string& rank_0) {
  const auto interfaces = list_interfaces();
  for (const Interface& interface : interfaces) {
    if (interface.name == options.interface) return before_port(interface.address.host());
  }
  if (!options.interface.empty()) return before_port(options.interface);
  if (!rank_0.empty()) return before_port(local_address_towards(resolve(parse_host_port(rank_0))).host());
  if (!options.master_host.empty()) {
    if (auto own = own_address(options.master_host)) return before_port(*own);
  }
  for (const Interface& interface : interfaces) {
    if (!interface.loopback) return before_port(interface.address.host());
  }
  throw ConfigError("STARLING_INTERFACE",
                    "the ranks are on several hosts, but this host has only the loopback interface");
}

// Makes the group of the ranks whose stores are in `parts`.
std::shared_ptr<Group> grouped(const std::shared_ptr<RendezvousParts>& parts, GroupSetup setup,
                               const RendezvousOptions& options) {
  setup.name = options.name;
  setup.options = options.group;
  setup.options.free_windows = true;  // each DistributedDataParallel allocates anew
  setup.host_id = host_id();
  setup.host_name = host_name();
  // The backward pass continues while a thread of the backend reduces.
  setup.waiting = WaitPolicy::beside_computation();
  parts->announced = parts->job_store ? parts->job_store.get() : parts->host_store.get();
  parts->announced->announce(setup.rank);
  parts->group = make_group(parts->both ? *parts->both : *parts->host_store, setup);
  return {parts, parts->group.get()};
}

void join_host_store(Roll& roll, RendezvousParts& parts, int rank, const StoreClientOptions& patience) {
  const int leader = roll.leader_of(rank);
  std::string name;
  if (leader == rank) {
    name = fresh_name();
    parts.host_server =
        std::make_unique<StoreServer>(std::vector<std::string>{"@" + name}, identity_on_host(name));
    roll.put(fmt::format("leader/{}", rank), name);
  } else {
    name = roll.get(fmt::format("leader/{}", leader), leader);
  }
  parts.host_store = std::make_unique<StoreClient>("@" + name, identity_on_host(name), patience);
}

// Joins the store of the job, which rank 0 serves. Returns the connector for ranks of different hosts.
Connector join_job_store(Roll& roll, RendezvousParts& parts, int rank, const RendezvousOptions& options,
                         const JobKey& key, const StoreClientOptions& patience) {
  std::string name, address;
  if (rank == 0) {
    name = fresh_name();
    parts.job_server = std::make_unique<StoreServer>(
        std::vector<std::string>{bind_address(options, "") + ":0"}, JobIdentity{key, name, options.security});
    address = parts.job_server->addresses()[0];
    roll.put("job", name + " " + address);
  } else {
    const std::string line = roll.get("job", 0);
    const size_t cut = line.find(' ');
    name = line.substr(0, cut);
    address = cut == std::string::npos ? "" : line.substr(cut + 1);
  }
  const JobIdentity identity{key, name, options.security};
  parts.job_store = std::make_unique<StoreClient>(address, identity, patience);
  return tcp_connector(bind_address(options, address), identity);
}

}  // namespace

std::shared_ptr<Group> rendezvous_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                        const RendezvousOptions& options) {
  if (size == 1) return make_single_group(options.group);
  Roll roll(store->clone(), rank, size, options);  // waits on a connection of its own
  const StoreClientOptions patience{.connect_timeout = options.group.timeout};
  const auto parts = std::make_shared<RendezvousParts>();
  // The key is read before any rank waits for another one. If it is missing, all ranks get the error.
  std::optional<JobKey> key;
  if (roll.several_hosts()) key = key_of_job(options);
  GroupSetup setup;
  setup.rank = rank;
  setup.size = size;
  // The store of the job comes first. Each rank then finds by itself why it cannot join (another key, another
  // protection). The first rank of its host may end for that reason, so a rank must not depend on it before.
  if (key) setup.connect = join_job_store(roll, *parts, rank, options, *key, patience);
  join_host_store(roll, *parts, rank, patience);
  if (key) parts->both = std::make_unique<SplitStore>(*parts->job_store, *parts->host_store);
  return grouped(parts, setup, options);
}

LocalRendezvous::LocalRendezvous()
    : name_(fresh_name()),
      handle_(fmt::format("{} {}", name_, host_id())),
      server_(std::make_unique<StoreServer>(std::vector<std::string>{"@" + name_}, identity_on_host(name_))) {
}

LocalRendezvous::~LocalRendezvous() = default;

std::shared_ptr<Group> LocalRendezvous::join(const std::vector<std::string>& handles, int64_t uuid,
                                             const RendezvousOptions& options) {
  const auto own = std::find(handles.begin(), handles.end(), handle_);
  if (own == handles.end()) throw ConfigError("reconfigure", "this rank's handle is not among those given");
  const auto host_of = [](const std::string& handle) {
    return handle.substr(std::min(handle.find(' '), handle.size()));
  };
  for (const std::string& handle : handles) {
    if (host_of(handle) == host_of(handle_)) continue;
    throw ConfigError("reconfigure",
                      "a handle is of another host; groups on several hosts are made by new_group");
  }
  if (handles.size() == 1) return make_single_group(options.group);
  GroupSetup setup;
  setup.rank = static_cast<int>(own - handles.begin());
  setup.size = static_cast<int>(handles.size());
  setup.generation = uuid;
  const StoreClientOptions patience{.connect_timeout = options.group.timeout};
  const std::string first = handles[0].substr(0, handles[0].find(' '));
  StoreClient board("@" + first, identity_on_host(first), patience);
  const auto parts = std::make_shared<RendezvousParts>();
  // Each group has a store of its own, because a store remembers lost ranks.
  std::string name;
  if (setup.rank == 0) {
    name = fresh_name();
    parts->host_server =
        std::make_unique<StoreServer>(std::vector<std::string>{"@" + name}, identity_on_host(name));
    board.put(fmt::format("rendezvous/{}", uuid), name);
  } else {
    name = board.get(fmt::format("rendezvous/{}", uuid), options.group.timeout);
  }
  parts->host_store = std::make_unique<StoreClient>("@" + name, identity_on_host(name), patience);
  return grouped(parts, setup, options);
}

}  // namespace starling
