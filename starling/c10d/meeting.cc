#include "starling/c10d/meeting.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/tcp_mesh.h"
#include "starling/net/address.h"
#include "starling/net/fresh_name.h"
#include "starling/net/job_key.h"
#include "starling/net/split_store.h"
#include "starling/net/store_client.h"
#include "starling/net/store_server.h"

namespace starling {
namespace {

// What the ranks say of themselves in the c10d store.
class Roll {
 public:
  Roll(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const MeetingOptions& options)
      : store_(std::move(store)), size_(size), options_(options) {
    // A rank comes to its next meeting after this one has gathered all, so every size_ arrivals are one meeting.
    round_ = (store_->add("starling/arrivals", 1) - 1) / size;
    put(fmt::format("host/{}", rank), host_id());
    for (int r = 0; r < size; ++r) hosts_.push_back(get(fmt::format("host/{}", r), r));
  }

  bool several_hosts() const {
    return std::any_of(hosts_.begin(), hosts_.end(), [&](const std::string& h) { return h != hosts_[0]; });
  }
  // The first rank on the host of `rank`.
  int leader_of(int rank) const {
    return static_cast<int>(std::find(hosts_.begin(), hosts_.end(), hosts_[rank]) - hosts_.begin());
  }
  void put(const std::string& what, const std::string& value) { store_->set(key(what), value); }
  // Waits for what rank `from` puts.
  std::string get(const std::string& what, int from) {
    try {
      store_->wait({key(what)}, options_.group.timeout);
      return store_->get_to_str(key(what));
    } catch (const c10::Error& error) {
      const std::string why = error.what_without_backtrace();
      throw TimeoutError(
          fmt::format("rank {} did not join group '{}' of {} ranks within {} ms; see its log, or raise the "
                      "timeout ({})",
                      from, options_.name, size_, options_.group.timeout.count(),
                      why.substr(0, why.find('\n'))),
          from);
    }
  }

 private:
  std::string key(const std::string& what) const { return fmt::format("starling/{}/{}", round_, what); }

  const c10::intrusive_ptr<c10d::Store> store_;
  const int size_;
  const MeetingOptions& options_;
  int64_t round_ = 0;
  std::vector<std::string> hosts_;  // of each rank
};

// A group with the stores that it needs, in the order in which they must end.
struct Met {
  std::unique_ptr<StoreServer> host_server, job_server;
  std::unique_ptr<StoreClient> host_store, job_store;
  std::unique_ptr<Store> both;
  std::unique_ptr<Group> group;
  StoreClient* announced = nullptr;

