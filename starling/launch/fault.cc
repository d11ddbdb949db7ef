#include "starling/launch/fault.h"

#include <fmt/format.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "starling/base/json_number.h"
#include "starling/launch/step_board.h"
#include "starling/telemetry/unix_time.h"

namespace starling {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCodes[] = {"internal",   "config",  "data",   "comm",       "timeout",
                                  "checkpoint", "numeric", "memory", "interrupted"};

ErrorCode code_of(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return ours->code();
  return dynamic_cast<const std::bad_alloc*>(&error) ? ErrorCode::kMemory : ErrorCode::kInternal;
}

const char* remedy(int signal) {
  switch (signal) {
    case SIGKILL:
      return ". If no user killed it, the kernel did because memory ran out (see dmesg). Use fewer ranks or "
             "a smaller batch";
    case SIGBUS:
      return ". Shared memory or a mapped file ran out of space. Free memory, or check the disk";
    default:
      return "";
  }
}

// Returns false if there is no launcher, or if the launcher has ended.
bool write_to_launcher(const Environment& environment, const std::string& line) {
  if (environment.error_fd < 0) return false;
  ssize_t n;
  do {
    n = ::write(environment.error_fd, line.data(), line.size());
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(line.size());
}

}  // namespace

const char* name_of(ErrorCode code) {
  return kCodes[static_cast<size_t>(code)];
}

std::string fault_line(int rank, const std::exception& error) {
  Json line;
  line["rank"] = rank;
  line["code"] = name_of(code_of(error));
  const auto* comm = dynamic_cast<const CommError*>(&error);
  if (comm && comm->peer() >= 0) line["peer"] = comm->peer();
  std::string message = error.what();
  for (;;) {
    line["message"] = message;
    std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    if (text.size() <= PIPE_BUF) return text;
    message.resize(message.size() * 3 / 4);  // the size of the excess is unknown because of escapes
  }
}

std::optional<Fault> parse_fault_line(int rank, std::string_view text) {
  const Json line = Json::parse(text, nullptr, false);
  if (!line.is_object() || !line.contains("message") || !line["message"].is_string()) return std::nullopt;
  Fault fault;
  fault.rank = rank;
  fault.reported = true;
  fault.message = line["message"].get<std::string>();
  try {
    if (line.contains("peer")) fault.peer = integer_of<int>(line["peer"]);
  } catch (const Json::exception&) {
    // The peer stays unknown.
  }
  if (line.contains("code") && line["code"].is_string()) {
    for (size_t i = 0; i < std::size(kCodes); ++i) {
      if (line["code"] == kCodes[i]) fault.code = static_cast<ErrorCode>(i);
    }
  }
  return fault;
}

bool report_fatal(const Environment& environment, const std::exception& error) {
  return write_to_launcher(environment, fault_line(environment.identity.rank, error));
}

std::string stuck_line(int rank, const StuckRank& stuck) {
  Json line;
  line["rank"] = rank;
  line["stuck"] = stuck.rank;
  line["message"] = stuck.why;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<StuckRank> parse_stuck_line(std::string_view text) {
  const Json line = Json::parse(text, nullptr, false);
  if (!line.is_object() || !line.contains("stuck")) return std::nullopt;
  const bool said = line.contains("message") && line["message"].is_string();
  try {
    return StuckRank{integer_of<int>(line["stuck"]), said ? line["message"].get<std::string>() : ""};
  } catch (const Json::exception&) {  // 4294967296 must not stand for rank 0
    return std::nullopt;
  }
}

void report_stuck(const Environment& environment, int stuck, const std::string& why) {
  write_to_launcher(environment, stuck_line(environment.identity.rank, {stuck, why}));
}

bool is_consequence(const Fault& fault) {
  return fault.reported && !fault.with_host &&
         (fault.code == ErrorCode::kComm || fault.code == ErrorCode::kTimeout);
}

const Fault* first_fault(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    if (!is_consequence(fault)) return &fault;
  }
  return faults.empty() ? nullptr : &faults.front();
}

std::string error_event(const Fault& fault) {
  const Json line = {{"event", "error"},
                     {"time", unix_time_s()},
                     {"code", name_of(fault.code)},
                     {"message", describe(fault)},
                     {"rank", fault.rank}};
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string describe(const Fault& fault) {
  const std::string bare = fmt::format("rank {}", fault.rank);
  const std::string name = fault.host.empty() ? bare : fmt::format("{} ({})", bare, fault.host);
  if (fault.reported) {  // the message may already begin with the rank
    const bool named = fault.message.starts_with(bare + " ") || fault.message.starts_with(bare + ":");
    if (!named) return fmt::format("{}: {}", name, fault.message);
    return fault.message.starts_with(bare + " (") ? fault.message : name + fault.message.substr(bare.size());
  }
  const bool server = fault.step == StepBoard::kServer;
  const std::string step = server           ? " (a server)"
                           : fault.step > 0 ? fmt::format(" after step {}", fault.step)
                                            : " before its first step";
  if (!fault.stuck.empty())
    return fmt::format("{} was ended by the launcher{}, because the other ranks gave it up: {}", name, step,
                       fault.stuck);
  if (fault.signal != 0) {
    const char* abbreviation = sigabbrev_np(fault.signal);
    return fmt::format("{} was killed by signal {} (SIG{}){}{}", name, fault.signal,
                       abbreviation ? abbreviation : "?", step, remedy(fault.signal));
  }
  return fmt::format("{} ended with exit status {}{}", name, fault.status, step);
}

}  // namespace starling
