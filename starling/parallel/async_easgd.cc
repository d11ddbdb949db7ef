#include "starling/parallel/async_easgd.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
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

AsyncEasgd::AsyncEasgd(const ModelFactory& factory, UpdateRule rule, const AsyncEasgdOptions& options,
                       Store& store, const ServerRendezvous& rendezvous, int worker, Group* workers,
                       const Clock& clock)
    : ServerWorker(
          factory, std::move(rule), options.replica,
          {.worker = worker, .workers = workers, .survives_losses = options.survives_losses, .clock = clock}),
      options_(options),
      alpha_(options.elastic / rendezvous.workers),
      lookahead_(lookahead_of(replica_.rule())),
      gap_(at::zeros_like(replica_.parameters())) {
  STARLING_CHECK(options.every >= 1 && options.elastic > 0 && options.elastic <= 1, "every {}, elastic {}",
                 options.every, options.elastic);
  STARLING_CHECK(options.replica.parts.group == nullptr, "worker {} holds a part of a model", worker);
  connect_to_center(store, rendezvous);
  load(options.loads, {}, 0);
  sent_before_ = with_client([](auto& client) { return client.bytes_sent(); });
}

void AsyncEasgd::connect_to_center(Store& store, const ServerRendezvous& rendezvous) {
  ServerOptions center;
  center.workers = rendezvous.workers;
  make_center(center);
  announce_service(store, rendezvous,
                   {.type = fp64() ? DataType::kFp64 : DataType::kFp32, .optimizer = center.optimizer});
  ClientLayout layout;
  layout.offset = replica_.layout().offset;
  connect(store, rendezvous,
          make_partitioning(replica_.sizes(), fp64() ? 8 : 4, rendezvous.servers, kPartitionBytes), layout);
}

// Copies the center into a flat range.
void AsyncEasgd::pull_center(const at::Tensor& into) {
  const Nanoseconds start = clock_.now();
  last_pull_ = pull(into);
  pull_s_ += to_seconds(clock_.now() - start);
}

void AsyncEasgd::begin_step(const Step& step) {
  const at::NoGradGuard no_grad;
  replica_.hide();
  step_ = step;
  push_s_ = pull_s_ = 0;
  if (placed_) return;
  pull_center(replica_.parameters());
  replica_.parameters_changed();
  placed_ = true;
}

// Sets d = c − x_k and moves the center by −α d.
void AsyncEasgd::exchange() {
  pull_center(gap_);
  gap_.sub_(replica_.parameters());
  if (lookahead_ > 0) gap_.add_(replica_.state(0), lookahead_);
  const Nanoseconds start = clock_.now();
  push(gap_, {.lr = alpha_, .loss = own_loss_, .stop = step_.stop_requested});
  push_s_ += to_seconds(clock_.now() - start);
  ++exchanges_;
}

// Returns whether all workers meet after this number of exchanges.
bool AsyncEasgd::stops_here() {
  if (last_pull_.stop_at <= met_at_) return false;
  if (push_clock() < last_pull_.stop_at) return false;
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
  report_step(report, start, comm_before, with_client([](auto& client) { return client.bytes_sent(); }));
  return report;
}

void AsyncEasgd::consensus() {
  const at::NoGradGuard no_grad;
  replica_.hide();
  const at::Tensor center = at::zeros_like(replica_.parameters());
  snapshot(center);
  average_buffers_of_all();
  replica_.show(center);
}

std::map<std::string, at::Tensor*> AsyncEasgd::own_ranges() {
  std::map<std::string, at::Tensor*> own = {{"x", &replica_.parameters()}};
  const std::vector<std::string>& names = replica_.rule().state_names();
  for (size_t i = 0; i < names.size(); ++i) own[names[i]] = &replica_.state(static_cast<int>(i));
  return own;
}

// Adds what each worker has of its own to the state of the first worker. After a loss, the workers share no
// collective, so the state has only the first worker's. Collective over the workers.
void AsyncEasgd::put_own_ranges(bool first, StrategyState& state) {
  const bool all = workers_meet();
  for (const auto& [kind, flat] : own_ranges()) {
    std::vector<at::Tensor> of_workers;
    try {
      if (all) of_workers = gather_flat(*workers_, *flat);
    } catch (const CommError&) {  // a worker without saved parameters starts at the center
      if (!survives_losses_) throw;
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
  const at::Tensor center = first ? at::zeros_like(replica_.parameters()) : at::Tensor();
  snapshot(center);
  StrategyState state;
  state.step = step_.index;
  put_own_ranges(first, state);
  if (!first) return state;
  replica_.unflatten(center, "", state.parameters);
  state.buffers = copies_of_buffers();
  return state;
}

void AsyncEasgd::load_state(const StrategyState& state) {
  const at::NoGradGuard no_grad;
  replica_.hide();
  replica_.flatten(state.parameters, "", replica_.parameters());
  load(options_.loads, {}, 0);
  const std::string& name = replica_.replica().parameters.front().name;
  const bool has_own = state.optimizer.count(own_prefix("x", worker_) + name) > 0;
  for (const auto& [kind, flat] : own_ranges()) {
    if (has_own) {
      replica_.flatten(state.optimizer, own_prefix(kind, worker_), *flat);
    } else if (kind != "x") {
      flat->zero_();
    }
  }
  load_buffers(state);
  replica_.parameters_changed();
  placed_ = true;
  step_.index = state.step;
}

StrategyStats AsyncEasgd::strategy_stats() {
  const at::NoGradGuard no_grad;
  return with_client([&](auto& client) {
    StrategyStats out = server_stats(client.stats());
    out["exchanges"] = static_cast<double>(exchanges_);
    out["center_distance"] = std::sqrt(replica_.squares(gap_));
    out["bytes_per_step_formula"] =
        static_cast<double>(client.push_bytes() + client.pull_bytes()) / static_cast<double>(options_.every);
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
