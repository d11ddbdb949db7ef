#include "starling/parallel/parameter_server.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/comm/message_tags.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/server/server_stats.h"
#include "starling/server/service_settings.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/strategy_table.h"

namespace starling {
namespace {

// The rule of the local replica. It is never used, so it needs no states.
UpdateRule no_rule() {
  OptimizerSpec spec;
  spec.momentum = 0;
  return make_update_rule(spec);
}

// Returns the shape as a matrix with one row per output, for codecs that work on matrices.
TensorShape shape_of(const std::vector<int64_t>& sizes) {
  const auto count = static_cast<size_t>(c10::multiply_integers(sizes));
  const size_t rows = sizes.size() >= 2 ? static_cast<size_t>(sizes[0]) : 1;
  return {rows, count / std::max<size_t>(1, rows)};
}

// The state of each worker's push codec.
using PushStates = std::map<int, std::vector<float>>;

// Adds the states of all workers on rank 0. On all other ranks, `states` does not change. Collective.
void gather_states(Group& group, int worker, PushStates& states) {
  const int64_t own[2] = {worker, static_cast<int64_t>(states.at(worker).size())};
  std::vector<int64_t> all(2 * static_cast<size_t>(group.size()));
  all_gather(group, own, all.data(), 2, DataType::kInt64);
  if (group.rank() != 0)
    return send(group, states.at(worker).data(), states.at(worker).size() * sizeof(float), 0, kPushStateTag);
  for (int r = 1; r < group.size(); ++r) {
    std::vector<float>& values = states[static_cast<int>(all[2 * r])];
    values.resize(static_cast<size_t>(all[2 * r + 1]));
    recv(group, values.data(), values.size() * sizeof(float), r, kPushStateTag);
  }
}

template <typename T>
T* data_of(const at::Tensor& flat) {
  return flat.data_ptr<T>();
}

}  // namespace

void check_parameter_server_options(const ParameterServerOptions& o) {
  check_server_options(o.server);
  if (o.n_push < 1 || o.n_fetch < 1) {
    throw ConfigError(
        "exchange.push_every",
        fmt::format("push_every is {} and fetch_every is {}; both must be at least 1", o.n_push, o.n_fetch));
  }
  STARLING_CHECK(o.team == nullptr || (o.server.synchronous() && o.keys.empty()),
                 "a team needs synchronous servers and whole models");
  if (o.server.synchronous() && o.n_push != o.n_fetch) {
    throw ConfigError("exchange.push_every", "push_every and fetch_every must be equal with --staleness 0");
  }
}

ParameterServer::ParameterServer(const ModelFactory& factory, const ParameterServerOptions& options,
                                 Store& store, const ServerRendezvous& rendezvous, int worker, Group* workers,
                                 const Clock& clock)
    : ServerWorker(
          factory, no_rule(), options.replica,
          {.worker = worker, .workers = workers, .survives_losses = options.survives_losses, .clock = clock}),
      options_(options),
      team_(options.team) {
  check_parameter_server_options(options);
  take_rule();
  find_keys();
  std::vector<size_t> sizes;
  std::vector<int> homes;
  ClientLayout layout;
  layout.push_codec = options.server.push_codec;
  layout.pull_codec = options.server.pull_codec;
  // Between two pushes of several gradients, and between pulls of several steps, the replica trains by
  // itself.
  if (options.n_push == 1 && options.n_fetch == 1) layout.staleness = options.server.staleness.value_or(0);
  if (!options.server.lambda.empty()) layout.lambda = options.server.lambda[worker];
  for (const Key& key : keys_) {
    layout.shapes.push_back(shape_of(key.sizes));
    layout.offset.push_back(key.offset);
    layout.owned.push_back(key.owned);
    sizes.push_back(layout.shapes.back().size());
    homes.push_back(key.home);
  }
  const Partitioning partitioning =
      make_partitioning(sizes, fp64() ? 8 : 4, rendezvous.servers, kPartitionBytes, homes);
  announce(store, rendezvous, partitioning);
  connect(store, rendezvous, partitioning, layout);
  if (options.n_push > 1) added_up_ = at::zeros_like(replica_.gradients());
  load(options.loads, {}, 0);
  sent_before_ = sent();
}

// The servers make the updates of the program's optimizer.
void ParameterServer::take_rule() {
  const OwnOptimizer* own = replica_.optimizer();
  std::optional<TorchSettings> torch;
  if (own != nullptr) torch = own->on_servers(replica_.optimized());  // checks that it holds all parameters
  const std::optional<OptimizerSpec> rule = own != nullptr ? own->rule() : options_.server.optimizer;
  if (rule) {
    options_.server.optimizer = *rule;
    state_names_ = make_update_rule(*rule).state_names();
    return;
  }
  if (!torch) {
    throw ConfigError(
        "exchange.name",
        "servers make the updates of libtorch's SGD, Adam, AdamW, Adagrad and RMSprop. The rate of the first "
        "group must not be 0, because the other rates are multiples of it; use one of them, or --exchange "
        "all-reduce");
  }
  torch_ = *std::move(torch);
  state_names_ = torch_.state_names;
}

// Tells the servers what the workers know of this service.
void ParameterServer::announce(Store& store, const ServerRendezvous& rendezvous,
                               const Partitioning& partitioning) {
  ServiceSettings settings{.type = fp64() ? DataType::kFp64 : DataType::kFp32,
                           .optimizer = options_.server.optimizer,
                           .more = options_.more_services,
                           .torch = torch_};
  if (!torch_.name.empty()) {
    for (const std::vector<size_t>& partitions : partitioning.of_shard) {
      std::vector<int>& groups = settings.groups_of_shard.emplace_back();
      for (const size_t p : partitions)
        groups.push_back(torch_.group_of[partitioning.partitions[p].parameter]);
    }
  }
  announce_service(store, rendezvous, settings);
}

void ParameterServer::find_keys() {
  std::map<std::string, size_t> place;
  const std::vector<NamedTensor>& parameters = replica_.replica().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) place[parameters[i].name] = i;
  std::vector<ServerKey> all = options_.keys;
  if (all.empty() && slices() != nullptr) all = keys_of_slices();
  if (all.empty()) {
    for (const NamedTensor& p : parameters) all.push_back({p.name, p.tensor.sizes().vec(), -1});
  }
  for (const ServerKey& k : all) {
    const bool whole = k.slice_of.empty();
    const auto found = place.find(whole ? k.name : k.slice_of);
    const auto strides = c10::contiguous_strides(k.sizes);
    Key key{whole ? k.name : k.slice_of, k.sizes, {strides.begin(), strides.end()}};
    key.home = k.home;
    key.held = found != place.end() && (whole || k.home == slices()->rank());
    // The servers do not wait for a rank that owns nothing.
    key.owned = key.held && team_.leads() && counts_here(options_.replica.parts, key.parameter);
    key.copied = whole && slices() != nullptr;
    if (key.held) {
      key.offset = replica_.layout().offset[found->second];
      key.strides = parameters[found->second].tensor.strides().vec();
    }
    keys_.push_back(std::move(key));
  }
}

