// `starling topics` fits topics to documents (topics/train_topics.h, docs/explanation/topics.md).
#pragma once

#include "starling/commands/commands.h"
#include "starling/run/session.h"

namespace starling {

// Runs one rank of the job. Rank 0 prints the result. Returns the exit status.
int run_topics(const TopicsSpec& what, const CommandOptions& options, Session& session);

// Checks the options before anything is started. Errors: ConfigError.
void check_topics_command(const RunSpec& spec, const TopicsSpec& what);

}  // namespace starling
