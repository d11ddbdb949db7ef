#include "starling/launch/message_fold.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace starling {
namespace {

// Removes the part of a glog prefix that differs between ranks: "[W1121 01:02:03.456789 12345 f.cc:12] "
// becomes "f.cc:12] ".
std::string_view without_time(std::string_view line) {
  if (line.size() > 6 && line[0] == '[' && std::isupper(static_cast<unsigned char>(line[1]))) {
    const size_t after = line.find_first_not_of("0123456789 :.", 2);
    if (after != std::string_view::npos && after > 6) return line.substr(after);
  }
  return line;
}

std::string key_of(std::string_view line) {
  line = without_time(line);
  const size_t last = line.find_last_not_of(" \t\r");
  return std::string(line.substr(0, last == std::string_view::npos ? 0 : last + 1));
}

}  // namespace

void MessageFold::add(int rank, const std::string& line) {
  const std::string key = key_of(line);
  if (key.empty()) return;
  auto at = entries_.find(key);
  if (at == entries_.end()) {
    if (static_cast<int>(entries_.size()) >= most_lines_) {
      ++beyond_;
      return;
    }
    at = entries_.emplace(key, Entry{}).first;
    at->second.order = next_order_++;
    at->second.first_rank = rank;
    at->second.text = line;
    at->second.due = clock_.now() + window_;
  }
  at->second.ranks.insert(rank);
  if (at->second.printed) ++at->second.repeats;
}

void MessageFold::print(Entry& entry) {
  entry.printed = true;
  const size_t others = entry.ranks.size() - 1;
  std::string line = fmt::format("rank {}: {}", entry.first_rank, entry.text);
  if (others > 0) line += fmt::format(" ({} other rank{} said the same)", others, others == 1 ? "" : "s");
  print_(line);
}

std::map<int, MessageFold::Entry*> MessageFold::by_order() {
  std::map<int, Entry*> ordered;
  for (auto& [key, entry] : entries_) ordered.emplace(entry.order, &entry);
  return ordered;
}

void MessageFold::poll() {
  const Nanoseconds now = clock_.now();
  for (auto& [order, entry] : by_order()) {
    if (!entry->printed && entry->due <= now) print(*entry);
  }
}

std::optional<Nanoseconds> MessageFold::deadline() const {
  std::optional<Nanoseconds> earliest;
  for (const auto& [key, entry] : entries_) {
    if (!entry.printed) earliest = std::min(earliest.value_or(entry.due), entry.due);
  }
  return earliest;
}

void MessageFold::forget(int rank) {
  std::erase_if(entries_, [rank](const auto& item) {
    const Entry& entry = item.second;
    return !entry.printed && entry.ranks.size() == 1 && entry.first_rank == rank;
  });
}

void MessageFold::finish() {
  for (auto& [order, entry] : by_order()) {
    if (!entry->printed) print(*entry);
    if (entry->repeats > 0) {
      print_(fmt::format("rank {}: {} (repeated {} time{} by {} rank{})", entry->first_rank, entry->text,
                         entry->repeats, entry->repeats == 1 ? "" : "s", entry->ranks.size(),
                         entry->ranks.size() == 1 ? "" : "s"));
      entry->repeats = 0;
    }
  }
  if (beyond_ > 0) print_(fmt::format("{} more lines are only in the logs", beyond_));
  beyond_ = 0;
}

}  // namespace starling