  Met() = default;
  Met(const Met&) = delete;
  ~Met() {
    group.reset();
    if (announced == nullptr) return;
    try {
      announced->goodbye();
    } catch (const Error&) {
      // The rank that served the store has gone before: nobody is left to be told.
    }
  }
};

// On one host the kernel tells whose process is at the other end; the key that the handshake wants is made of the name.
JobIdentity identity_on_host(const std::string& name) {
  std::array<std::byte, JobKey::kBytes> bytes{};
  for (size_t i = 0; i < name.size(); ++i)
    bytes[i % bytes.size()] ^= static_cast<std::byte>(name[i] + 131 * i);
  return {JobKey(std::span<const std::byte, JobKey::kBytes>(bytes)), name};
}

JobKey key_of_job(const MeetingOptions& options) {
  if (!options.key_file.empty()) return read_job_key_file(options.key_file);
  throw ConfigError("STARLING_KEY_FILE",
                    fmt::format("the ranks of group '{}' are on several hosts, and what crosses a network "
                                "must prove a job key: make "
                                "one with `(umask 077; python3 -c 'import secrets; "
                                "print(secrets.token_hex(32))' > job.key)`, copy it "
                                "to every host, and set STARLING_KEY_FILE to its path on each",
                                options.name));
}

// The address of this host with this name, if it is one.
std::optional<std::string> own_address(const std::string& host) {
  std::string wanted = resolve({host, 0}).host();
  for (const Interface& interface : list_interfaces()) {
    if (interface.address.host() == wanted) return wanted;
  }
  return std::nullopt;
}

// As it stands before ":port".
std::string before_port(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

// Where this rank listens. rank_0: where its store is, empty for rank 0 itself.
std::string bind_address(const MeetingOptions& options, const std::string& rank_0) {
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
                    "this host has no network interface but loopback, and ranks on other hosts");
}

// The group of those who have met in `met`.
std::shared_ptr<Group> grouped(const std::shared_ptr<Met>& met, GroupSetup setup,
                               const MeetingOptions& options) {
  setup.name = options.name;
  setup.options = options.group;
  setup.host_id = host_id();
  setup.host_name = host_name();
  setup.waiting = WaitPolicy::beside_computation();  // backward goes on while a thread of the backend reduces
  met->announced = met->job_store ? met->job_store.get() : met->host_store.get();
  met->announced->announce(setup.rank);
  met->group = make_group(met->both ? *met->both : *met->host_store, setup);
  return {met, met->group.get()};
}

void meet_on_host(Roll& roll, Met& met, int rank, const StoreClientOptions& patience) {
  const int leader = roll.leader_of(rank);
  std::string name;
  if (leader == rank) {
    name = fresh_name();
    met.host_server =
        std::make_unique<StoreServer>(std::vector<std::string>{"@" + name}, identity_on_host(name));
    roll.put(fmt::format("leader/{}", rank), name);
  } else {
    name = roll.get(fmt::format("leader/{}", leader), leader);
  }
  met.host_store = std::make_unique<StoreClient>("@" + name, identity_on_host(name), patience);
}

// Joins the store of the job, which rank 0 serves; how ranks of different hosts connect.
Connector meet_between_hosts(Roll& roll, Met& met, int rank, const MeetingOptions& options, const JobKey& key,
                             const StoreClientOptions& patience) {
  std::string name, address;
  if (rank == 0) {
    name = fresh_name();
    met.job_server = std::make_unique<StoreServer>(std::vector<std::string>{bind_address(options, "") + ":0"},
                                                   JobIdentity{key, name});
    address = met.job_server->addresses()[0];
    roll.put("job", name + " " + address);
  } else {
    const std::string line = roll.get("job", 0);
    const size_t cut = line.find(' ');
    name = line.substr(0, cut);
    address = cut == std::string::npos ? "" : line.substr(cut + 1);
  }
  const JobIdentity identity{key, name};
  met.job_store = std::make_unique<StoreClient>(address, identity, patience);
  met.both = std::make_unique<SplitStore>(*met.job_store, *met.host_store);
  return tcp_mesh(bind_address(options, address), identity);
}

}  // namespace

std::shared_ptr<Group> meet(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                            const MeetingOptions& options) {
  if (size == 1) return make_single_group(options.group);
  Roll roll(store->clone(), rank, size, options);  // waits on a connection of its own
  const StoreClientOptions patience{.connect_timeout = options.group.timeout};
  const auto met = std::make_shared<Met>();
  std::optional<JobKey> key;  // read before anybody waits for anybody: all get the error that it is missing
  if (roll.several_hosts()) key = key_of_job(options);
  meet_on_host(roll, *met, rank, patience);
  GroupSetup setup;
  setup.rank = rank;
  setup.size = size;
  if (key) setup.connect = meet_between_hosts(roll, *met, rank, options, *key, patience);
  return grouped(met, setup, options);
}

MeetingPoint::MeetingPoint()
    : name_(fresh_name()),
      handle_(fmt::format("{} {}", name_, host_id())),
      server_(std::make_unique<StoreServer>(std::vector<std::string>{"@" + name_}, identity_on_host(name_))) {
}

MeetingPoint::~MeetingPoint() = default;

std::shared_ptr<Group> MeetingPoint::meet(const std::vector<std::string>& handles, int64_t uuid,
                                          const MeetingOptions& options) {
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
  const auto met = std::make_shared<Met>();
  // A store a group: it remembers who was lost.
  std::string name;
  if (setup.rank == 0) {
    name = fresh_name();
    met->host_server =
        std::make_unique<StoreServer>(std::vector<std::string>{"@" + name}, identity_on_host(name));
    board.put(fmt::format("meeting/{}", uuid), name);
  } else {
    name = board.get(fmt::format("meeting/{}", uuid), options.group.timeout);
  }
  met->host_store = std::make_unique<StoreClient>("@" + name, identity_on_host(name), patience);
  return grouped(met, setup, options);
}

}  // namespace starling
