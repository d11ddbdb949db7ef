#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"

namespace starling {

void add_doctor_command(CLI::App& app, Invocation& invocation) {
  CLI::App& doctor = add_command(
      app, invocation,
      {.name = "doctor",
       .group = kMachineGroup,
       .summary = "Examine this machine, or explain why a run waits",
       .details = "Measures arithmetic, memory and network, and suggests a fix for each problem. With "
                  "--recorder, the command reads the flight recorders of a run and prints which rank "
                  "waited for which rank.",
       .examples = {"starling doctor", "starling doctor --recorder runs/my-run"}},
      [&invocation] {
        return invocation.recorder.empty() ? doctor_command(invocation.options)
                                           : doctor_recorder_command(invocation.recorder, invocation.options);
      });
  doctor.add_option("--recorder", invocation.recorder, "Run folder whose flight recorders are read")
      ->type_name("DIR");
}

}  // namespace starling
