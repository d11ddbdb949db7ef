#include "starling/comm/choice/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr CollectiveKind kTuned[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
                                     CollectiveKind::kBroadcast, CollectiveKind::kBarrier};

std::optional<CollectiveKind> kind_named(const std::string& name) {
  for (const CollectiveKind kind : kTuned) {
    if (name == name_of(kind)) return kind;
  }
  return std::nullopt;
}

std::optional<TuningEntry> read_line(const std::string& line) {
  std::istringstream words(line);
  std::string kind, algorithm, more;
  TuningEntry entry;
  if (!(words >> kind >> entry.bytes >> entry.ranks >> entry.hosts >> entry.link >> algorithm >>
        entry.microseconds) ||
      words >> more)
    return std::nullopt;
  const auto known = kind_named(kind);
  if (!known) return std::nullopt;
  entry.kind = *known;
  entry.algorithm = algorithm_named(algorithm);
  if (!carries_out(entry.algorithm, entry.kind)) return std::nullopt;
  return entry;
}

}  // namespace

Tuning Tuning::parse(const std::string& text, const std::string& source) {
  Tuning tuning;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    std::optional<TuningEntry> entry;
    try {
      entry = read_line(line);
    } catch (const ConfigError&) {
      // The line names an algorithm of another version of Starling.
    }
    if (!entry)
      throw ConfigError(fmt::format("{}:{}", source, number),
                        fmt::format("\"{}\" is not a line of a tuning file; remove the file, or make it anew "
                                    "with `starling bench comm --tune`",
                                    line));
    tuning.set(*entry);
  }
  return tuning;
}

std::string Tuning::text() const {
  std::string out = "# collective bytes ranks hosts link algorithm microseconds\n";
  for (const TuningEntry& e : entries_) {
    out += fmt::format("{} {} {} {} {} {} {:.3f}\n", name_of(e.kind), e.bytes, e.ranks, e.hosts, e.link,
                       name_of(e.algorithm), e.microseconds);
  }
  return out;
}

void Tuning::set(const TuningEntry& entry) {
  const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const TuningEntry& e) {
    return e.kind == entry.kind && e.bytes == entry.bytes && e.ranks == entry.ranks &&
           e.hosts == entry.hosts && e.link == entry.link;
  });
  if (same != entries_.end())
    *same = entry;
  else
    entries_.push_back(entry);
}

const TuningEntry* Tuning::nearest(CollectiveKind kind, uint64_t bytes, int ranks, int hosts,
                                   const std::string& link) const {
  const auto distance = [bytes](const TuningEntry& e) {
    return std::fabs(std::log2(1.0 + static_cast<double>(e.bytes)) -
                     std::log2(1.0 + static_cast<double>(bytes)));
  };
  const TuningEntry* best = nullptr;
  for (const TuningEntry& e : entries_) {
    if (e.kind != kind || e.ranks != ranks || e.hosts != hosts || e.link != link) continue;
    if (best == nullptr || distance(e) < distance(*best)) best = &e;
  }
  return best;
}

Tuning Tuning::of(int ranks, int hosts, const std::string& link) const {
  Tuning found;
  for (const TuningEntry& e : entries_) {
    if (e.ranks == ranks && e.hosts == hosts && e.link == link) found.entries_.push_back(e);
  }
  return found;
}

}  // namespace starling
