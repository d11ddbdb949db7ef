#include "starling/parallel/async_easgd.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/server/server_stats.h"
#include "starling/server/service_settings.h"
#include "starling/spec/on_failure.h"

namespace starling {
namespace {

double lookahead_of(const UpdateRule& rule) {
  const OptimizerSpec& spec = rule.spec();
  return spec.name == "sgd" && spec.nesterov ? spec.momentum : 0;
}

// The name of a worker's own tensors in a checkpoint, before the name of the parameter.
std::string own_prefix(const std::string& kind, int worker) {
  return fmt::format("{}@{}/", kind, worker);
}

}  // namespace

template <typename F>
auto AsyncEasgd::with_client(const F& call) {
  return fp64_ ? call(*fp64_) : call(*fp32_);
}

AsyncEasgd::AsyncEasgd(const ModelFactory& factory, UpdateRule rule, const AsyncEasgdOptions& options,
                       Store& store, const ServerRendezvous& rendezvous, int worker, Group* workers,
                       const Clock& clock)
    : options_(options),
      worker_(worker),
      workers_(workers),
      clock_(clock),
      replica_(factory, std::move(rule), options.replica),
      alpha_(options.elastic / rendezvous.workers),
      lookahead_(lookahead_of(replica_.rule())),
      gap_(at::zeros_like(replica_.parameters())) {
  STARLING_CHECK(options.every >= 1 && options.elastic > 0 && options.elastic <= 1, "every {}, elastic {}",
                 options.every, options.elastic);
  STARLING_CHECK(options.replica.parts.group == nullptr, "worker {} holds a part of a model", worker);
  connect(store, rendezvous);
  load();
  sent_before_ = with_client([](auto& client) { return client.bytes_sent(); });
}

AsyncEasgd::~AsyncEasgd() {
  if (left_ || std::uncaught_exceptions() > 0) return;
  try {
    leave();
  } catch (const CommError&) {
    // The servers have ended and need no message.
  }
}

void AsyncEasgd::leave() {
  left_ = true;
  with_client([](auto& client) { client.goodbye(); });
}

void AsyncEasgd::connect(Store& store, const ServerRendezvous& rendezvous) {
  const bool fp64 = options_.replica.master == at::kDouble;
  ServerOptions center;
  center.workers = rendezvous.workers;
  make_center(center);
  announce_service(store, rendezvous,
                   {.type = fp64 ? DataType::kFp64 : DataType::kFp32, .optimizer = center.optimizer});
  ClientLayout layout;
  layout.offset = replica_.layout().offset;
  const Partitioning partitioning =
      make_partitioning(replica_.sizes(), fp64 ? 8 : 4, rendezvous.servers, kPartitionBytes);
  if (fp64) {
    fp64_ = std::make_unique<ServerClient<double>>(store, rendezvous, worker_, partitioning, layout);
  } else {
    fp32_ = std::make_unique<ServerClient<float>>(store, rendezvous, worker_, partitioning, layout);
  }
}

// Makes the parameters of the worker that loads the center.
void AsyncEasgd::load() {
  with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    if (!options_.loads) return client.expect_load();
    client.load(replica_.parameters().data_ptr<T>(), {}, 0);
  });
}

// Copies the center into a flat range.
void AsyncEasgd::pull(at::Tensor& into) {
  const Nanoseconds start = clock_.now();
  last_pull_ = with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    return client.pull(into.data_ptr<T>());
  });
  pull_s_ += to_seconds(clock_.now() - start);
}

void AsyncEasgd::push() {
  const Nanoseconds start = clock_.now();
  with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    client.push(gap_.data_ptr<T>(), {.lr = alpha_, .loss = own_loss_, .stop = step_.stop_requested});
  });
  push_s_ += to_seconds(clock_.now() - start);
}

