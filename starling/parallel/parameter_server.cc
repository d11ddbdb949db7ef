#include "starling/parallel/parameter_server.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "starling/base/error.h"
#include "starling/server/fingerprint.h"

namespace starling {
namespace {

// The replica's own rule is never used: it needs no states.
UpdateRule no_rule() {
  OptimizerSpec spec;
  spec.momentum = 0;
  return make_update_rule(spec);
}

// As a matrix with a row for each output, for codecs that see it.
TensorShape shape_of(const std::vector<int64_t>& sizes) {
  const auto count = static_cast<size_t>(c10::multiply_integers(sizes));
  const size_t rows = sizes.size() >= 2 ? static_cast<size_t>(sizes[0]) : 1;
  return {rows, count / std::max<size_t>(1, rows)};
}

// Whether the codec of pushes carries something from one to the next.
bool has_state(const CodecSpec& codec) {
  return codec.error_feedback || (codec.kind == CodecKind::kLowRank && codec.form == LowRankForm::kPowerSgd);
}

constexpr uint32_t kPushStateTag = 0x50530001u;

// By worker.
using PushStates = std::map<int, std::vector<float>>;

// Every worker's on rank 0; elsewhere what was there. Collective.
void gather_states(Group& group, int worker, PushStates& states) {
  const int64_t own[2] = {worker, static_cast<int64_t>(states.at(worker).size())};
  std::vector<int64_t> all(2 * static_cast<size_t>(group.size()));
  group.all_gather(own, all.data(), 2, DataType::kInt64);
  if (group.rank() != 0)
    return group.send(states.at(worker).data(), states.at(worker).size() * sizeof(float), 0, kPushStateTag);
  for (int r = 1; r < group.size(); ++r) {
    std::vector<float>& values = states[static_cast<int>(all[2 * r])];
    values.resize(static_cast<size_t>(all[2 * r + 1]));
    group.recv(values.data(), values.size() * sizeof(float), r, kPushStateTag);
  }
}

template <typename T>
T* data_of(const at::Tensor& flat) {
  return flat.data_ptr<T>();
}

}  // namespace

template <typename F>
auto ParameterServer::with_client(const F& call) {
  return fp64_ ? call(*fp64_) : call(*fp32_);
}

void check_parameter_server_options(const ParameterServerOptions& o) {
  check_server_options(o.server);
  if (o.n_push < 1 || o.n_fetch < 1) {
    throw ConfigError("exchange.n_push", fmt::format("n_push is {} and n_fetch {}; both count steps, from 1",
                                                     o.n_push, o.n_fetch));
  }
  if (o.server.synchronous() && o.n_push != o.n_fetch) {
    throw ConfigError("exchange.n_push",
                      "at --staleness 0 a worker pulls when it has pushed: n_push and n_fetch must be equal");
  }
}

ParameterServer::ParameterServer(const ModelFactory& factory, const ParameterServerOptions& options,
                                 Store& store, const Meeting& meeting, int worker, Group* workers,
                                 const Clock& clock)
    : options_(options),
      worker_(worker),
      workers_(workers),
      clock_(clock),
      state_names_(make_update_rule(options.server.optimizer).state_names()),
      replica_(factory, no_rule(), options.replica) {
  check_parameter_server_options(options);
  find_keys();
  const bool fp64 = options.replica.master == at::kDouble;
  std::vector<size_t> sizes;
  std::vector<int> homes;
  ClientLayout layout;
  layout.push_codec = options.server.push_codec;
  layout.pull_codec = options.server.pull_codec;
  for (const Key& key : keys_) {
    layout.shapes.push_back(shape_of(key.sizes));
    layout.offset.push_back(key.offset);
    layout.owned.push_back(key.owned);
    sizes.push_back(layout.shapes.back().size());
    homes.push_back(key.home);
  }
  const Partitioning partitioning =
      make_partitioning(sizes, fp64 ? 8 : 4, meeting.servers, kPartitionBytes, homes);
  if (fp64) {
    fp64_ = std::make_unique<ServerClient<double>>(store, meeting, worker, partitioning, layout);
  } else {
    fp32_ = std::make_unique<ServerClient<float>>(store, meeting, worker, partitioning, layout);
  }
  if (options.n_push > 1) added_up_ = at::zeros_like(replica_.gradients());
  load(0, false);
  sent_before_ = with_client([](auto& client) { return client.bytes_sent(); });
}

ParameterServer::~ParameterServer() {
  if (left_ || std::uncaught_exceptions() > 0) return;
  try {
    leave();
  } catch (const CommError&) {
    // The servers are gone: there is nobody to tell.
  }
}

void ParameterServer::leave() {
  left_ = true;
  with_client([](auto& client) { client.goodbye(); });
}

void ParameterServer::find_keys() {
  std::map<std::string, size_t> place;
  const std::vector<NamedTensor>& parameters = replica_.replica().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) place[parameters[i].name] = i;
  std::vector<ServerKey> all = options_.keys;
  if (all.empty()) {
    for (const NamedTensor& p : parameters) all.push_back({p.name, p.tensor.sizes().vec(), -1});
  }
  for (const ServerKey& k : all) {
    const auto found = place.find(k.name);
    const auto strides = c10::contiguous_strides(k.sizes);
    Key key{k.name, k.sizes, {strides.begin(), strides.end()}, 0, false, k.home};
    if (found != place.end() && counts_here(options_.replica.parts, k.name)) {
      key.owned = true;
      key.offset = replica_.layout().offset[found->second];
      key.strides = parameters[found->second].tensor.strides().vec();
    }
    keys_.push_back(std::move(key));
  }
}

