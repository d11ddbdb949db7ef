#include "starling/comm/recorder_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace starling {
namespace {

bool is_mail(const Record& record) {
  return record.kind == CollectiveKind::kSend || record.kind == CollectiveKind::kRecv;
}

int64_t last_moment(const std::vector<Recording>& recordings) {
  int64_t last = 0;
  for (const Recording& recording : recordings) {
    for (const Record& record : recording.records) last = std::max({last, record.began_ns, record.ended_ns});
  }
  return last;
}

std::string ago(int64_t then, int64_t last) {
  return fmt::format("{:.3f} s", static_cast<double>(last - then) * 1e-9);
}

const char* word_of(RecordState state) {
  return state == RecordState::kUnderWay ? "under way" : state == RecordState::kEnded ? "ended" : "failed";
}

// The last collective of each rank in one group.
struct Seen {
  const Recording* recording;
  const Record* last;
};

std::string name_of(const Recording& recording) {
  return fmt::format("rank {} ({})", recording.rank, recording.host);
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
    const std::string name = name_of(*s.recording);
    if (waits(s)) {
      lines.push_back(fmt::format("{} {} in {} of group {}, which it began {} before the end", name,
                                  s.last->state == RecordState::kFailed ? "gave up" : "waits",
                                  describe(*s.last), group, ago(s.last->began_ns, last)));
    } else if (s.last->sequence == front.sequence) {
      lines.push_back(fmt::format("{} ended {} of group {}", name, describe(*s.last), group));
    } else {
      const bool ended = s.last->ended_ns != 0;
      lines.push_back(fmt::format("{} did not begin #{} of group {}: its last is {}, {} {} before the end",
                                  name, front.sequence, group, describe(*s.last),
                                  ended ? word_of(s.last->state) : "still under way, begun",
                                  ago(ended ? s.last->ended_ns : s.last->began_ns, last)));
    }
  }
}

}  // namespace

std::string describe(const Record& record) {
  if (record.in_memory != 0)
    return fmt::format("shared memory for rank {} (slot {}, number {})", record.peer, record.tag,
                       record.bytes);
  if (is_mail(record)) {
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
      if (!is_mail(record)) latest[record.group] = &record;
    }
    for (const auto& [group, record] : latest)
      groups[recording.groups[static_cast<size_t>(group)]].push_back({&recording, record});
  }
  std::vector<std::string> lines;
  for (const auto& [name, seen] : groups) add_group_lines(name, seen, last, lines);
  for (const Recording& recording : recordings) {
    for (const Record& record : recording.records) {
      if (!is_mail(record) || record.state == RecordState::kEnded) continue;
      lines.push_back(
          fmt::format("{} {} in {} of group {}, which it began {} before the end", name_of(recording),
                      record.state == RecordState::kFailed ? "gave up" : "waits", describe(record),
                      recording.groups[record.group], ago(record.began_ns, last)));
    }
  }
  return lines;
}

std::string recorder_report(const std::vector<Recording>& recordings, size_t count) {
  std::string out;
  const std::vector<std::string> waits = who_waits(recordings);
  out += waits.empty() ? "Nobody waits for anybody.\n" : "Who waits for whom\n";
  for (const std::string& line : waits) out += "  " + line + "\n";
  const int64_t last = last_moment(recordings);
  for (const Recording& recording : recordings) {
    const uint64_t total = recording.records.empty() ? 0 : recording.records.back().number;
    out += fmt::format("{} of {}, process {}: {} operations\n", name_of(recording), recording.size,
                       recording.pid, total);
    const size_t first = recording.records.size() - std::min(count, recording.records.size());
    for (size_t i = first; i < recording.records.size(); ++i) {
      const Record& r = recording.records[i];
      out += fmt::format("  {:>10} s  {:<12} {:<9} {}",
                         fmt::format("-{:.6f}", static_cast<double>(last - r.began_ns) * 1e-9),
                         recording.groups[r.group], word_of(r.state), describe(r));
      if (r.ended_ns != 0)
        out += fmt::format(", {:.1f} us", static_cast<double>(r.ended_ns - r.began_ns) * 1e-3);
      out += "\n";
    }
  }
  return out;
}

}  // namespace starling
