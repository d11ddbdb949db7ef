#include "starling/server/row_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/server/row_serve.h"
#include "starling/server/row_shard.h"

namespace starling {
namespace {

// Returns the rendezvous of the host. Checks first what other ranks would see only after the announcement.
ServerRendezvous embedded(ServerRendezvous rendezvous, int rank, const RowTableOptions& options) {
  check_row_options(options, rendezvous.workers);
  if (rank < 0 || rank >= rendezvous.workers)
    throw ConfigError("rows", fmt::format("a host on rank {}; the job has the workers 0 … {}", rank,
                                          rendezvous.workers - 1));
  rendezvous.name = "rows/" + rendezvous.name;
  rendezvous.embedded = true;
  rendezvous.servers = rendezvous.workers;
  // A rank announces its shard when it gets here, which may be after it has read its data.
  rendezvous.server_timeout = std::max(rendezvous.server_timeout, rendezvous.group.timeout);
  return rendezvous;
}

std::vector<int> workers_besides(int rank, int workers) {
  std::vector<int> out;
  for (int w = 0; w < workers; ++w) {
    if (w != rank) out.push_back(w);
  }
  return out;
}

}  // namespace

template <typename T>
struct BasicRowHost<T>::State {
  State(Store& store, const ServerRendezvous& job, int rank, const RowTableOptions& options)
      : rendezvous(embedded(job, rank, options)),
        shard(options),
        server(store, rendezvous, rank, shard, workers_besides(rank, rendezvous.workers)),
        client(store, rendezvous, rank, options, &shard) {}

  const ServerRendezvous rendezvous;
  RowShard<T> shard;
  RowServer<T> server;
  BasicRowClient<T> client;
};

template <typename T>
BasicRowHost<T>::BasicRowHost(Store& store, const ServerRendezvous& rendezvous, int rank,
                              const RowTableOptions& options)
    : state_(std::make_unique<State>(store, rendezvous, rank, options)) {}

template <typename T>
BasicRowHost<T>::~BasicRowHost() = default;

template <typename T>
BasicRowClient<T>& BasicRowHost<T>::rows() {
  return state_->client;
}

template <typename T>
RowServeReport BasicRowHost<T>::finish() {
  state_->client.goodbye();
  RowServeReport report = state_->server.finish();
  if (report.lost.empty()) return report;
  throw CommError(fmt::format("worker {} did not end its use of the rows in order: {}",
                              report.lost.front().worker, report.lost.front().reason),
                  report.lost.front().worker);
}

template class BasicRowHost<int32_t>;
template class BasicRowHost<int64_t>;
template class BasicRowHost<float>;
template class BasicRowHost<double>;

}  // namespace starling
