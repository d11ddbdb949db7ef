#include "starling/run/run.h"

#include <fmt/format.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "starling/base/error.h"
#include "starling/data/source_factory.h"
#include "starling/launch/host_agent.h"
#include "starling/launch/version.h"
#include "starling/nn/layers/batch_norm.h"
#include "starling/nn/state.h"
#include "starling/parallel/replica/default_generator.h"
#include "starling/run/checked_config.h"
#include "starling/run/loop/block_options.h"
#include "starling/run/message/command_page.h"
#include "starling/run/message/dry_run.h"
#include "starling/run/message/exit_status.h"
#include "starling/run/message/help.h"
#include "starling/run/message/plain_error.h"
#include "starling/run/message/print_error.h"
#include "starling/run/rank_program.h"
#include "starling/run/run_device.h"
#include "starling/run/run_state.h"
#include "starling/run/strategies.h"
#include "starling/run/training.h"
#include "starling/spec/command_line.h"
#include "starling/spec/extensions.h"
#include "starling/spec/recipes.h"
#include "starling/spec/validate.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

// Calls `compute`. An error of libtorch says that it came from `where`.
template <typename Compute>
auto in_phase(const std::string& where, const Compute& compute) {
  try {
    return compute();
  } catch (c10::Error& error) {
    error.add_context("in " + where);
    throw;
  }
}

// Gives all floating-point tensors the widest type of them if an output and a target differ.
void promote(Tensors& outputs, Tensors& targets) {
  const auto floating = [](const at::Tensor& tensor) { return tensor.is_floating_point(); };
  if (std::none_of(targets.begin(), targets.end(), floating)) return;
  if (std::none_of(outputs.begin(), outputs.end(), floating)) return;
  std::optional<at::ScalarType> widest;
  for (const Tensors* tensors : {&outputs, &targets}) {
    for (const at::Tensor& tensor : *tensors) {
      if (!floating(tensor)) continue;
      widest = widest ? at::promote_types(*widest, tensor.scalar_type()) : tensor.scalar_type();
    }
  }
  for (Tensors* tensors : {&outputs, &targets}) {
    for (at::Tensor& tensor : *tensors) {
      if (floating(tensor)) tensor = tensor.to(*widest);
    }
  }
}

// Returns the loss that training uses.
ModelLoss loss_of(const Model& made, const Loss& loss) {
  if (made.loss && loss) {
    throw ConfigError(
        "Run::fit",
        "the factory sets Model::loss, and fit() has a loss, too. Pass nullptr to fit() to use the "
        "loss of the model");
  }
  const ModelLoss chosen = loss ? ModelLoss(loss) : made.loss ? made.loss : ModelLoss(cross_entropy);
  const auto checked = [chosen](Tensors outputs, Tensors targets) {
    return in_phase("the loss", [&] {
      promote(outputs, targets);
      return chosen.of(outputs, targets);
    });
  };
  return {checked, chosen.weighted()};
}

// Makes errors of the model's computation say where they came from.
void name_phases(Model& model) {
  model.forward = [forward = model.forward](const Tensors& inputs) {
    return in_phase("the forward pass of the model", [&] { return forward(inputs); });
  };
  for (Block& block : model.blocks) {
    block.forward = [name = block.name, forward = block.forward](const std::vector<at::Tensor>& inputs) {
      return in_phase("the forward pass of block " + name, [&] { return forward(inputs); });
    };
  }
}

// Converts a user's model for training: adds its loss, its blocks and the initial weights of model.init, and
// synchronized batch norm if that is configured.
SyncedModelFactory user_factory(const RunSpec& spec, const ModuleFactory& module, const Loss& loss,
                                const FitOptions& options) {
  const bool synced = spec.model.batch_norm == BatchNorm::kSync;
  return [=](const ModelHooks& hooks) -> ModelFactory {
    return [=] {
      Model made = module();
      made.loss = loss_of(made, loss);
      add_blocks(made, spec, options);
      name_phases(made);
      load_initial(*made.module, spec);
      if (synced && hooks.all_reduce_sum) sync_batch_norm(*made.module, hooks.all_reduce_sum);
      return made;
    };
  };
}

