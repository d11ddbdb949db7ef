#include "starling/launch/fault.h"

#include <fmt/format.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

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
      return "; if nobody killed it, the kernel did because memory ran out (see dmesg): use fewer ranks or a "
             "smaller batch";
    case SIGBUS:
      return "; shared memory or a mapped file ran out of space: free memory, or check the disk";
    default:
      return "";
  }
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
    message.resize(message.size() * 3 / 4);  // escapes make the excess unknown
  }
}

std::optional<Fault> parse_fault_line(int rank, std::string_view text) {
  const Json line = Json::parse(text, nullptr, false);
  if (!line.is_object() || !line.contains("message") || !line["message"].is_string()) return std::nullopt;
  Fault fault;
  fault.rank = rank;
  fault.reported = true;
  fault.message = line["message"].get<std::string>();
  if (line.contains("peer") && line["peer"].is_number_integer()) fault.peer = line["peer"].get<int>();
  if (line.contains("code") && line["code"].is_string()) {
    for (size_t i = 0; i < std::size(kCodes); ++i) {
      if (line["code"] == kCodes[i]) fault.code = static_cast<ErrorCode>(i);
    }
  }
  return fault;
}

bool report_fatal(const Environment& environment, const std::exception& error) {
  if (environment.error_fd < 0) return false;
  const std::string line = fault_line(environment.identity.rank, error);
  ssize_t n;
  do {
    n = ::write(environment.error_fd, line.data(), line.size());
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(line.size());
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

std::string describe(const Fault& fault) {
  const std::string bare = fmt::format("rank {}", fault.rank);
  const std::string name = fault.host.empty() ? bare : fmt::format("{} ({})", bare, fault.host);
  if (fault.reported) {  // a message that already begins with its rank does not get it twice
    const bool named = fault.message.starts_with(bare + " ") || fault.message.starts_with(bare + ":");
    if (!named) return fmt::format("{}: {}", name, fault.message);
    return fault.message.starts_with(bare + " (") ? fault.message : name + fault.message.substr(bare.size());
  }
  const std::string step =
      fault.step > 0 ? fmt::format(" after step {}", fault.step) : " before its first step";
  if (fault.signal != 0) {
    const char* abbreviation = sigabbrev_np(fault.signal);
    return fmt::format("{} was killed by signal {} (SIG{}){}{}", name, fault.signal,
                       abbreviation ? abbreviation : "?", step, remedy(fault.signal));
  }
  return fmt::format("{} ended with exit status {}{}", name, fault.status, step);
}

}  // namespace starling
