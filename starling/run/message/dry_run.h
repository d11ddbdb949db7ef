// What a command prints with --dry-run.
#pragma once

#include <string>

namespace starling {

// Prints what the command would do on standard output: `text` and a line end, or with `json` the object
// {"event": "result", "dry_run": true, "text": `text`}.
void print_dry_run(const std::string& text, bool json);

}  // namespace starling
