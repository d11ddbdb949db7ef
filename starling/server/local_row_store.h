// LocalRowStore is a row table in one process, for runs with one worker and for tests. It does what a
// RowClient does with one worker and one shard, and sends nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "starling/server/row_options.h"
#include "starling/server/row_store.h"

namespace starling {

// T: int32_t, int64_t, float or double.
template <typename T>
class BasicLocalRowStore final : public BasicRowStore<T> {
 public:
  using typename BasicRowStore<T>::Visit;

  // options.workers must be 1. Errors: ConfigError for invalid options.
  explicit BasicLocalRowStore(const RowTableOptions& options);
  ~BasicLocalRowStore() override;

  int32_t width() const override { return client().width(); }
  bool totals() const override { return client().totals(); }
  void push(std::span<const BasicRowDelta<T>> deltas) override { client().push(deltas); }
  void restore(std::span<const BasicRowDelta<T>> rows) override { client().restore(rows); }
  uint64_t start_pull(std::span<const int64_t> keys) override { return client().start_pull(keys); }
  void wait(uint64_t pull, BasicRowBatch<T>& out) override { client().wait(pull, out); }
  void clock() override { client().clock(); }
  int64_t clocks() const override { return client().clocks(); }
  int shards() const override { return 1; }
  void scan(int shard, const Visit& visit) override { client().scan(shard, visit); }
  uint64_t bytes_sent() const override { return 0; }
  uint64_t bytes_received() const override { return 0; }

 private:
  struct State;
  BasicRowStore<T>& client() const;

  std::unique_ptr<State> state_;
};
// A store of counts in one process.
using LocalRowStore = BasicLocalRowStore<int32_t>;

}  // namespace starling
