// HostAgent: this program on a host of a job of several: it is started there by the launcher's connection (ssh), starts the
// host's ranks and speaks for them (host_lines.h).
//
//   launcher ──ssh──► agent ──fork──► ranks first … first + n - 1
//
// It serves the store of its host, as the launcher of one host does; on the first host also that of the job, on the one of its
// addresses that all hosts reach: every one is tried, with the job key, and the others are closed. When its input ends,
// because the launcher or the connection died, it kills its ranks; they do not survive it either.
#pragma once

#include <string_view>

namespace starling {

// The one argument that makes a program of ours an agent.
constexpr std::string_view kHostAgentArgument = "--starling-host-agent";

// Whether this command line asks for it.
bool is_host_agent(int argc, const char* const* argv);

// Serves one job over standard input and output. environment: as LaunchOptions. Returns the exit status: 0 when all its ranks
// have ended, however they did.
int run_host_agent(const char* const* environment);

}  // namespace starling