Group* ParameterServer::slices() const {
  Group* group = options_.replica.parts.slices;
  return group != nullptr && group->size() > 1 ? group : nullptr;
}

// Returns the keys of the whole model: the slices of all ranks, and the parameters that all ranks hold whole.
std::vector<ServerKey> ParameterServer::keys_of_slices() {
  const std::vector<std::string>& sliced = options_.replica.parts.sliced;
  std::vector<int64_t> own;
  for (const NamedTensor& p : replica_.replica().parameters)
    own.insert(own.end(), p.tensor.sizes().begin(), p.tensor.sizes().end());
  std::vector<int64_t> all(own.size() * static_cast<size_t>(slices()->size()));
  all_gather(*slices(), own.data(), all.data(), own.size(), DataType::kInt64);
  std::vector<ServerKey> keys;
  size_t at = 0;
  for (const NamedTensor& p : replica_.replica().parameters) {
    const bool whole = std::find(sliced.begin(), sliced.end(), p.name) == sliced.end();
    for (int rank = 0; rank < (whole ? 1 : slices()->size()); ++rank) {
      const auto sizes = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(rank) * own.size() + at);
      keys.push_back({whole ? p.name : fmt::format("{}#{}", p.name, rank),
                      {sizes, sizes + p.tensor.dim()},
                      rank,
                      whole ? "" : p.name});
    }
    at += static_cast<size_t>(p.tensor.dim());
  }
  return keys;
}