// Returns the configuration with what the options set in it.
RunSpec with_options(RunSpec spec, const FitOptions& options) {
  if (!options.clip_value() && !options.accumulate()) return spec;
  spec.optimizer.clip_value = options.clip_value().value_or(spec.optimizer.clip_value);
  spec.train.accumulate = options.accumulate().value_or(spec.train.accumulate);
  validate(spec);
  return spec;
}

// Prints what the run would train. Checks the model, its initial weights and the length of the run.
void print_plan(const RunSpec& spec, const ModelFactory& factory, const Source& train, bool json) {
  const Model model = factory();
  int64_t parameters = 0;
  for (const auto& p : model.module->parameters()) parameters += p.requires_grad() ? p.numel() : 0;
  train_length(spec, train);
  print_dry_run(fmt::format("would train {} ({} parameters) on {} ({} samples) with {}, {} samples a step",
                            spec.model.name, with_thousands(parameters), train.info().name,
                            with_thousands(train.size()), processes_text(spec),
                            with_thousands(spec.train.global_batch)),
                json);
}

// A program whose command line names the data trains on what Run::data() returns.
void refuse_unused_data(const RunState& state) {
  const Extensions* added = state.spec.extensions.get();
  if (added == nullptr || !added->takes_data() || state.opened_data) return;
  throw ConfigError(
      "data.source",
      "has no effect, because the program has not called Run::data(): train on what it returns, "
      "or leave out Extensions::take_data() and Extensions::source()");
}

void print_help(const ProgramOptions& options, bool takes_data) {
  CommandPage page = page_of(options.app());
  page.of_program = true;
  page.summary = "Train the network of this program";
  page.details = takes_data
                     ? "The program takes the flags of `starling train`. It brings its own network. --data "
                       "names its data."
                     : "The program takes the flags of `starling train`. It brings its own network and its "
                       "own data.";
  FdOutput output(1);
  output.write(help_text(page, output.columns() > 0 ? output.columns() : 80));
}

// Reads the command line. Ends the process after --help and --version.
ProgramLine read_command_line(int argc, const char* const* argv, const Settings& settings,
                              const Extensions& extensions) {
  ProgramOptions options(argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program",
                         checked(extensions));
  ProgramLine line = options.parse(argc, argv, texts_of(settings));
  if (line.help) {
    print_help(options, extensions.takes_data());
    leave_process(kExitOk);
  }
  if (line.version) {
    FdOutput(1).write(fmt::format("starling {}\nlibtorch {}\n", program_version(), TORCH_VERSION));
    leave_process(kExitOk);
  }
  return line;
}

}  // namespace

Run::Run(std::unique_ptr<RunState> state) : state_(std::move(state)) {}
Run::Run(Run&&) noexcept = default;
Run::~Run() {
  if (state_) state_->tell_unsaved();
}

const RunSpec& Run::spec() const {
  state_->reads_spec = true;
  return state_->resolved();
}
const std::vector<std::string>& Run::arguments() const {
  return state_->arguments;
}
int Run::rank() const {
  return state_->environment.identity.rank;
}
at::Device Run::device() const {
  return with_faults_reported(*state_, [&] {
    return run_device(state_->resolved(), state_->session ? state_->own_loop().group.local_rank() : 0);
  });
}
void Run::throw_faults() {
  state_->throw_faults = true;
}
bool Run::is_server() const {
  return state_->session && state_->session->server() >= 0;
}
void Run::request_stop() {
  if (state_->session) state_->session->request_stop();
}

void Run::serve() {
  with_faults_reported(*state_, [&] {
    if (!is_server()) throw Error(ErrorCode::kInternal, "Run::serve: this process is no server");
    starling::serve(state_->resolved(), state_->session->server(), state_->session->run_environment());
  });
}

DataSets Run::data() const {
  return with_faults_reported(*state_, [&] {
    const RunSpec& own = state_->resolved();
    state_->opened_data = true;
    return open_data(own.data, own.train.seed, own.model.tokens, security_named(own.comm.security),
                     own.extensions.get());
  });
}

