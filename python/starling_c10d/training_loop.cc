#include "training_loop.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/c10d/backend.h"
#include "starling/parallel/loop_strategy.h"
#include "starling/spec/config.h"
#include "starling/spec/recipes.h"
#include "starling/spec/schema.h"
#include "starling/spec/strategy_table.h"
#include "starling/spec/validate.h"

namespace starling {
namespace {

namespace py = pybind11;

using Settings = std::vector<std::pair<std::string, std::string>>;
using TensorList = std::vector<std::pair<std::string, at::Tensor>>;
using TensorMap = std::map<std::string, at::Tensor>;

// An optimizer of Python: an object with step(), lr(), shard(), state() and load_state(), as OwnOptimizer has
// them. Its functions take Python's global lock. The destructor needs the lock.
class PythonOptimizer final : public OwnOptimizer {
 public:
  explicit PythonOptimizer(py::object optimizer) : optimizer_(std::move(optimizer)) {}

  void step() override {
    const py::gil_scoped_acquire lock;
    optimizer_.attr("step")();
  }
  double lr() const override {
    const py::gil_scoped_acquire lock;
    return optimizer_.attr("lr")().cast<double>();
  }
  bool shard(const std::vector<ParameterPart>& parts) override {
    const py::gil_scoped_acquire lock;
    py::list pairs;
    for (const ParameterPart& p : parts)
      pairs.append(py::make_tuple(p.whole, p.part.defined() ? py::cast(p.part) : py::none()));
    return optimizer_.attr("shard")(pairs).cast<bool>();
  }
  at::Tensor state() override {
    const py::gil_scoped_acquire lock;
    return optimizer_.attr("state")().cast<at::Tensor>();
  }
  void load_state(const at::Tensor& bytes) override {
    const py::gil_scoped_acquire lock;
    optimizer_.attr("load_state")(bytes);
  }

 private:
  py::object optimizer_;
};

// Calls body() without Python's global lock. A mistake in the arguments becomes a ValueError.
template <class Body>
auto unlocked(Body body) {
  const py::gil_scoped_release release;
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kConfig) throw py::value_error(error.what());
    throw;
  }
}

std::vector<NamedTensor> named(const TensorList& tensors) {
  std::vector<NamedTensor> result;
  result.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) result.push_back({name, tensor});
  return result;
}

// A program in Python starts ranks only, so that there are no server processes.
bool trains_in_python(const ExchangeTraits& exchange) {
  return exchange.own_loop && !exchange.servers;
}