void AsyncEasgd::begin_step(const Step& step) {
  const at::NoGradGuard no_grad;
  replica_.hide();
  step_ = step;
  push_s_ = pull_s_ = 0;
  if (placed_) return;
  pull(replica_.parameters());
  replica_.parameters_changed();
  placed_ = true;
}

double AsyncEasgd::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  own_loss_ = replica_.forward_backward(batch, step_.index);
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

// Sets d = c − x_k and moves the center by −α d.
void AsyncEasgd::exchange() {
  pull(gap_);
  gap_.sub_(replica_.parameters());
  if (lookahead_ > 0) gap_.add_(replica_.state(0), lookahead_);
  push();
  ++exchanges_;
}

// Returns whether all workers meet after this number of exchanges.
bool AsyncEasgd::stops_here() {
  if (last_pull_.stop_at <= met_at_) return false;
  if (with_client([](auto& client) { return client.push_clock(); }) < last_pull_.stop_at) return false;
  met_at_ = last_pull_.stop_at;
  return true;
}

StepReport AsyncEasgd::update() {
  const at::NoGradGuard no_grad;
  const Nanoseconds start = clock_.now();
  const double comm_before = push_s_ + pull_s_;
  const bool due = (step_.index - 1) % options_.every == 0;
  if (due) exchange();
  replica_.update(step_);
  if (due) {
    replica_.parameters().add_(gap_, alpha_);
    replica_.parameters_changed();
  }
  StepReport report;
  report.loss = own_loss_;
  report.stop = due && stops_here();
  report.lost = static_cast<int>(lost_ranks().size());
  report.expose(ExchangePhase::kGradients, push_s_);
  report.expose(ExchangePhase::kParameters, pull_s_);
  report.compute_s =
      forward_backward_s_ + to_seconds(clock_.now() - start) - (report.exposed_comm_s - comm_before);
  const uint64_t sent = with_client([](auto& client) { return client.bytes_sent(); });
  report.bytes_sent = sent - sent_before_;
  sent_before_ = sent;
  return report;
}

void AsyncEasgd::consensus() {
  const at::NoGradGuard no_grad;
  replica_.hide();
  const at::Tensor center = at::zeros_like(replica_.parameters());
  with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    client.snapshot(center.data_ptr<T>());
  });
  if (workers_ != nullptr) average_buffers_of_all();
  replica_.show(center);
}

// Running statistics are estimates. If a worker is lost or dies during the mean, each worker keeps its own.
void AsyncEasgd::average_buffers_of_all() {
  if (!options_.survives_losses) return average_buffers(*workers_, replica_.replica());
  if (!lost_ranks().empty()) return;
  try {
    average_buffers(*workers_, replica_.replica());
  } catch (const CommError&) {
    // All other workers get the error now or in their next call.
  }
}

std::map<std::string, at::Tensor*> AsyncEasgd::own_ranges() {
  std::map<std::string, at::Tensor*> own = {{"x", &replica_.parameters()}};
  const std::vector<std::string>& names = replica_.rule().state_names();
  for (size_t i = 0; i < names.size(); ++i) own[names[i]] = &replica_.state(static_cast<int>(i));
  return own;
}

bool AsyncEasgd::is_first() {
  const std::set<int> lost = lost_ranks();
  for (int w = 0; w < worker_; ++w) {
    if (lost.count(w) == 0) return false;
  }
  return true;
}

// Adds what each worker has of its own to the state of the first worker. After a loss, the workers share no
// collective, so the state has only the first worker's. Collective over the workers.
void AsyncEasgd::put_own_ranges(bool first, StrategyState& state) {
  const bool all = workers_ != nullptr && (!options_.survives_losses || lost_ranks().empty());
  for (const auto& [kind, flat] : own_ranges()) {
    std::vector<at::Tensor> of_workers;
    try {
      if (all) of_workers = gather_flat(*workers_, *flat);
    } catch (const CommError&) {  // a worker without saved parameters starts at the center
      if (!options_.survives_losses) throw;
    }
    if (!first) continue;
    for (size_t w = 0; w < of_workers.size(); ++w)
      replica_.unflatten(of_workers[w], own_prefix(kind, static_cast<int>(w)), state.optimizer);
    if (of_workers.empty()) replica_.unflatten(*flat, own_prefix(kind, worker_), state.optimizer);
  }
}

