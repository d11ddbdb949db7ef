#include "starling/parallel/server_worker.h"

#include <ATen/ATen.h>

#include <exception>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

template <typename T>
T* data_of(const at::Tensor& flat) {
  return flat.defined() ? flat.data_ptr<T>() : nullptr;
}

template <typename Client>
using Value = typename std::decay_t<Client>::Value;

}  // namespace

ServerWorker::ServerWorker(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                           const ServerWorkerParts& parts)
    : worker_(parts.worker),
      workers_(parts.workers),
      survives_losses_(parts.survives_losses),
      clock_(parts.clock),
      replica_(factory, std::move(rule), options),
      fp64_master_(options.master == at::kDouble) {}

ServerWorker::~ServerWorker() {
  if (left_ || (!fp32_ && !fp64_) || std::uncaught_exceptions() > 0) return;
  try {
    leave();
  } catch (const CommError&) {
    // The servers have ended and need no message.
  }
}

void ServerWorker::leave() {
  left_ = true;
  with_client([](auto& client) { client.goodbye(); });
}

void ServerWorker::connect(Store& store, const ServerRendezvous& rendezvous, const Partitioning& partitioning,
                           const ClientLayout& layout) {
  if (fp64_master_) {
    fp64_ = std::make_unique<ServerClient<double>>(store, rendezvous, worker_, partitioning, layout);
  } else {
    fp32_ = std::make_unique<ServerClient<float>>(store, rendezvous, worker_, partitioning, layout);
  }
}

void ServerWorker::load(bool loads, const std::vector<at::Tensor>& states, int64_t updates) {
  with_client([&](auto& client) {
    using T = Value<decltype(client)>;
    if (!loads) return client.expect_load();
    std::vector<const T*> memory;
    memory.reserve(states.size());
    for (const at::Tensor& s : states) memory.push_back(data_of<T>(s));
    client.load(data_of<T>(replica_.parameters()), memory, updates);
  });
}

PullReport ServerWorker::pull(const at::Tensor& into) {
  return with_client([&](auto& client) { return client.pull(data_of<Value<decltype(client)>>(into)); });
}

void ServerWorker::push(const at::Tensor& gradient, const PushNotes& notes) {
  with_client([&](auto& client) { client.push(data_of<Value<decltype(client)>>(gradient), notes); });
}

void ServerWorker::snapshot(const at::Tensor& into) {
  with_client([&](auto& client) { client.snapshot(data_of<Value<decltype(client)>>(into)); });
}

int64_t ServerWorker::push_clock() {
  return with_client([](auto& client) { return client.push_clock(); });
}

double ServerWorker::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  own_loss_ = replica_.forward_backward(batch, step_.index);
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

bool ServerWorker::is_first() {
  const std::set<int> lost = lost_ranks();
  for (int w = 0; w < worker_; ++w) {
    if (lost.count(w) == 0) return false;
  }
  return true;
}

bool ServerWorker::workers_meet() {
  return workers_ != nullptr && (!survives_losses_ || lost_ranks().empty());
}

void ServerWorker::average_buffers_of_all() {
  if (!workers_meet()) return;
  try {
    average_buffers(*workers_, replica_.replica());
  } catch (const CommError&) {
    if (!survives_losses_) throw;
    // All other workers get the error now or in their next call.
  }
}

std::map<std::string, at::Tensor> ServerWorker::copies_of_buffers() {
  std::map<std::string, at::Tensor> copies;
  for (const NamedTensor& b : replica_.replica().buffers)
    copies[b.name] = b.tensor.detach().clone(at::MemoryFormat::Contiguous);
  return copies;
}

void ServerWorker::load_buffers(const StrategyState& state) {
  for (NamedTensor& b : replica_.replica().buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
}

void ServerWorker::report_step(StepReport& report, Nanoseconds begin, double comm_before, uint64_t sent) {
  report.lost = static_cast<int>(lost_ranks().size());
  report.expose(ExchangePhase::kGradients, push_s_);
  report.expose(ExchangePhase::kParameters, pull_s_);
  report.compute_s =
      forward_backward_s_ + to_seconds(clock_.now() - begin) - (report.exposed_comm_s - comm_before);
  report.bytes_sent = sent - sent_before_;
  sent_before_ = sent;
}

StrategyState ServerWorker::own_state() {
  const at::NoGradGuard no_grad;
  replica_.hide();
  StrategyState state;
  state.step = step_.index;
  replica_.unflatten(replica_.parameters(), "", state.parameters);
  state.buffers = copies_of_buffers();
  return state;
}

std::vector<uint64_t> ServerWorker::bytes_from_servers() {
  return with_client([](auto& client) { return client.received_by_shard(); });
}

std::set<int> ServerWorker::lost_ranks() {
  return with_client([](auto& client) { return client.lost(); });
}

std::vector<ServerTableEvent> ServerWorker::events(int shard) {
  return with_client([&](auto& client) { return client.events(shard); });
}

}  // namespace starling
