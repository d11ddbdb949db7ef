#include "starling/comm/network/failure_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <thread>

#include "starling/base/error.h"
#include "starling/net/deadline.h"

namespace starling {
namespace {

// Returns a failure that names a rank whose host does not answer. Returns `found` if that rank is its
// culprit, or if all hosts answer.
Failure silent_host(const Failure& found, std::span<const std::unique_ptr<Endpoint>> connections) {
  const auto others = std::count_if(connections.begin(), connections.end(), [&](const auto& connection) {
    return connection && connection->peer_rank() != found.culprit;
  });
  if (others == 0) return found;
  std::chrono::milliseconds patience{0};
  for (const auto& connection : connections)
    if (connection) patience = std::max(patience, connection->dead_after());
  for (const Deadline deadline = deadline_in(std::max(kSilenceTime, patience * 3 / 2));
       !has_passed(deadline);) {
    try {
      for (size_t r = 0; r < connections.size(); ++r)
        if (connections[r]) connections[r]->check_alive();
    } catch (const CommError& error) {
      return error.peer() == found.culprit ? found : Failure{error.what(), error.peer(), false};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return found;
}

}  // namespace

std::string failure_text(const Failure& failure) {
  return fmt::format("{}\n{}\n{}", failure.culprit, failure.is_timeout ? 1 : 0, failure.reason);
}

std::optional<Failure> parse_failure(const std::string& text) {
  const size_t first = text.find('\n'), second = text.find('\n', first + 1);
  if (first == std::string::npos || second == std::string::npos) return std::nullopt;
  int culprit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + first, culprit);
  if (error != std::errc() || end != text.data() + first || culprit < -1) return std::nullopt;
  return Failure{text.substr(second + 1), culprit, text[first + 1] == '1'};
}

void FailureNotes::leave(const Failure& failure) {
  if (left_.exchange(true)) return;
  try {
    store_.put(fmt::format("{}failure/{}", prefix_, rank_), failure_text(failure));
  } catch (const Error&) {
    // The store is gone. Only the connections report the failure.
  }
}

Failure FailureNotes::explain(const Failure& found,
                              std::span<const std::unique_ptr<Endpoint>> connections) const {
  if (found.culprit < 0 || found.culprit == rank_ || found.is_timeout) return found;
  try {
    const auto note = store_.try_get(fmt::format("{}failure/{}", prefix_, found.culprit));
    if (auto theirs = note ? parse_failure(*note) : std::nullopt) {
      if (theirs->reason.find(" reports: ") == std::string::npos)
        theirs->reason = fmt::format("rank {} reports: {}", found.culprit, theirs->reason);
      return *theirs;
    }
    return found;
  } catch (const Error&) {
    // The store is gone.
  }
  return silent_host(found, connections);
}

}  // namespace starling