// Returns the names of the exchanges of own loops for which `has` is true.
template <class Has>
std::string own_loop_exchanges(const Has& has) {
  std::vector<std::string_view> names;
  for (const ExchangeTraits& exchange : exchange_table()) {
    if (trains_in_python(exchange) && has(exchange)) names.push_back(exchange.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

constexpr std::string_view kCall = "DistributedOptimizer", kTable = "exchange.";

// Throws ConfigError for an exchange that an own loop cannot use, or that does not read one of the settings.
void require_exchange(const ExchangeTraits& exchange, const Settings& settings) {
  if (!trains_in_python(exchange))
    throw ConfigError(fmt::format("{}: exchange.name", kCall),
                      fmt::format("{} does not train in a loop in Python; use one of {}, or train by "
                                  "`starling train` or the C++ library",
                                  exchange.name, own_loop_exchanges([](const auto&) { return true; })));
  for (const auto& [key, text] : settings) {
    if (!key.starts_with(kTable) || key == "exchange.name") continue;
    const std::string_view leaf = std::string_view(key).substr(kTable.size());
    if (exchange.reads(leaf)) continue;
    const std::string readers = own_loop_exchanges([&](const ExchangeTraits& e) { return e.reads(leaf); });
    throw ConfigError(fmt::format("{}: {}", kCall, key),
                      fmt::format("{} does not read this key; leave it out, or use {}", exchange.name,
                                  readers.empty() ? "another exchange of `starling train`" : readers));
  }
}

// Returns the configuration of an own loop with these settings. Errors: ConfigError for a setting that is
// unknown, wrong, or not one of an own loop in Python.
RunSpec spec_of(const Settings& settings, int ranks, bool fp64, std::vector<std::string>& warnings) {
  Config config;
  for (const auto& [key, text] : settings) {
    apply_code(config, key, text, std::string(kCall));
    if (key.starts_with(kTable) || key == "optimizer.clip_norm" || key == "optimizer.clip_value" ||
        key == "train.shard")
      continue;
    throw ConfigError(
        fmt::format("{}: {}", kCall, key),
        "is no setting of a loop in Python, which reads optimizer.clip_norm, "
        "optimizer.clip_value, train.shard and the keys that begin with \"exchange.\"; the program itself "
        "chooses the model, the data, the optimizer and the number of ranks");
  }
  config.spec.model.name = kUserModel;
  config.spec.train.ranks = config.spec.train.global_batch = ranks;
  config.spec.train.precision = fp64 ? Precision::kFp64 : Precision::kFp32;
  require_exchange(exchange_traits(config.spec), settings);
  apply_recipes(config);
  config.spec = loop_spec(std::move(config.spec), config.origins);
  warnings = validate(config.spec, config.origins);
  return config.spec;
}

// A LoopStrategy and the place in which it runs. Not thread-safe, as LoopStrategy.
class TrainingLoop {
 public:
  TrainingLoop(const c10::intrusive_ptr<c10d::Backend>& backend, const Settings& settings,
               const TensorList& parameters, const TensorList& frozen, const TensorList& buffers,
               std::shared_ptr<OwnOptimizer> optimizer)
      : group_(group_of(*backend)) {
    const bool fp64 = !parameters.empty() && parameters.front().second.scalar_type() == at::kDouble;
    const RunSpec spec = spec_of(settings, group_->size(), fp64, warnings_);
    LoopModel model{named(parameters), named(frozen), named(buffers)};
    strategy_ = std::make_unique<LoopStrategy>(spec, LoopPlace{*group_, clock_, stop_, loop_},
                                               std::move(model), std::move(optimizer));
  }

  LoopStrategy& strategy() { return *strategy_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  static std::shared_ptr<Group> group_of(c10d::Backend& backend) {
    auto* ours = dynamic_cast<StarlingBackend*>(&backend);
    if (ours == nullptr)
      throw ConfigError(std::string(kCall), fmt::format("needs a group of the backend starling, not {}",
                                                        backend.getBackendName()));
    return ours->group();
  }

  const std::shared_ptr<Group> group_;
  const SystemClock clock_;
  const std::atomic<bool> stop_{false};  // Python handles signals itself
  LoopState loop_;
  std::vector<std::string> warnings_;
  std::unique_ptr<LoopStrategy> strategy_;
};

py::dict state_of(TrainingLoop& loop) {
  const StrategyState state = unlocked([&] { return loop.strategy().state(); });
  py::dict result;
  result["step"] = state.step;
  result["parameters"] = state.parameters;
  result["buffers"] = state.buffers;
  result["optimizer"] = state.optimizer;
  return result;
}

void load_state(TrainingLoop& loop, const py::dict& dict) {
  StrategyState state;
  state.step = dict["step"].cast<int64_t>();
  state.parameters = dict["parameters"].cast<TensorMap>();
  state.buffers = dict["buffers"].cast<TensorMap>();
  state.optimizer = dict["optimizer"].cast<TensorMap>();
  unlocked([&] { loop.strategy().load_state(state); });
}

}  // namespace

void bind_training_loop(py::module_& module) {
  using Loop = TrainingLoop;
  py::class_<Loop>(module, "TrainingLoop", "One rank's part of a training loop that the program itself runs.")
      .def(py::init([](const c10::intrusive_ptr<c10d::Backend>& backend, const Settings& settings,
                       const TensorList& parameters, const TensorList& frozen, const TensorList& buffers,
                       py::object optimizer) {
             std::shared_ptr<OwnOptimizer> own = std::make_shared<PythonOptimizer>(std::move(optimizer));
             return unlocked(
                 [&] { return std::make_unique<Loop>(backend, settings, parameters, frozen, buffers, own); });
           }),
           py::arg("backend"), py::arg("settings"), py::arg("parameters"), py::arg("frozen"),
           py::arg("buffers"), py::arg("optimizer"))
      .def("synchronize", [](Loop& loop) { unlocked([&] { loop.strategy().synchronize(); }); })
      .def("step", [](Loop& loop) { unlocked([&] { loop.strategy().step(); }); })
      .def("consensus", [](Loop& loop) { unlocked([&] { loop.strategy().consensus(); }); })
      .def("resume_training", [](Loop& loop) { unlocked([&] { loop.strategy().resume_training(); }); })
      .def("state", &state_of)
      .def("load_state", &load_state, py::arg("state"))
      .def("steps", [](Loop& loop) { return loop.strategy().steps(); })
      .def("statistics", [](Loop& loop) { return unlocked([&] { return loop.strategy().statistics(); }); })
      .def("warnings", &Loop::warnings);
}

}  // namespace starling
