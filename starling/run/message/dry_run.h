// What a command prints with --dry-run.
#pragma once

#include <string>

#include "starling/spec/run_spec.h"

namespace starling {

// Prints what the command would do on standard output: `text` and a line end, or with `json` the object
// {"event": "result", "dry_run": true, "text": `text`}.
void print_dry_run(const std::string& text, bool json);

// Returns the processes of a run in words: "1 rank", "4 ranks (replica=2,stage=2)", "2 ranks and 1 server".
std::string processes_text(const RunSpec& spec);

}  // namespace starling