// Sets the parameters that all ranks over which layers are sharded hold whole to those of the first of these
// ranks, which pulls them.
void ParameterServer::share_copies() {
  if (slices() == nullptr) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> copies;
  for (const Key& key : keys_) {
    if (key.copied)
      copies.push_back(replica_.parameters().narrow(0, static_cast<int64_t>(key.offset),
                                                    c10::multiply_integers(key.sizes)));
  }
  if (copies.empty()) return;
  const at::Tensor all = at::cat(copies);
  broadcast(*slices(), all.data_ptr(), all.numel(), data_type_of(all.scalar_type()), 0);
  int64_t begin = 0;
  for (at::Tensor& copy : copies) {
    copy.copy_(all.narrow(0, begin, copy.numel()));
    begin += copy.numel();
  }
}

void ParameterServer::fetch() {
  const Nanoseconds start = clock_.now();
  if (team_.leads()) last_pull_ = pull(replica_.parameters());
  team_.share(replica_.parameters(), last_pull_);
  share_copies();
  replica_.parameters_changed();
  fetched_ = true;
  unfetched_ = 0;
  pull_s_ += to_seconds(clock_.now() - start);
}

void ParameterServer::begin_step(const Step& step) {
  step_ = step;
  push_s_ = pull_s_ = 0;
  const bool due = !options_.server.synchronous() && unfetched_ >= options_.n_fetch;
  if (!fetched_ || due) fetch();
}

double ParameterServer::forward_backward(const Batch& batch) {
  ServerWorker::forward_backward(batch);
  weight_ += replica_.loss_weight();
  return own_loss_;
}

void ParameterServer::take_gradients(const OwnStep& step) {
  step_.lr = step.lr;
  own_loss_ = 0;
  // A weight of 0 means that the gradient is that of another rank's sample.
  replica_.take_own_gradients(step.weight == 0 ? 0 : step.scale);
  weight_ += step.weight;
}

// Clips by the norm of this replica's gradient. The gradients of other replicas are not known here.
void ParameterServer::clip() {
  const double longest = options_.replica.clip_norm;
  if (longest <= 0) return;
  const double norm = std::sqrt(replica_.squares(replica_.gradients()));
  if (norm > longest) replica_.gradients().mul_(longest / (norm + 1e-6));
}

void ParameterServer::push_gradient() {
  const Nanoseconds start = clock_.now();
  at::Tensor& gradient = options_.n_push > 1 ? added_up_ : replica_.gradients();
  PushNotes notes{.lr = step_.lr, .loss = own_loss_, .stop = step_.stop_requested, .weight = weight_};
  team_.gather(gradient, notes);
  if (team_.leads()) push(gradient, notes);
  weight_ = 0;
  if (options_.n_push > 1) added_up_.zero_();
  unpushed_ = 0;
  push_s_ += to_seconds(clock_.now() - start);
}

// Asynchronous: returns whether all workers meet after this number of pushes.
bool ParameterServer::stops_here() {
  if (last_pull_.stop_at <= met_at_ || unpushed_ > 0) return false;
  // A worker that fetches seldom learns of the request up to `late` pushes later.
  const int64_t late =
      options_.n_fetch > 1 ? (options_.n_fetch + options_.n_push - 1) / options_.n_push + 1 : 0;
  if (push_clock() < last_pull_.stop_at + late) return false;
  met_at_ = last_pull_.stop_at;
  return true;
}

