#include <unistd.h>

#include "starling/commands/commands.h"
#include "starling/launch/environment.h"
#include "starling/report/why.h"
#include "starling/telemetry/output.h"

namespace starling {

int why_command(const std::string& run_dir, const CommandOptions& options) {
  const RunAnswer answer = why(run_dir);
  const bool color = wants_color(::environ, options.color, STDOUT_FILENO);
  const int columns = FdOutput(1).columns();
  const std::string text =
      options.json ? to_json(answer) + "\n" : to_text(answer, color, columns > 0 ? columns : 100);
  FdOutput(STDOUT_FILENO).write(text);
  return 0;
}

}  // namespace starling
