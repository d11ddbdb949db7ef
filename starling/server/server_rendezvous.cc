#include "starling/server/server_rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/message_tags.h"
#include "starling/net/deadline.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kLook{200};

std::string key_of(const ServerRendezvous& m, const std::string& what) {
  return fmt::format("server/{}/{}/{}", m.name, m.generation, what);
}

// Waits for `key` and checks repeatedly whether `rank` is lost. Returns false if the time is over.
bool await_key(Store& store, const ServerRendezvous& m, const std::string& key, int rank,
               const std::string& name, std::chrono::milliseconds timeout) {
  const Deadline deadline = deadline_in(timeout);
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      store.get(key, std::clamp(left, std::chrono::milliseconds(1), kLook));
      return true;
    } catch (const TimeoutError&) {
      if (const auto why = store.try_get(lost_key(rank)))
        throw CommError(fmt::format("{} is lost: {}", name, *why), rank);
      if (m.stop.stop_requested())
        throw CommError(fmt::format("{} had not come when this process ended its servers", name), rank);
      if (has_passed(deadline)) return false;
    }
  }
}

std::unique_ptr<Link> make_link(Store& store, const ServerRendezvous& m, int worker, int server,
                                bool of_server, std::string peer) {
  // The ranks of a group ascend by their ranks in the job.
  const int server_rank = m.rank_of_server(server);
  const int servers_place = server_rank > worker ? 1 : 0;
  GroupSetup setup;
  setup.rank = of_server ? servers_place : 1 - servers_place;
  setup.size = 2;
  setup.name = fmt::format("{}/{}/{}", m.name, worker, server);
  setup.generation = m.generation;
  setup.world_ranks = {std::min(worker, server_rank), std::max(worker, server_rank)};
  setup.options = m.group;
  if (of_server) setup.options.timeout = m.idle_timeout;
  setup.host_id = m.host_id;
  setup.host_name = m.host_name;
  setup.connect = m.connect;
  return std::make_unique<Link>(m.make ? m.make(setup) : make_group(store, setup), 1 - setup.rank,
                                std::move(peer));
}

}  // namespace

Link::Link(std::unique_ptr<Group> group, int peer, std::string peer_name)
    : group_(std::move(group)), peer_(peer), peer_name_(std::move(peer_name)) {}

void Link::send(const ServerMessage& message, std::span<const std::byte> body) {
  ServerMessage whole = message;
  whole.bytes = body.size();
  const HeadBytes head = encode(whole);
  starling::send(*group_, head.data(), head.size(), peer_, kServerHeadTag);
  if (!body.empty()) starling::send(*group_, body.data(), body.size(), peer_, kServerBodyTag);
  sent_ += head.size() + body.size();
}

ServerMessage Link::recv_head() {
  HeadBytes head;
  starling::recv(*group_, head.data(), head.size(), peer_, kServerHeadTag);
  received_ += head.size();
  return decode(head, peer_name_);
}

void Link::recv_body(std::span<std::byte> body) {
  if (body.empty()) return;
  starling::recv(*group_, body.data(), body.size(), peer_, kServerBodyTag);
  received_ += body.size();
}

void announce_server(Store& store, const ServerRendezvous& rendezvous, int server) {
  store.put(key_of(rendezvous, fmt::format("server/{}", server)), "here");
}

std::unique_ptr<Link> meet_server(Store& store, const ServerRendezvous& m, int worker, int server) {
  const int rank = m.rank_of_server(server);
  const std::string name = fmt::format("server {} (rank {})", server, rank);
  if (!await_key(store, m, key_of(m, fmt::format("server/{}", server)), rank, name, m.server_timeout)) {
    const std::string remedy = m.embedded
                                   ? std::string("every rank must start its shard")
                                   : fmt::format("start as many servers as --servers says ({})", m.servers);
    throw TimeoutError(fmt::format("{} is not there: it has not started within {} ms; see its log, or {}",
                                   name, m.server_timeout.count(), remedy),
                       rank);
  }
  store.put(key_of(m, fmt::format("worker/{}/{}", worker, server)), "here");
  return make_link(store, m, worker, server, false, name);
}

std::unique_ptr<Link> meet_worker(Store& store, const ServerRendezvous& m, int server, int worker) {
  const std::string name = fmt::format("worker {}", worker);
  if (!await_key(store, m, key_of(m, fmt::format("worker/{}/{}", worker, server)), worker, name,
                 m.idle_timeout)) {
    throw TimeoutError(fmt::format("{} has not come within {} ms; see its log", name, m.idle_timeout.count()),
                       worker);
  }
  return make_link(store, m, worker, server, true, name);
}

}  // namespace starling
