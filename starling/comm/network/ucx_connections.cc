#include "starling/comm/network/ucx_connections.h"

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/shared_object.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/net/ucx/ucx_endpoint.h"
#include "starling/net/ucx/ucx_plugin.h"

namespace starling {
namespace {

constexpr uint32_t kOffer = 8;
constexpr uint32_t kMet = 10;

using Endpoints = std::vector<std::unique_ptr<Endpoint>>;

ConstBytes bytes_of_text(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::shared_ptr<UcxProgress> open_worker(const std::shared_ptr<UcxLibrary>& library) {
  std::string error;
  auto worker = library->make_worker(error);
  if (!worker) throw CommError("UCX could not make a worker: " + error);
  return std::make_shared<UcxProgress>(library, std::move(worker));
}

UcxOffer receive_offer(Endpoint& tcp, Deadline deadline) {
  const MessageInfo info = tcp.peek(deadline);
  std::vector<std::byte> body(info.kind == MessageKind::kControl ? info.bytes : 0);
  tcp.recv({.tag = kOffer, .head = {}, .body = body, .kind = MessageKind::kControl}, deadline);
  return decode_offer(body, tcp.name());
}

// Replaces the connections of one kind by connections over UCX. Every rank sends all its offers before it
// receives, so no rank waits for a rank that is waiting.
void put_upon(const ConnectionSetup& setup, DataSecurity security,
              const std::shared_ptr<UcxProgress>& progress, Endpoints& endpoints) {
  std::vector<UcxOffer> mine(endpoints.size());
  for (size_t r = 0; r < endpoints.size(); ++r) {
    if (!endpoints[r]) continue;
    mine[r] = make_ucx_offer(*progress);
    const std::string body = encode_offer(mine[r]);
    endpoints[r]->send(
        {.tag = kOffer, .head = {}, .body = bytes_of_text(body), .kind = MessageKind::kControl},
        setup.deadline);
  }
  for (size_t r = 0; r < endpoints.size(); ++r) {
    if (!endpoints[r]) continue;
    const int rank = static_cast<int>(r);
    const UcxOffer theirs = receive_offer(*endpoints[r], setup.deadline);
    const ConnectionKeys keys =
        ucx_keys(endpoints[r]->shared_secret(), security, mine[r], theirs, setup.rank < rank);
    endpoints[r] = make_ucx_endpoint(progress, std::move(endpoints[r]), mine[r], theirs, keys);
    endpoints[r]->set_peer_rank(rank, setup.host_names[r]);
  }
}

// Exchanges a first message each way, so that a transport that does not work shows now.
void meet(const ConnectionSetup& setup, Endpoints& endpoints) {
  std::vector<Transfer> transfers;
  for (const auto& endpoint : endpoints) {
    if (!endpoint) continue;
    transfers.push_back({endpoint.get(),
                         Outgoing{.tag = kMet, .head = {}, .body = {}, .kind = MessageKind::kControl},
                         std::nullopt});
    transfers.push_back({endpoint.get(), std::nullopt,
                         Incoming{.tag = kMet, .head = {}, .body = {}, .kind = MessageKind::kControl}});
  }
  try {
    transfer_all(transfers, setup.deadline);
  } catch (const TimeoutError& error) {
    throw TimeoutError(fmt::format("{}; no transport of UCX reaches it: see UCX_TLS and UCX_NET_DEVICES, "
                                   "or use comm.engine=starling",
                                   error.what()),
                       error.peer());
  }
}

}  // namespace

std::shared_ptr<UcxLibrary> load_ucx(const std::string& net_devices) {
  constexpr const char* kKey = "comm.engine";
  const SharedObject object("starling_ucx", kKey,
                            "it is built where UCX's headers are installed (Debian: libucx-dev); or use "
                            "comm.engine=starling");
  const auto open = reinterpret_cast<OpenUcxFunction>(object.find(kOpenUcxName));
  UcxRequest request;
  request.net_devices = net_devices.c_str();
  std::array<char, 256> error{};
  std::shared_ptr<UcxLibrary> library(open(&request, error.data(), error.size()));
  if (!library) throw ConfigError(kKey, fmt::format("UCX cannot be initialized: {}", error.data()));
  return library;
}

Connector ucx_connector(std::shared_ptr<UcxLibrary> library, std::string bind_address, JobIdentity identity) {
  return [=](const ConnectionSetup& setup) {
    PeerConnections connections = tcp_connector(bind_address, identity)(setup);
    for (Endpoints* endpoints : {&connections.collectives, &connections.messages}) {
      const auto progress = open_worker(library);
      try {
        put_upon(setup, identity.security, progress, *endpoints);
        meet(setup, *endpoints);
      } catch (const CommError&) {
        for (const Endpoints* made : {&connections.collectives, &connections.messages})
          end_all(all_of(*made));
        throw;
      }
    }
    return connections;
  };
}

}  // namespace starling
