#include "starling/run/run.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "starling/base/error.h"
#include "starling/launch/fault.h"
#include "starling/launch/host_agent.h"
#include "starling/nn/batch_norm.h"
#include "starling/run/exit_status.h"
#include "starling/run/plain_error.h"
#include "starling/run/rank_program.h"
#include "starling/run/strategies.h"
#include "starling/run/training.h"
#include "starling/spec/command_line.h"
#include "starling/spec/hosts.h"
#include "starling/spec/validate.h"

namespace starling {
namespace {

[[noreturn]] void end_with(const Environment& environment, const std::exception& error) {
  if (!report_fatal(environment, error)) std::fprintf(stderr, "starling: error: %s\n", error.what());
  const auto* known = dynamic_cast<const Error*>(&error);
  std::fflush(nullptr);
  std::_Exit(known != nullptr ? exit_status(known->code()) : kExitOther);
}

// A user's model in the form that training wants: with its loss, and with synced batch norm where that is configured.
SyncedModelFactory user_factory(const RunSpec& spec, const ModuleFactory& module, const Loss& loss) {
  const bool synced = spec.model.batch_norm == BatchNorm::kSync;
  return [=](const ModelHooks& hooks) -> ModelFactory {
    return [=] {
      Model made = module();
      made.loss = loss;
      if (synced && hooks.all_reduce_sum) sync_batch_norm(*made.module, hooks.all_reduce_sum);
      return made;
    };
  };
}

}  // namespace

Run::Run(std::unique_ptr<Session> session, std::vector<std::string> arguments)
    : session_(std::move(session)), arguments_(std::move(arguments)) {}
Run::Run(Run&&) noexcept = default;
Run::~Run() = default;

const RunSpec& Run::spec() const {
  return session_->spec();
}
int Run::rank() const {
  return session_->environment().identity.rank;
}

RunResult Run::fit(const ModuleFactory& module, const Loss& loss, std::shared_ptr<const Source> train,
                   std::shared_ptr<const Source> test) {
  try {
    const DataSets data{std::move(train), std::move(test)};
    return run_training(spec(), user_factory(spec(), module, loss), data, session_->surroundings());
  } catch (const c10::Error& error) {  // the edge of a rank
    if (throw_faults_) throw plain_error(error);
    end_with(session_->environment(), plain_error(error));
  } catch (const std::exception& error) {
    if (throw_faults_) throw;
    end_with(session_->environment(), error);
  }
}

Run init(int argc, const char* const* argv) {
  Environment environment;
  try {
    if (is_host_agent(argc, argv)) std::exit(run_host_agent(::environ));
    environment = read_environment(::environ);
    ParsedConfig config = parse_command_line(argc, argv);
    config.spec.model.name = "user";
    const bool alone = environment.identity.origin == ProcessOrigin::kAlone;
    if (alone) count_ranks(config);
    const RunSpec spec = alone ? config.spec : resolved(config.spec, environment);
    validate(spec);
    RankProgram program;
    program.argv.assign(argv, argv + argc);
    if (must_launch(spec, environment)) std::exit(launch_ranks(spec, program, environment));
    auto session = std::make_unique<Session>(spec, environment, program.output, program.keep);
    if (session->server() >=
        0) {  // this process holds parameters and trains nothing: the user's code does not see it
      const int status = serve(session->spec(), session->server(), session->surroundings());
      session.reset();
      std::exit(status);
    }
    return Run(std::move(session), config.rest);
  } catch (const std::exception& error) {  // the edge of the process
    end_with(environment, error);
  }
}

}  // namespace starling