StepReport ParameterServer::update() {
  at::NoGradGuard no_grad;
  const Nanoseconds start = clock_.now();
  const double comm_before = push_s_ + pull_s_;
  if (replica_.optimizer() != nullptr && !options_.replica.own_gradients) {
    replica_.optimizer()->scale_lr(step_.lr_factor);
    step_.lr = replica_.optimizer()->lr();
  }
  clip();
  replica_.check_gradients(step_.index);
  if (options_.n_push > 1) added_up_.add_(replica_.gradients());
  if (options_.n_fetch > 1) {
    replica_.parameters().add_(replica_.gradients(), -step_.lr);
    replica_.parameters_changed();
  }
  ++steps_;
  ++unfetched_;
  bool complete = false;
  if (++unpushed_ >= options_.n_push) {
    push_gradient();
    if (options_.server.synchronous()) fetch();
    complete = options_.server.synchronous();
  }
  StepReport report;
  report.loss =
      complete || (!options_.server.synchronous() && steps_ > options_.n_fetch) ? last_pull_.loss : own_loss_;
  report.stop = last_pull_.stop || stops_here();
  report.redo = complete && last_pull_.redo;
  report_step(report, start, comm_before, sent());
  return report;
}

// Returns the bytes that this worker has sent to the servers and to its team.
uint64_t ParameterServer::sent() {
  return with_client([](auto& client) { return client.bytes_sent(); }) + team_.sent();
}

// Returns whether the state of this rank has the key. If layers are sharded, each rank saves what it holds.
bool ParameterServer::saves(const Key& key) const {
  return slices() == nullptr || key.held;
}

ParameterServer::Sections ParameterServer::whole_snapshot(int64_t& updates) {
  if (unpushed_ > 0) push_gradient();
  Sections sections(1 + state_names_.size());
  for (auto& section : sections) {
    for (const Key& key : keys_)
      section.push_back(
          saves(key) ? at::empty_strided(key.sizes, key.strides, at::TensorOptions(options_.replica.master))
                     : at::Tensor());
  }
  const PullReport report = with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    return client.snapshot_whole([&](int section, const Partition& partition, const T* values) {
      const at::Tensor& whole = sections[section][partition.parameter];
      if (whole.defined()) std::copy_n(values, partition.count, data_of<T>(whole) + partition.begin);
    });
  });
  updates = report.updates;
  return sections;
}

void ParameterServer::consensus() {
  at::NoGradGuard no_grad;
  if (unpushed_ > 0) push_gradient();
  snapshot(replica_.parameters());
  team_.share(replica_.parameters(), last_pull_);
  share_copies();
  replica_.parameters_changed();
  // The exact weights are only for evaluation. The next step pulls the weights that it would have trained on
  // otherwise.
  if (options_.server.pull_codec.kind != CodecKind::kNone) fetched_ = false;
  average_buffers_of_all();
}

StrategyState ParameterServer::state() {
  at::NoGradGuard no_grad;
  StrategyState state;
  state.step = step_.index;
  const bool first = slices() != nullptr ? options_.loads : is_first();
  if (first || options_.loads) state.buffers = copies_of_buffers();
  if (!first) {
    if (unpushed_ > 0) push_gradient();
    snapshot({});
    put_push_states(state);
    return state;
  }
  int64_t updates = 0;
  const Sections sections = whole_snapshot(updates);
  for (size_t k = 0; k < keys_.size(); ++k) {
    if (!saves(keys_[k])) continue;
    state.parameters[keys_[k].parameter] = sections[0][k].contiguous();
    for (size_t i = 0; i < state_names_.size(); ++i)
      state.optimizer[state_names_[i] + "/" + keys_[k].parameter] = sections[i + 1][k].contiguous();
  }
  if (!keys_.empty())
    state.optimizer["updates/" + keys_.front().parameter] =
        at::scalar_tensor(static_cast<double>(updates), at::kDouble);
  put_push_states(state);
  return state;
}

std::string ParameterServer::push_state_name(int worker) {
  return fmt::format("push_codec@{}/{}", worker, replica_.replica().parameters.front().name);
}

