// HostAgent runs on each host of a job of several hosts. The launcher starts it through a connection such as
// ssh. The agent starts the ranks of its host and reports their output and their end to the launcher
// (host_lines.h).
//
//   launcher ──ssh──► agent ──fork──► ranks first … first + n - 1
//
// The agent serves the store of its host, as the launcher of a single host does. The agent of the first host
// also serves the store of the job at an address that all hosts reach. The agents try every address of the
// first host with the job key, and the addresses that are not used are closed. If the input of an agent ends
// because the launcher or the connection failed, the agent kills its ranks. The ranks do not outlive the
// agent.
#pragma once

#include <string_view>

namespace starling {

// The argument that makes a program of Starling an agent.
constexpr std::string_view kHostAgentArgument = "--starling-host-agent";

// Returns true if the command line starts an agent.
bool is_host_agent(int argc, const char* const* argv);

// Serves one job through standard input and output. `environment` is as in LaunchOptions. Returns the exit
// status, which is 0 when all ranks of the host have ended, whether they failed or not.
int run_host_agent(const char* const* environment);

}  // namespace starling
