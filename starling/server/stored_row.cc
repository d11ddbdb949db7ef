#include "starling/server/stored_row.h"

#include <algorithm>
#include <type_traits>

namespace starling {
namespace {

// Copies `from` so that `to` has no more than twice the memory that it needs. A vector grows by half of its
// capacity at least, so that a row which grows by single elements is seldom allocated again.
template <typename V>
void assign_tight(std::vector<V>& to, const std::vector<V>& from) {
  if (to.capacity() > 2 * from.size()) {
    std::vector<V>(from).swap(to);
  } else {
    if (from.size() > to.capacity()) to.reserve(std::max(from.size(), to.capacity() + to.capacity() / 2));
    to.assign(from.begin(), from.end());
  }
}

template <typename T>
void gather(const std::vector<T>& dense, RowScratch<T>& scratch) {
  scratch.index.clear();
  scratch.value.clear();
  for (size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] == 0) continue;
    scratch.index.push_back(static_cast<int32_t>(i));
    scratch.value.push_back(dense[i]);
  }
}

// Returns whether a + b is zero. The conversion lets integers wrap; two smallest integers are no sum.
template <typename T>
bool cancels(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<Unsigned>(a) + static_cast<Unsigned>(b) == 0;
  } else {
    return a + b == 0;
  }
}

template <typename T>
size_t sparse_bytes(size_t count) {
  return count * (sizeof(int32_t) + sizeof(T));
}

}  // namespace

template <typename T>
void StoredRow<T>::add(const BasicRow<T>& change, int32_t width, RowScratch<T>& scratch) {
  const size_t dense_bytes = static_cast<size_t>(width) * sizeof(T);
  if (dense_) {
    add_dense(change);
    if (2 * sparse_bytes<T>(count_) >= dense_bytes) return;
    gather(value_, scratch);
  } else {
    if (add_in_place(change)) return;
    merge(change, scratch);
  }
  keep(scratch, width);
}

// Adds if all indices of the change are in the row and no element becomes zero. Otherwise changes nothing.
template <typename T>
bool StoredRow<T>::add_in_place(const BasicRow<T>& change) {
  const auto place = [&](auto from, int32_t index) { return std::lower_bound(from, index_.end(), index); };
  auto at = index_.begin();
  for (size_t i = 0; i < change.index.size(); ++i) {
    at = place(at, change.index[i]);
    if (at == index_.end() || *at != change.index[i]) return false;
    if (cancels(value_[static_cast<size_t>(at - index_.begin())], change.value[i])) return false;
  }
  at = index_.begin();
  for (size_t i = 0; i < change.index.size(); ++i) {
    at = place(at, change.index[i]);
    T& value = value_[static_cast<size_t>(at - index_.begin())];
    value = row_sum(value, change.value[i], change.key, change.index[i]);
  }
  return true;
}

// Writes the sum of the sparse row and the change to `scratch`.
template <typename T>
void StoredRow<T>::merge(const BasicRow<T>& change, RowScratch<T>& scratch) const {
  scratch.index.clear();
  scratch.value.clear();
  const auto put = [&](int32_t index, T value) {
    if (value == 0) return;
    scratch.index.push_back(index);
    scratch.value.push_back(value);
  };
  size_t i = 0, j = 0;
  while (i < index_.size() && j < change.index.size()) {
    if (index_[i] < change.index[j]) {
      put(index_[i], value_[i]);
      ++i;
    } else if (index_[i] > change.index[j]) {
      put(change.index[j], change.value[j]);
      ++j;
    } else {
      put(index_[i], row_sum(value_[i], change.value[j], change.key, index_[i]));
      ++i, ++j;
    }
  }
  for (; i < index_.size(); ++i) put(index_[i], value_[i]);
  for (; j < change.index.size(); ++j) put(change.index[j], change.value[j]);
}

template <typename T>
void StoredRow<T>::add_dense(const BasicRow<T>& change) {
  for (size_t j = 0; j < change.index.size(); ++j) {
    T& value = value_[static_cast<size_t>(change.index[j])];
    if (value != 0) --count_;
    value = row_sum(value, change.value[j], change.key, change.index[j]);
    if (value != 0) ++count_;
  }
}

// Takes the pairs of `scratch` as the row.
template <typename T>
void StoredRow<T>::keep(const RowScratch<T>& scratch, int32_t width) {
  count_ = static_cast<uint32_t>(scratch.index.size());
  dense_ = sparse_bytes<T>(count_) > static_cast<size_t>(width) * sizeof(T);
  if (!dense_) {
    assign_tight(index_, scratch.index);
    assign_tight(value_, scratch.value);
    return;
  }
  std::vector<int32_t>().swap(index_);
  std::vector<T>(static_cast<size_t>(width)).swap(value_);
  for (size_t i = 0; i < scratch.index.size(); ++i)
    value_[static_cast<size_t>(scratch.index[i])] = scratch.value[i];
}

template <typename T>
BasicRow<T> StoredRow<T>::view(int64_t key, RowScratch<T>& scratch) const {
  if (!dense_) return {key, index_, value_};
  gather(value_, scratch);
  return {key, scratch.index, scratch.value};
}

template class StoredRow<int32_t>;
template class StoredRow<int64_t>;
template class StoredRow<float>;
template class StoredRow<double>;

}  // namespace starling