// Adds the states of the push codecs to `state`. Collective over the workers.
void ParameterServer::put_push_states(StrategyState& state) {
  if (!keeps_state(options_.server.push_codec)) return;
  PushStates states;
  states[worker_] = with_client([](auto& client) { return client.push_state(); });
  if (workers_meet()) {
    try {
      gather_states(*workers_, worker_, states);
    } catch (const CommError&) {  // a worker without a saved state starts without one
      if (!survives_losses_) throw;
    }
  }
  for (const auto& [worker, values] : states)
    state.optimizer[push_state_name(worker)] = at::tensor(values, at::kFloat);
}

void ParameterServer::take_push_state(const StrategyState& state) {
  const auto found = state.optimizer.find(push_state_name(worker_));
  // Without a fitting state (another codec, or only weights), the codec starts anew.
  if (found == state.optimizer.end()) return;
  const at::Tensor values = found->second.to(at::kFloat).contiguous();
  with_client([&](auto& client) {
    client.load_push_state({values.data_ptr<float>(), static_cast<size_t>(values.numel())});
  });
}

void ParameterServer::load_state(const StrategyState& state) {
  at::NoGradGuard no_grad;
  replica_.flatten(state.parameters, "", replica_.parameters());
  replica_.parameters_changed();
  int64_t updates = 0;
  std::vector<at::Tensor> states;
  // If there are only weights, the optimizer starts anew.
  if (!state.optimizer.empty()) {
    for (const std::string& name : state_names_) {
      states.push_back(at::zeros_like(replica_.parameters()));
      replica_.flatten(state.optimizer, name + "/", states.back());
    }
    const std::string name = "updates/" + keys_.front().parameter;
    updates = static_cast<int64_t>(
        fitting(state.optimizer, name, at::scalar_tensor(0.0, at::kDouble)).item<double>());
  }
  load_buffers(state);
  fetched_ = false;
  load(options_.loads, states, updates);
  take_push_state(state);
  step_.index = state.step;
}

StrategyStats ParameterServer::strategy_stats() {
  return with_client([&](auto& client) {
    std::map<std::string, double> out = server_stats(client.stats());
    out["cached_reads"] = static_cast<double>(client.cached_reads());
    out["bytes_per_step_formula"] =
        static_cast<double>(client.push_bytes()) / static_cast<double>(options_.n_push) +
        static_cast<double>(client.pull_bytes()) / static_cast<double>(options_.n_fetch);
    out["bytes_exchanged"] = static_cast<double>(client.bytes_sent() + client.bytes_received());
    const double plain = static_cast<double>(client.owned_bytes());
    const auto tell = [&](const std::string& what, const MessageCount& count) {
      out[what + "_message_bytes"] = count.mean();
      out[what + "_compression"] = count.bytes > 0 ? plain / count.mean() : 0;
    };
    tell("push", client.pushed());
    tell("pull", client.pulled());
    if (options_.server.push_codec.error_feedback) out["residual_norm"] = client.residual_norm();
    return out;
  });
}

std::unique_ptr<Strategy> make_parameter_server(const ExchangeParts& parts) {
  const ServerAccess& servers = parts.servers;
  if (servers.store == nullptr) {
    throw ConfigError("exchange.name",
                      "the parameter server needs server processes; start the run with -n, torchrun or srun");
  }
  ParameterServerOptions options;
  options.server = server_options(parts.spec);
  options.replica = parts.replica;
  const ExchangeTraits& traits = exchange_traits(parts.spec);
  if (traits.reads("push_every")) options.n_push = parts.spec.exchange.push_every;
  if (traits.reads("fetch_every")) options.n_fetch = parts.spec.exchange.fetch_every;
  options.keys = parts.keys;
  options.team = servers.team;
  options.loads = servers.loads;
  options.survives_losses = goes_on_after_loss(parts.spec);
  options.more_services = parts.replica.own_gradients;
  return std::make_unique<ParameterServer>(parts.factory, options, *servers.store, servers.rendezvous,
                                           servers.worker, &parts.group, parts.clock);
}

}  // namespace starling
