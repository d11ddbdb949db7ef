#include "starling/parallel/parameter_server.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
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

// As matrices with a row for each output, for codecs that see them.
std::vector<TensorShape> shapes_of(const Replica& replica) {
  std::vector<TensorShape> shapes;
  for (const NamedTensor& p : replica.parameters) {
    const size_t rows = p.tensor.dim() >= 2 ? static_cast<size_t>(p.tensor.size(0)) : 1;
    shapes.push_back({rows, static_cast<size_t>(p.tensor.numel()) / std::max<size_t>(1, rows)});
  }
  return shapes;
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
  const bool fp64 = options.replica.master == at::kDouble;
  const Partitioning partitioning = make_partitioning(replica_.sizes(), fp64 ? 8 : 4, meeting.servers);
  const ClientLayout layout{replica_.layout().offset, options.owned, options.server.push_codec,
                            options.server.pull_codec, shapes_of(replica_.replica())};
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

bool ParameterServer::owns_all() const {
  return std::all_of(options_.owned.begin(), options_.owned.end(), [](bool owned) { return owned; });
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
  own_loss_ = options_.compute ? options_.compute(replica_, batch, step_.index)
                               : replica_.forward_backward(batch, step_.index);
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

// Of this worker's gradient: the others' are not known here.
void ParameterServer::clip() {
  const double longest = options_.replica.clip_norm;
  if (longest <= 0) return;
  const double norm = replica_.gradients().norm().item<double>();
  if (norm > longest) replica_.gradients().mul_(longest / (norm + 1e-6));
}

void ParameterServer::push() {
  const Nanoseconds start = clock_.now();
  at::Tensor& gradient = options_.n_push > 1 ? added_up_ : replica_.gradients();
  with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    client.push(data_of<T>(gradient), {.lr = step_.lr, .loss = own_loss_, .stop = step_.stop_requested});
  });
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
  report.exposed_comm_s = comm_s_;
  report.compute_s = forward_backward_s_ + to_seconds(clock_.now() - start) - (comm_s_ - comm_before);
  const uint64_t sent = with_client([](auto& client) { return client.bytes_sent(); });
  report.bytes_sent = sent - sent_before_;
  sent_before_ = sent;
  return report;
}

// sections: parameters, then the optimizer's states, of everything. Null: this worker's parameters come into the replica.
void ParameterServer::snapshot(std::vector<at::Tensor>* sections, int64_t* updates) {
  if (unpushed_ > 0) push();
  const PullReport report = with_client([&](auto& client) {
    using T = typename std::decay_t<decltype(client)>::Value;
    if (sections == nullptr && owns_all()) return client.snapshot(data_of<T>(replica_.parameters()));
    return client.snapshot_whole([&](int section, const Partition& partition, const T* values) {
      if (sections == nullptr && section > 0) return;
      const at::Tensor& flat = sections == nullptr ? replica_.parameters() : (*sections)[section];
      const size_t at = replica_.layout().offset[partition.parameter] + partition.begin;
      std::copy_n(values, partition.count, data_of<T>(flat) + at);
    });
  });
  if (updates != nullptr) *updates = report.updates;
}

void ParameterServer::consensus() {
  at::NoGradGuard no_grad;
  snapshot(nullptr, nullptr);
  replica_.parameters_changed();
  if (workers_ != nullptr) average_buffers(*workers_, replica_.replica());
}

StrategyState ParameterServer::state() {
  at::NoGradGuard no_grad;
  StrategyState state;
  state.step = step_.index;
  if (worker_ != 0) {
    if (unpushed_ > 0) push();
    with_client([](auto& client) { return client.snapshot(nullptr); });
    return state;
  }
  std::vector<at::Tensor> sections;
  for (size_t i = 0; i <= state_names_.size(); ++i) sections.push_back(at::zeros_like(replica_.parameters()));
  int64_t updates = 0;
  snapshot(&sections, &updates);
  replica_.unflatten(sections[0], "", state.parameters);
  for (size_t i = 0; i < state_names_.size(); ++i)
    replica_.unflatten(sections[i + 1], state_names_[i] + "/", state.optimizer);
  const std::vector<NamedTensor>& parameters = replica_.replica().parameters;
  if (!parameters.empty())
    state.optimizer["updates/" + parameters.front().name] =
        at::scalar_tensor(static_cast<double>(updates), at::kDouble);
  for (const NamedTensor& b : replica_.replica().buffers)
    state.buffers[b.name] = b.tensor.detach().clone(at::MemoryFormat::Contiguous);
  return state;
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
    const std::string name = "updates/" + replica_.replica().parameters.front().name;
    updates = static_cast<int64_t>(
        fitting(state.optimizer, name, at::scalar_tensor(0.0, at::kDouble)).item<double>());
  }
  for (NamedTensor& b : replica_.replica().buffers) b.tensor.copy_(fitting(state.buffers, b.name, b.tensor));
  load(updates, !loaded_states_.empty());
  loaded_states_.clear();
  step_.index = state.step;
}

std::map<std::string, double> ParameterServer::fingerprint() {
  return with_client([&](auto& client) {
    std::map<std::string, double> out = server_fingerprint(client.stats());
    out["bytes_per_step_formula"] = static_cast<double>(client.step_bytes());
    out["bytes_exchanged"] = static_cast<double>(client.bytes_sent() + client.bytes_received());
    return out;
  });
}

std::vector<TableEvent> ParameterServer::events(int shard) {
  return with_client([&](auto& client) { return client.events(shard); });
}

}  // namespace starling
