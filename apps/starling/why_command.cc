#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"

namespace starling {

void add_why_command(CLI::App& app, Invocation& invocation) {
  CLI::App& why = add_command(
      app, invocation,
      {.name = "why",
       .group = kCompareGroup,
       .summary = "Say where the time of a run went, and what to try first",
       .details = "Reads the run folder of a run that has ended, was interrupted or still trains. The "
                  "categories add up to the time of the run on the leading rank.",
       .examples = {"starling why runs/my-run", "starling why runs/my-run --json"}},
      [&invocation] { return why_command(invocation.run_dir, invocation.options); });
  why.add_option("RUN_DIR", invocation.run_dir, "Run folder")->required()->type_name("");
}

}  // namespace starling
