#include "starling/comm/tcp_mesh.h"

#include <fmt/format.h>

#include <utility>

#include "starling/base/error.h"
#include "starling/net/tcp/endpoint.h"
#include "starling/net/tcp/listener.h"

namespace starling {
namespace {

constexpr uint32_t kHello = 7;

// The first message on a connection: who connects, and what for.
struct Hello {
  int32_t rank;
  uint32_t purpose;  // 0: collectives, 1: mail
};

std::unique_ptr<Endpoint> dial(const MeshSetup& setup, const JobIdentity& identity, int peer,
                               uint32_t purpose) {
  auto endpoint = tcp_connect(setup.address_of(peer), identity, setup.deadline);
  endpoint->set_peer_rank(peer, setup.host_names[peer]);
  const Hello hello{setup.rank, purpose};
  const ConstBytes body{reinterpret_cast<const std::byte*>(&hello), sizeof(hello)};
  endpoint->send({.tag = kHello, .head = {}, .body = body, .kind = MessageKind::kControl}, setup.deadline);
  return endpoint;
}

void take(const MeshSetup& setup, Mesh& mesh, std::unique_ptr<Endpoint> endpoint) {
  Hello hello{};
  endpoint->recv({.tag = kHello,
                  .head = {},
                  .body = {reinterpret_cast<std::byte*>(&hello), sizeof(hello)},
                  .kind = MessageKind::kControl},
                 setup.deadline);
  const bool known = hello.rank > setup.rank && hello.rank < static_cast<int>(setup.remote.size()) &&
                     setup.remote[hello.rank] && hello.purpose < 2;
  auto& kind = hello.purpose == 0 ? mesh.collectives : mesh.mail;
  if (!known || kind[hello.rank]) {
    throw CommError(fmt::format(
        "{} says that it is rank {} of this group, which is not expected to connect; two jobs with the "
        "same key need different job ids",
        endpoint->peer(), hello.rank));
  }
  endpoint->set_peer_rank(hello.rank, setup.host_names[hello.rank]);
  kind[hello.rank] = std::move(endpoint);
}

int first_missing(const MeshSetup& setup, const Mesh& mesh) {
  for (size_t r = setup.rank + 1; r < setup.remote.size(); ++r) {
    if (setup.remote[r] && (!mesh.collectives[r] || !mesh.mail[r])) return static_cast<int>(r);
  }
  return -1;
}

Mesh join_all(const MeshSetup& setup, const std::string& bind_address, const JobIdentity& identity) {
  const auto listener = tcp_listen(bind_address + ":0", identity);
  setup.publish(listener->address());
  Mesh mesh;
  mesh.collectives.resize(setup.remote.size());
  mesh.mail.resize(setup.remote.size());
  for (int r = 0; r < setup.rank; ++r) {
    if (!setup.remote[r]) continue;
    mesh.collectives[r] = dial(setup, identity, r, 0);
    mesh.mail[r] = dial(setup, identity, r, 1);
  }
  for (int missing = first_missing(setup, mesh); missing >= 0; missing = first_missing(setup, mesh)) {
    try {
      take(setup, mesh, listener->accept(setup.deadline));
    } catch (const TimeoutError& error) {
      throw TimeoutError(
          fmt::format("rank {} ({}) did not connect: {}", missing, setup.host_names[missing], error.what()),
          missing);
    }
  }
  return mesh;
}

}  // namespace

Connector tcp_mesh(std::string bind_address, JobIdentity identity, std::function<UniqueFd(UniqueFd)> relay) {
  return [=](const MeshSetup& setup) {
    Mesh mesh = join_all(setup, bind_address, identity);
    for (auto* kind : {&mesh.collectives, &mesh.mail}) {
      for (const auto& endpoint : *kind) {
        if (relay && endpoint) endpoint->pass_through(relay);
      }
    }
    return mesh;
  };
}

}  // namespace starling
