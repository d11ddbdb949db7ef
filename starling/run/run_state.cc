#include "starling/run/run_state.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "starling/base/error.h"
#include "starling/job/wait_together.h"
#include "starling/launch/fault.h"
#include "starling/run/message/embedded_error.h"
#include "starling/run/message/exit_status.h"
#include "starling/run/message/plain_error.h"
#include "starling/run/message/print_error.h"
#include "starling/spec/extensions.h"

namespace starling {

const RunEnvironment& RunState::own_loop() {
  if (!loop_environment) loop_environment.emplace(session->run_environment());
  return *loop_environment;
}

const MeshGroups& RunState::own_axes() {
  if (!loop_axes) loop_axes = std::make_unique<MeshGroups>(resolved(), own_loop(), "loop-");
  return *loop_axes;
}

void RunState::tell_unsaved() const {
  if (!session || !loop_environment || std::uncaught_exceptions() > 0) return;
  if (!loop_told || has_fitted || has_saved || resolved().train.save.empty()) return;
  if (loop_environment->leads())
    loop_environment->process.sink.emit(
        Message{Severity::kWarning, -1,
                fmt::format("--save {}: nothing was written, because the program's loop has not called "
                            "ProgramCheckpoint::save()",
                            resolved().train.save)});
}

void RunState::end_loop() {
  sharded.reset();
  loop_axes.reset();
  loop_environment.reset();
}

void end_with(const Environment& environment, bool json, const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  int status = known != nullptr ? exit_status(known->code()) : kExitOther;
  if (!report_fatal(environment, error)) status = print_error(json, error);
  std::fflush(nullptr);
  std::_Exit(status);
}

namespace {

// The terminate handler of report_uncaught().
template <bool json>
[[noreturn]] void end_uncaught() noexcept {
  if (std::current_exception() == nullptr) __gnu_cxx::__verbose_terminate_handler();
  const Environment environment = read_environment(::environ);
  try {
    throw;
  } catch (const c10::Error& error) {
    end_with(environment, json, plain_error(error));
  } catch (const Error& error) {
    end_with(environment, json, error);
  } catch (const std::exception& error) {
    report_fatal(environment, error);
  } catch (...) {
  }
  __gnu_cxx::__verbose_terminate_handler();
  std::abort();
}

}  // namespace

void report_uncaught(bool json) {
  if (std::get_terminate() != __gnu_cxx::__verbose_terminate_handler) return;
  std::set_terminate(json ? end_uncaught<true> : end_uncaught<false>);
}

void report_fault(const RunState& state) {
  if (state.throw_faults && state.session) state.session->abandon();
  if (state.joined) rethrow_as_error();
  try {
    throw;
  } catch (const c10::Error& error) {
    if (state.throw_faults) throw plain_error(error);
    end_with(state.environment, state.json, plain_error(error));
  } catch (const std::exception& error) {
    if (state.throw_faults) throw;
    end_with(state.environment, state.json, error);
  }
}

std::vector<std::pair<std::string, std::string>> texts_of(const Settings& settings) {
  std::vector<std::pair<std::string, std::string>> texts;
  texts.reserve(settings.entries().size());
  for (const Settings::Entry& entry : settings.entries())
    texts.emplace_back(entry.key,
                       std::visit([](const auto& value) { return fmt::format("{}", value); }, entry.value));
  return texts;
}

std::shared_ptr<const Extensions> checked(const Extensions& extensions) {
  extensions.check();
  const bool none = extensions.exchanges().empty() && extensions.codecs().empty() &&
                    !extensions.takes_data() && extensions.all_reduces().empty();
  return none ? nullptr : std::make_shared<Extensions>(extensions);
}

void leave_process(int status) {
  std::fflush(nullptr);
  std::exit(status);
}

void end_interrupted(RunState& state) {
  if (state.throw_faults)
    throw Error(ErrorCode::kInterrupted, "the run was interrupted by a signal; the loop has ended");
  const RunEnvironment& environment = state.own_loop();
  std::string text = "The run was interrupted.";
  if (state.loop_saved && !state.loop_resumes)
    text += " A checkpoint was written, but the program does not call ProgramCheckpoint::resume().";
  else if (state.loop_saved && !environment.kept.resume.command.empty())
    text += fmt::format(" To go on where it stopped: {}", environment.kept.resume.command);
  if (!state.loop_saved)
    text += " Nothing was saved, because the program adds no checkpoint.step() to its loop.";
  end_interrupted(state, text);
}

void end_interrupted(RunState& state, const std::string& text) {
  const RunEnvironment& environment = state.own_loop();
  // No rank leaves before the leading rank has written its checkpoint and its events.
  wait_together(environment.group, [&] {
    if (environment.leads())
      environment.process.sink.emit(Message{Severity::kInfo, environment.group.rank(), text});
    environment.process.sink.flush();
  });
  const int signal =
      environment.process.requests != nullptr ? environment.process.requests->signal.load() : 0;
  const int status = 128 + (signal != 0 ? signal : SIGTERM);  // as interrupted_status()
  state.loop.leave_servers();
  report_fatal(state.environment, Error(ErrorCode::kInterrupted, "a signal interrupted the program's loop"));
  state.end_loop();
  state.process_group.reset();
  state.session.reset();
  std::fflush(nullptr);
  std::_Exit(status);  // threads of loaders may still run
}

}  // namespace starling
