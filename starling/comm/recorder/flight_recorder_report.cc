#include "starling/comm/recorder/flight_recorder_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace starling {
namespace {

bool is_point_to_point(const Record& record) {
  return record.kind == CollectiveKind::kSend || record.kind == CollectiveKind::kRecv;
}

int64_t last_moment(const std::vector<Recording>& recordings) {
  int64_t last = 0;
  for (const Recording& recording : recordings) {
    for (const Record& record : recording.records) last = std::max({last, record.began_ns, record.ended_ns});
  }
  return last;
}

std::string seconds(int64_t from, int64_t to) {
  return fmt::format("{:.3f} s", static_cast<double>(time_between(from, to)) * 1e-9);
}

const char* word_of(RecordState state) {
  return state == RecordState::kUnderWay ? "under way" : state == RecordState::kEnded ? "ended" : "failed";
}

// Seen is the last collective of a rank in one group.
struct Seen {
  const Recording* recording;
  const Record* last;
};

std::string name_of(const Recording& recording) {
  return fmt::format("rank {} ({})", recording.rank, recording.host);
}

std::string awaited_counter(const Record& record) {
  return fmt::format("rank {} in shared memory (counter {}, value {})", record.peer, record.tag,
                     record.bytes);
}

// Returns the line for an operation that has not ended or has failed. `last` is the time of the last record.
std::string wait_line(const Recording& recording, const Record& record, const std::string& group,
                      int64_t last) {
  const std::string what =
      record.in_memory != 0 ? "for " + awaited_counter(record) : "in " + describe(record);
  if (record.state == RecordState::kFailed)
    return fmt::format("{} stopped waiting {} of group {} after {}", name_of(recording), what, group,
                       seconds(record.began_ns, record.ended_ns));
  return fmt::format("{} waits {} of group {}; it had waited {} at the last record", name_of(recording), what,
                     group, seconds(record.began_ns, last));
}

// Returns the line for a rank that has not begun operation `sequence` of the group.
std::string absence_line(const Recording& recording, const Record& record, uint64_t sequence,
                         const std::string& group, int64_t last) {
  const std::string since =
      record.state == RecordState::kUnderWay
          ? fmt::format("was under way for {} at the last record", seconds(record.began_ns, last))
          : fmt::format("{} {} before the last record", word_of(record.state),
                        seconds(record.ended_ns, last));
  return fmt::format("{} did not begin #{} of group {}; its last operation was {}, which {}",
                     name_of(recording), sequence, group, describe(record), since);
}

void add_group_lines(const std::string& group, const std::vector<Seen>& seen, int64_t last,
                     std::vector<std::string>& lines) {
  const auto farthest = std::max_element(seen.begin(), seen.end(), [](const Seen& a, const Seen& b) {
    return a.last->sequence < b.last->sequence;
  });
  const Record& front = *farthest->last;
  const auto waits = [&](const Seen& s) {
    return s.last->sequence == front.sequence && s.last->state != RecordState::kEnded;
  };
  if (std::none_of(seen.begin(), seen.end(), waits)) return;
  for (const Seen& s : seen) {
    if (waits(s)) {
      lines.push_back(wait_line(*s.recording, *s.last, group, last));
    } else if (s.last->sequence == front.sequence) {
      lines.push_back(
          fmt::format("{} has ended {} of group {}", name_of(*s.recording), describe(*s.last), group));
    } else {
      lines.push_back(absence_line(*s.recording, *s.last, front.sequence, group, last));
    }
  }
}

}  // namespace

std::string describe(const Record& record) {
  if (record.in_memory != 0) return "a wait for " + awaited_counter(record);
  if (is_point_to_point(record)) {
    return fmt::format("{} of {} bytes with tag {} {} rank {}", starling::name_of(record.kind), record.bytes,
                       record.tag, record.kind == CollectiveKind::kSend ? "to" : "from", record.peer);
  }
  return describe(Operation{.kind = record.kind,
                            .type = record.type,
                            .op = record.op,
                            .root = record.peer,
                            .bytes = record.bytes,
                            .sequence = record.sequence});
}

std::vector<std::string> who_waits(const std::vector<Recording>& recordings) {
  const int64_t last = last_moment(recordings);
  std::map<std::string, std::vector<Seen>> groups;
  for (const Recording& recording : recordings) {
    std::map<int, const Record*> latest;
    for (const Record& record : recording.records) {
      if (!is_point_to_point(record)) latest[record.group] = &record;
    }
    for (const auto& [group, record] : latest)
      groups[recording.groups[static_cast<size_t>(group)]].push_back({&recording, record});
  }
  std::vector<std::string> lines;
  for (const auto& [name, seen] : groups) add_group_lines(name, seen, last, lines);
  for (const Recording& recording : recordings) {
    for (const Record& record : recording.records) {
      if (!is_point_to_point(record) || record.state == RecordState::kEnded) continue;
      lines.push_back(wait_line(recording, record, recording.groups[record.group], last));
    }
  }
  return lines;
}

std::string recorder_report(const std::vector<Recording>& recordings, size_t count) {
  std::string out;
  const std::vector<std::string> waits = who_waits(recordings);
  out += waits.empty() ? "No rank waits for another rank.\n" : "Who waits for whom\n";
  for (const std::string& line : waits) out += "  " + line + "\n";
  const int64_t last = last_moment(recordings);
  for (const Recording& recording : recordings) {
    const uint64_t total = recording.records.empty() ? 0 : recording.records.back().number;
    out += fmt::format("{} of {}, process {}, has recorded {} operations\n", name_of(recording),
                       recording.size, recording.pid, total);
    const size_t first = recording.records.size() - std::min(count, recording.records.size());
    for (size_t i = first; i < recording.records.size(); ++i) {
      const Record& r = recording.records[i];
      out += fmt::format("  {:>10} s  {:<12} {:<9} {}",
                         fmt::format("-{:.6f}", static_cast<double>(time_between(r.began_ns, last)) * 1e-9),
                         recording.groups[r.group], word_of(r.state), describe(r));
      if (r.ended_ns != 0)
        out += fmt::format(", {:.1f} us", static_cast<double>(time_between(r.began_ns, r.ended_ns)) * 1e-3);
      out += "\n";
    }
  }
  return out;
}

}  // namespace starling
