#include "starling/train/store_gather.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <utility>

#include "starling/base/error.h"
#include "starling/net/deadline.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kLook{50};
constexpr const char* kReported = "gather/reported";
constexpr const char* kCollected = "gather/collected";

// Returns the shortest decimal forms from which numbers_of() reads equal numbers.
std::string text_of(const std::vector<double>& numbers) {
  return fmt::format("{}", fmt::join(numbers, " "));
}

std::vector<double> numbers_of(const std::string& text) {
  std::vector<double> numbers;
  const char* at = text.c_str();
  for (char* end = nullptr;; at = end) {
    const double value = std::strtod(at, &end);
    if (end == at) return numbers;
    numbers.push_back(value);
  }
}

}  // namespace

StoreGather::StoreGather(Store& store, int rank, int ranks, std::chrono::milliseconds timeout,
                         std::function<void()> lead)
    : store_(store),
      rank_(rank),
      ranks_(ranks),
      timeout_(timeout),
      lead_(std::move(lead)),
      leads_(rank == 0) {}

std::string StoreGather::key(const std::string& what, int rank) const {
  return fmt::format("gather/{}/{}", what, rank);
}

bool StoreGather::is_lost(int rank) {
  return store_.try_get(lost_key(rank)).has_value();
}

bool StoreGather::must_lead() {
  if (leads_) return true;
  for (int r = 0; r < rank_; ++r) {
    if (!is_lost(r)) return false;
  }
  leads_ = true;
  lead_();
  return true;
}

std::vector<std::vector<double>> StoreGather::collect(const std::string& what) {
  std::vector<std::vector<double>> all(static_cast<size_t>(ranks_));
  const Deadline deadline = deadline_in(timeout_);
  for (int r = 0; r < ranks_; ++r) {
    for (;;) {
      const bool lost =
          is_lost(r);  // checked before the key is read, so that numbers that a lost rank has put still count
      if (const auto text = store_.try_get(key(what, r))) {
        all[static_cast<size_t>(r)] = numbers_of(*text);
        break;
      }
      if (lost) break;
      if (has_passed(deadline)) {
        throw TimeoutError(
            fmt::format(
                "rank {} did not send its part of {} within {} ms. See its log, or raise comm.timeout_s", r,
                what, timeout_.count()),
            r);
      }
      try {
        store_.get(key(what, r), kLook);
      } catch (const TimeoutError&) {
        // The rank has not put its numbers. Try again.
      }
    }
  }
  return all;
}

std::vector<std::vector<double>> StoreGather::gather(const std::string& what,
                                                     const std::vector<double>& own) {
  store_.put(key(what, rank_), text_of(own));
  if (must_lead()) return collect(what);
  std::vector<std::vector<double>> all(static_cast<size_t>(ranks_));
  all[static_cast<size_t>(rank_)] = own;
  return all;
}

std::vector<std::vector<double>> StoreGather::gather_all(const std::string& what,
                                                         const std::vector<double>& own) {
  store_.put(key(what, rank_), text_of(own));
  must_lead();
  return collect(what);
}

std::vector<std::vector<double>> StoreGather::gather_last(const std::vector<double>& own) {
  store_.put(key("last", rank_), text_of(own));
  const Deadline deadline = deadline_in(timeout_);
  for (;;) {
    if (must_lead()) {
      auto all = collect("last");
      store_.put(kCollected, "yes");
      return all;
    }
    try {
      store_.get(kReported, kLook);
      break;
    } catch (const TimeoutError&) {
      // Once the leader has all numbers, it only writes files. They may take any time, and its death is seen.
      if (has_passed(deadline) && !store_.try_get(kCollected))
        throw TimeoutError(
            fmt::format("the leading rank did not end the run within {} ms. See its log", timeout_.count()));
    }
  }
  std::vector<std::vector<double>> all(static_cast<size_t>(ranks_));
  all[static_cast<size_t>(rank_)] = own;
  return all;
}

void StoreGather::reported() {
  if (leads_) store_.put(kReported, "yes");
}

}  // namespace starling