void ParameterServer::load(int64_t updates, bool with_states) {
  fetched_ = false;
  with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    if (!options_.loads) return client.expect_load();
    std::vector<const T*> states;
    for (const at::Tensor& s : loaded_states_) states.push_back(data_of<T>(s));
    client.load(data_of<T>(replica_.parameters()), with_states ? states : std::vector<const T*>(), updates);
  });
}

void ParameterServer::fetch() {
  const Nanoseconds start = clock_.now();
  last_pull_ = with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    return client.pull(data_of<T>(replica_.parameters()));
  });
  replica_.parameters_changed();
  fetched_ = true;
  unfetched_ = 0;
  comm_s_ += to_seconds(clock_.now() - start);
}

void ParameterServer::begin_step(const Step& step) {
  step_ = step;
  comm_s_ = 0;
  const bool due = !options_.server.synchronous() && unfetched_ >= options_.n_fetch;
  if (!fetched_ || due) fetch();
}

double ParameterServer::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  samples_ += batch.size();
  own_loss_ = replica_.forward_backward(batch, step_.index);
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

// Of this replica's gradient: the others' are not known here.
void ParameterServer::clip() {
  const double longest = options_.replica.clip_norm;
  if (longest <= 0) return;
  const double norm = std::sqrt(replica_.squares(replica_.gradients()));
  if (norm > longest) replica_.gradients().mul_(longest / (norm + 1e-6));
}

void ParameterServer::push() {
  const Nanoseconds start = clock_.now();
  at::Tensor& gradient = options_.n_push > 1 ? added_up_ : replica_.gradients();
  with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    client.push(data_of<T>(gradient), {.lr = step_.lr,
                                       .loss = own_loss_,
                                       .stop = step_.stop_requested,
                                       .samples = std::max<int64_t>(1, samples_)});
  });
  samples_ = 0;
  if (options_.n_push > 1) added_up_.zero_();
  unpushed_ = 0;
  comm_s_ += to_seconds(clock_.now() - start);
}

StepReport ParameterServer::update() {
  at::NoGradGuard no_grad;
  const Nanoseconds start = clock_.now();
  const double comm_before = comm_s_;
  clip();
  if (options_.n_push > 1) added_up_.add_(replica_.gradients());
  if (options_.n_fetch > 1) {
    replica_.parameters().add_(replica_.gradients(), -step_.lr);
    replica_.parameters_changed();
  }
  ++steps_;
  ++unfetched_;
  bool complete = false;
  if (++unpushed_ >= options_.n_push) {
    push();
    if (options_.server.synchronous()) fetch();
    complete = options_.server.synchronous();
  }
  StepReport report;
  report.loss =
      complete || (!options_.server.synchronous() && steps_ > options_.n_fetch) ? last_pull_.loss : own_loss_;
  report.stop = last_pull_.stop;
  report.lost = static_cast<int>(lost().size());
  report.redo = complete && last_pull_.redo;
  report.exposed_comm_s = comm_s_;
  report.compute_s = forward_backward_s_ + to_seconds(clock_.now() - start) - (comm_s_ - comm_before);
  const uint64_t sent = with_client([](auto& client) { return client.bytes_sent(); });
  report.bytes_sent = sent - sent_before_;
  sent_before_ = sent;
  return report;
}

ParameterServer::Sections ParameterServer::whole_snapshot(int64_t& updates) {
  if (unpushed_ > 0) push();
  Sections sections(1 + state_names_.size());
  for (auto& section : sections) {
    for (const Key& key : keys_)
      section.push_back(
          at::empty_strided(key.sizes, key.strides, at::TensorOptions(options_.replica.master)));
  }
  const PullReport report = with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    return client.snapshot_whole([&](int section, const Partition& partition, const T* values) {
      std::copy_n(values, partition.count,
                  data_of<T>(sections[section][partition.parameter]) + partition.begin);
    });
  });
  updates = report.updates;
  return sections;
}

