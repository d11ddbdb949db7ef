#include "starling/run/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <exception>

#include "starling/base/error.h"
#include "starling/run/checked_config.h"
#include "starling/run/message/embedded_error.h"
#include "starling/run/rank_program.h"
#include "starling/run/run_state.h"
#include "starling/run/strategies.h"
#include "starling/spec/command_line.h"
#include "starling/spec/recipes.h"

namespace starling {
namespace {

// The run of an embedding program warns like that of rank 0.
constexpr int kNormalVerbosity = 0;

Config joined_config(const Settings& settings, const Extensions& extensions, const Environment& environment) {
  Config config;
  config.spec.extensions = checked(extensions);
  for (const auto& [key, text] : texts_of(settings)) apply_code(config, key, text, "starling::join");
  refuse_what_the_program_brings(config);
  require_data_source(config);
  config.spec.model.name = kUserModel;
  apply_recipes(config);
  Config checked = checked_config(std::move(config), environment, {.launches = true}, kNormalVerbosity);
  check_codecs(checked.spec);
  return checked;
}

// A process that is alone cannot be one of several ranks.
void require_started(const RunSpec& spec, const Environment& environment) {
  if (!must_launch(spec, environment)) return;
  const int64_t processes = spec.train.ranks + servers_of(spec);
  throw ConfigError(
      servers_of(spec) > 0 ? "exchange.servers" : "train.ranks",
      fmt::format(
          "the run needs {} processes, and starling::join starts none: start the program by `starling "
          "launch -n {} PROGRAM`, torchrun, mpiexec or srun",
          processes, processes));
}

}  // namespace

Run join(const Settings& settings, const Extensions& extensions) {
  try {
    auto state = std::make_unique<RunState>();
    state->throw_faults = state->joined = true;
    state->environment = read_environment(::environ);
    const Environment& environment = state->environment;
    Config config = joined_config(settings, extensions, environment);
    state->spec = config.spec;
    state->origins = std::move(config.origins);
    require_started(state->spec, environment);
    const bool launched = environment.identity.origin == ProcessOrigin::kLauncher;
    const bool keep = !state->spec.run.dir.empty() || (launched && !environment.run_dir.empty());
    OutputOptions output;
    output.embedded = true;
    state->session =
        std::make_unique<Session>(state->spec, environment, output, keep, std::vector<std::string>{});
    return Run(std::move(state));
  } catch (...) {  // outermost level of the library
    rethrow_as_error();
  }
}

}  // namespace starling
