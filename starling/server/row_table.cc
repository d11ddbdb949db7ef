#include "starling/server/row_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

namespace starling {

template <typename T>
RowTable<T>::RowTable(const RowTableOptions& options) : options_(options) {
  check_row_options(options);
  workers_.resize(static_cast<size_t>(options.workers));
}

template <typename T>
void RowTable<T>::check_usable() const {
  if (!spoiled_) return;
  if (spoiled_->code() == ErrorCode::kComm) throw CommError(spoiled_->what(), spoiled_->rank());
  if (spoiled_->code() == ErrorCode::kTimeout) throw TimeoutError(spoiled_->what(), spoiled_->rank());
  throw *spoiled_;
}

template <typename T>
void RowTable<T>::check_clock(int worker, int64_t clock, const char* what) const {
  check_usable();
  if (!workers_[static_cast<size_t>(worker)].present)
    throw CommError(fmt::format("{} of worker {}, which has said goodbye", what, worker), worker);
  if (clock == clock_of(worker)) return;
  throw CommError(
      fmt::format("{} of worker {} at clock {}; it is at clock {}", what, worker, clock, clock_of(worker)),
      worker);
}

template <typename T>
void RowTable<T>::spoil(ErrorCode code, const std::string& why, int worker) {
  if (!spoiled_) spoiled_.emplace(code, why, worker);
}

// Adds a change to one of the maps. Errors spoil the table.
template <typename T>
void RowTable<T>::add(Rows& rows, const BasicRow<T>& change) {
  const auto [at, made] = rows.try_emplace(change.key);
  StoredRow<T>& row = at->second;
  const uint64_t before = made ? 0 : row.bytes() + kRowOverhead;
  if (made && &rows == &rows_) keys_valid_ = false;
  try {
    row.add(change, options_.width, scratch_);
  } catch (const Error& error) {
    spoil(error.code(), error.what());
    throw;
  }
  held_bytes_ = held_bytes_ - before + row.bytes() + kRowOverhead;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
  if (row.count() == 0) {
    held_bytes_ -= row.bytes() + kRowOverhead;
    rows.erase(at);
    if (&rows == &rows_) keys_valid_ = false;
  }
  if (options_.memory_limit == 0 || held_bytes_ <= options_.memory_limit) return;
  spoil(ErrorCode::kMemory,
        fmt::format("the rows of a shard would take {} bytes, more than its limit of {}: use more servers or "
                    "ranks, fewer columns, or a larger limit",
                    held_bytes_, options_.memory_limit));
  throw *spoiled_;
}

template <typename T>
void RowTable<T>::push(int worker, int64_t clock, const BasicRowBatch<T>& rows) {
  check_clock(worker, clock, "row push");
  Rows* to = &rows_;
  if (options_.staleness == 0) {
    std::vector<Rows>& parts = held_[clock];
    parts.resize(std::is_integral_v<T> ? 1 : workers_.size());
    to = &parts[std::is_integral_v<T> ? 0 : static_cast<size_t>(worker)];
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (const BasicRow<T> change = rows.row(i); !change.index.empty()) add(*to, change);
  }
}

template <typename T>
void RowTable<T>::end_clock(int worker, int64_t clock) {
  check_clock(worker, clock, "row clock");
  ++workers_[static_cast<size_t>(worker)].clock;
  apply_complete();
}

template <typename T>
bool RowTable<T>::may_read(int worker, int64_t clock) {
  check_clock(worker, clock, "row read");
  return !options_.staleness || clock - clock_of(slowest()) <= *options_.staleness;
}

template <typename T>
int64_t RowTable<T>::note_read(int worker) {
  const int64_t staleness = clock_of(worker) - clock_of(slowest());
  max_staleness_ = std::max(max_staleness_, staleness);
  return staleness;
}

template <typename T>
BasicRow<T> RowTable<T>::row(int64_t key) {
  const auto at = rows_.find(key);
  return at == rows_.end() ? BasicRow<T>{key, {}, {}} : at->second.view(key, scratch_);
}

template <typename T>
int RowTable<T>::slowest() const {
  int slowest = -1;
  for (int w = 0; w < options_.workers; ++w) {
    if (workers_[static_cast<size_t>(w)].present && (slowest < 0 || clock_of(w) < clock_of(slowest)))
      slowest = w;
  }
  return slowest;
}

// Staleness 0: adds the pushes of all clocks that every worker has ended.
template <typename T>
void RowTable<T>::apply_complete() {
  const int worker = slowest();
  const int64_t open = worker < 0 ? std::numeric_limits<int64_t>::max() : clock_of(worker);
  while (!held_.empty() && held_.begin()->first < open) {
    std::vector<Rows> parts = std::move(held_.begin()->second);
    held_.erase(held_.begin());
    for (Rows& rows : parts) apply(rows);
  }
}

template <typename T>
void RowTable<T>::apply(Rows& held) {
  RowScratch<T> scratch;
  while (!held.empty()) {
    auto node = held.extract(held.begin());
    const int64_t key = node.key();
    if (!rows_.contains(key)) {
      rows_.insert(std::move(node));  // its bytes are counted already
      keys_valid_ = false;
      continue;
    }
    held_bytes_ -= node.mapped().bytes() + kRowOverhead;
    add(rows_, node.mapped().view(key, scratch));
  }
}

template <typename T>
const std::vector<int64_t>& RowTable<T>::sorted_keys() {
  if (keys_valid_) return keys_;
  keys_.clear();
  keys_.reserve(rows_.size());
  for (const auto& [key, row] : rows_) keys_.push_back(key);
  std::sort(keys_.begin(), keys_.end());
  keys_valid_ = true;
  return keys_;
}

template <typename T>
void RowTable<T>::forget_keys() {
  keys_ = {};
  keys_valid_ = false;
}

template <typename T>
std::vector<int64_t>::const_iterator RowTable<T>::first_key(const std::vector<int64_t>& keys, int64_t from) {
  return std::lower_bound(keys.begin(), keys.end(), from);
}

template <typename T>
void RowTable<T>::leave(int worker) {
  workers_[static_cast<size_t>(worker)].present = false;
  if (!spoiled_) apply_complete();
}

template <typename T>
void RowTable<T>::lose(int worker, const std::string& reason) {
  workers_[static_cast<size_t>(worker)].present = false;
  spoil(ErrorCode::kComm,
        fmt::format("worker {} is lost, and the rows lack what it had not pushed; resume "
                    "from a checkpoint ({})",
                    worker, reason),
        worker);
}

template <typename T>
RowTableStats RowTable<T>::stats() const {
  RowTableStats s;
  s.rows = rows_.size();
  for (const auto& [key, row] : rows_) {
    s.dense_rows += row.dense() ? 1 : 0;
    s.elements += row.count();
  }
  s.held_bytes = held_bytes_;
  s.peak_bytes = peak_bytes_;
  s.max_staleness = max_staleness_;
  return s;
}

template class RowTable<int32_t>;
template class RowTable<int64_t>;
template class RowTable<float>;
template class RowTable<double>;

}  // namespace starling