StrategyState AsyncEasgd::state() {
  const at::NoGradGuard no_grad;
  replica_.hide();
  const bool first = is_first();
  const at::Tensor center = at::zeros_like(replica_.parameters());
  with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    client.snapshot(first ? center.data_ptr<T>() : nullptr);
  });
  StrategyState state;
  state.step = step_.index;
  put_own_ranges(first, state);
  if (!first) return state;
  replica_.unflatten(center, "", state.parameters);
  for (const NamedTensor& b : replica_.replica().buffers)
    state.buffers[b.name] = b.tensor.detach().clone(at::MemoryFormat::Contiguous);
  return state;
}

void AsyncEasgd::load_state(const StrategyState& state) {
  const at::NoGradGuard no_grad;
  replica_.hide();
  replica_.flatten(state.parameters, "", replica_.parameters());
  load();
  const std::string& name = replica_.replica().parameters.front().name;
  const bool has_own = state.optimizer.count(own_prefix("x", worker_) + name) > 0;
  for (const auto& [kind, flat] : own_ranges()) {
    if (has_own) {
      replica_.flatten(state.optimizer, own_prefix(kind, worker_), *flat);
    } else if (kind != "x") {
      flat->zero_();
    }
  }
  for (NamedTensor& b : replica_.replica().buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  replica_.parameters_changed();
  placed_ = true;
  step_.index = state.step;
}

StrategyState AsyncEasgd::own_state() {
  const at::NoGradGuard no_grad;
  replica_.hide();
  StrategyState state;
  state.step = step_.index;
  replica_.unflatten(replica_.parameters(), "", state.parameters);
  for (const NamedTensor& b : evaluated().buffers)
    state.buffers[b.name] = b.tensor.detach().clone(at::MemoryFormat::Contiguous);
  return state;
}

std::set<int> AsyncEasgd::lost_ranks() {
  return fp64_ ? fp64_->lost() : fp32_->lost();
}

std::vector<uint64_t> AsyncEasgd::bytes_from_servers() {
  return with_client([](auto& client) { return client.received_by_shard(); });
}

std::vector<ServerTableEvent> AsyncEasgd::events(int shard) {
  return with_client([&](auto& client) { return client.events(shard); });
}

StrategyStats AsyncEasgd::strategy_stats() {
  const at::NoGradGuard no_grad;
  return with_client([&](auto& client) {
    StrategyStats out = server_stats(client.stats());
    out["exchanges"] = static_cast<double>(exchanges_);
    out["center_distance"] = std::sqrt(replica_.squares(gap_));
    out["bytes_per_step_formula"] = static_cast<double>(client.step_bytes());
    out["bytes_exchanged"] = static_cast<double>(client.bytes_sent() + client.bytes_received());
    return out;
  });
}

std::unique_ptr<Strategy> make_async_easgd(const ExchangeParts& parts) {
  const ServerAccess& servers = parts.servers;
  if (servers.store == nullptr) {
    throw ConfigError("exchange.name",
                      "async-easgd needs server processes; start the run with -n, torchrun or srun");
  }
  AsyncEasgdOptions options;
  options.replica = parts.replica;
  options.every = parts.spec.exchange.every;
  options.elastic = parts.spec.exchange.elastic;
  options.loads = servers.loads;
  options.survives_losses = goes_on_after_loss(parts.spec);
  return std::make_unique<AsyncEasgd>(parts.factory, make_update_rule(parts.spec.optimizer), options,
                                      *servers.store, servers.rendezvous, servers.worker, &parts.group,
                                      parts.clock);
}

}  // namespace starling