RunResult Run::train(const ModuleFactory& module, const Loss& loss, std::shared_ptr<const Source> train,
                     std::shared_ptr<const Source> test, const FitOptions& options, TensorMap* trained) {
  if (is_server()) {  // of a run that is embedded
    serve();
    return {};
  }
  return with_faults_reported(*state_, [&] {
    refuse_unused_data(*state_);
    if (!train) throw ConfigError("Run::fit", "the training data is a null pointer; pass a Source");
    state_->has_fitted = true;
    const DataSets data{std::move(train), std::move(test)};
    const RunSpec spec = with_options(state_->resolved(), options);
    check_added_blocks(module, spec, options, *data.train);
    const SyncedModelFactory factory = user_factory(spec, module, loss, options);
    if (state_->session) {
      RunResult result =
          run_training(spec, factory, data, state_->session->run_environment(), options, trained);
      if (!result.interrupted || state_->throw_faults) return result;
      const int status = interrupted_status(state_->environment, result);
      state_->end_loop();
      state_->process_group.reset();
      state_->session.reset();
      leave_process(status);
    }
    if (rank() == 0) print_plan(spec, factory(ModelHooks{}), *data.train, state_->json);
    leave_process(kExitOk);
  });
}

RunResult Run::fit(const ModuleFactory& module, const Loss& loss, std::shared_ptr<const Source> train,
                   std::shared_ptr<const Source> test, const FitOptions& options) {
  return this->train(module, loss, std::move(train), std::move(test), options, nullptr);
}

std::pair<std::shared_ptr<torch::nn::Module>, RunResult> Run::fit_module(const ModuleFactory& module,
                                                                         const Loss& loss,
                                                                         std::shared_ptr<const Source> train,
                                                                         std::shared_ptr<const Source> test,
                                                                         const FitOptions& options) {
  TensorMap trained;
  RunResult result = this->train(module, loss, std::move(train), std::move(test), options, &trained);
  if (is_server()) return {nullptr, std::move(result)};
  const KeptGenerator kept;
  std::shared_ptr<torch::nn::Module> made = module().module;
  const at::NoGradGuard no_grad;
  for (const auto& tensors : {made->named_parameters(), made->named_buffers()}) {
    for (const auto& item : tensors) {
      const at::Tensor& tensor = item.value();
      if (const auto value = trained.find(item.key()); value != trained.end()) tensor.set_data(value->second);
    }
  }
  made->eval();
  return {std::move(made), std::move(result)};
}

Run init(int argc, const char* const* argv, const Settings& settings) {
  return init(argc, argv, settings, Extensions());
}

Run init(int argc, const char* const* argv, const Settings& settings, const Extensions& extensions) {
  auto state = std::make_unique<RunState>();
  state->json = asks_for_json({argv, static_cast<size_t>(argc)});
  try {
    if (is_host_agent(argc, argv)) std::exit(run_host_agent(::environ));
    state->environment = read_environment(::environ);
    Environment& environment = state->environment;
    ProgramLine line = read_command_line(argc, argv, settings, extensions);
    line.config.spec.model.name = kUserModel;
    apply_recipes(line.config);
    Config config =
        checked_config(std::move(line.config), environment, {.launches = true}, line.options.verbosity);
    state->origins = std::move(config.origins);
    const RunSpec& spec = config.spec;
    check_codecs(spec);  // before any rank starts, so that only one message appears
    state->arguments = std::move(line.arguments);
    state->spec = spec;
    if (line.options.dry_run) return Run(std::move(state));
    RankProgram program;
    program.argv.assign(argv, argv + argc);
    program.output = {line.options.json, line.options.verbosity, line.options.color};
    if (must_launch(spec, environment)) {
      if (const std::optional<int> status = launch_ranks(spec, program, environment)) std::exit(*status);
      environment = read_environment(::environ);
    }
    state->session = std::make_unique<Session>(spec, environment, program.output, program.keep, program.argv);
    // A server holds parameters and does not train, so the user's code never sees its process.
    if (Session& session = *state->session; session.server() >= 0) {
      const int status = serve(session.spec(), session.server(), session.run_environment());
      state->session.reset();
      std::exit(status);
    }
    report_uncaught(state->json);
    return Run(std::move(state));
  } catch (const std::exception& error) {  // outermost level of the process
    end_with(state->environment, state->json, error);
  }
}

}  // namespace starling
