#include "starling/comm/failure_notes.h"

#include <fmt/format.h>

#include <cstdlib>

#include "starling/base/error.h"

namespace starling {

std::string failure_text(const Failure& failure) {
  return fmt::format("{}\n{}\n{}", failure.culprit, failure.is_timeout ? 1 : 0, failure.reason);
}

std::optional<Failure> parse_failure(const std::string& text) {
  const size_t first = text.find('\n'), second = text.find('\n', first + 1);
  if (first == std::string::npos || second == std::string::npos) return std::nullopt;
  return Failure{text.substr(second + 1), std::atoi(text.c_str()), text[first + 1] == '1'};
}

void FailureNotes::leave(const Failure& failure) {
  if (left_.exchange(true)) return;
  try {
    store_.put(fmt::format("{}failure/{}", prefix_, rank_), failure_text(failure));
  } catch (const Error&) {
    // The store has gone: the connections alone tell.
  }
}

Failure FailureNotes::explain(const Failure& found) const {
  if (found.culprit < 0 || found.culprit == rank_ || found.is_timeout) return found;
  try {
    const auto note = store_.try_get(fmt::format("{}failure/{}", prefix_, found.culprit));
    if (auto theirs = note ? parse_failure(*note) : std::nullopt) {
      if (theirs->reason.find(" reports: ") == std::string::npos)
        theirs->reason = fmt::format("rank {} reports: {}", found.culprit, theirs->reason);
      return *theirs;
    }
  } catch (const Error&) {
    // As above.
  }
  return found;
}

}  // namespace starling