void ParameterServer::consensus() {
  at::NoGradGuard no_grad;
  if (unpushed_ > 0) push();
  with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    client.snapshot(data_of<T>(replica_.parameters()));
  });
  replica_.parameters_changed();
  // The exact weights are for evaluation: the next step pulls what it would have trained on without it.
  if (options_.server.pull_codec.kind != CodecKind::kNone) fetched_ = false;
  if (workers_ != nullptr) average_buffers_of_all();
}

// Running statistics are estimates: where a worker is lost, or dies in the middle of it, each keeps its own.
void ParameterServer::average_buffers_of_all() {
  if (!options_.survives_losses) return average_buffers(*workers_, replica_.replica());
  if (!lost().empty()) return;
  try {
    average_buffers(*workers_, replica_.replica());
  } catch (const CommError&) {
    // The others see the same, now or at their next turn.
  }
}

const std::set<int>& ParameterServer::lost() {
  return fp64_ ? fp64_->lost() : fp32_->lost();
}

bool ParameterServer::is_first() {
  for (int w = 0; w < worker_; ++w) {
    if (lost().count(w) == 0) return false;
  }
  return true;
}

StrategyState ParameterServer::state() {
  at::NoGradGuard no_grad;
  StrategyState state;
  state.step = step_.index;
  const bool first = is_first();
  if (first || options_.loads) {
    for (const NamedTensor& b : replica_.replica().buffers)
      state.buffers[b.name] = b.tensor.detach().clone(at::MemoryFormat::Contiguous);
  }
  if (!first) {
    if (unpushed_ > 0) push();
    with_client([](auto& client) { client.snapshot(nullptr); });
    put_push_states(state);
    return state;
  }
  int64_t updates = 0;
  const Sections sections = whole_snapshot(updates);
  for (size_t k = 0; k < keys_.size(); ++k) {
    state.parameters[keys_[k].name] = sections[0][k].contiguous();
    for (size_t i = 0; i < state_names_.size(); ++i)
      state.optimizer[state_names_[i] + "/" + keys_[k].name] = sections[i + 1][k].contiguous();
  }
  if (!keys_.empty())
    state.optimizer["updates/" + keys_.front().name] =
        at::scalar_tensor(static_cast<double>(updates), at::kDouble);
  put_push_states(state);
  return state;
}

std::string ParameterServer::push_state_name(int worker) {
  return fmt::format("push_codec@{}/{}", worker, replica_.replica().parameters.front().name);
}

// Collective over the workers.
void ParameterServer::put_push_states(StrategyState& state) {
  if (!has_state(options_.server.push_codec)) return;
  PushStates states;
  states[worker_] = with_client([](auto& client) { return client.push_state(); });
  if (workers_ != nullptr && (!options_.survives_losses || lost().empty())) {
    try {
      gather_states(*workers_, worker_, states);
    } catch (const CommError&) {  // a worker without a saved state begins with none
      if (!options_.survives_losses) throw;
    }
  }
  for (const auto& [worker, values] : states)
    state.optimizer[push_state_name(worker)] = at::tensor(values, at::kFloat);
}

void ParameterServer::take_push_state(const StrategyState& state) {
  const auto found = state.optimizer.find(push_state_name(worker_));
  if (found == state.optimizer.end()) return;  // another codec's, or weights alone: it begins with nothing
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
  if (!state.optimizer.empty()) {  // else weights alone: the optimizer begins afresh
    for (const std::string& name : state_names_) {
      loaded_states_.push_back(at::zeros_like(replica_.parameters()));
      replica_.flatten(state.optimizer, name + "/", loaded_states_.back());
    }
    const std::string name = "updates/" + keys_.front().name;
    updates = static_cast<int64_t>(
        fitting(state.optimizer, name, at::scalar_tensor(0.0, at::kDouble)).item<double>());
  }
  for (NamedTensor& b : replica_.replica().buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  load(updates, !loaded_states_.empty());
  loaded_states_.clear();
  take_push_state(state);
  step_.index = state.step;
}

std::map<std::string, double> ParameterServer::fingerprint() {
  return with_client([&](auto& client) {
    std::map<std::string, double> out = server_fingerprint(client.stats());
    out["bytes_per_step_formula"] = static_cast<double>(client.step_bytes());
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

std::vector<TableEvent> ParameterServer::events(int shard) {
  return with_client([&](auto& client) { return client.events(shard); });
}

}  // namespace starling
