// RowClient is a worker's access to a row table that is sharded over servers. row_host.h makes one for tables
// whose shards are in the workers' own processes.
//
//   RowClient rows(store, rendezvous, worker, options);   // serve_rows() runs on the servers
//   … push, pull and clock, as row_store.h says …
//   rows.goodbye();
//
// The row with key k is on shard shard_of_key(k, servers). A push, a pull and a clock send one message to
// each shard that they concern, and several if the message would be long (row_message.h). Bytes:
// row_message.h has the formula. A shard in the worker's own process costs no bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "starling/server/row_options.h"
#include "starling/server/row_store.h"
#include "starling/server/server_rendezvous.h"

namespace starling {

template <typename T>
class RowShard;

// T: int32_t, int64_t, float or double.
template <typename T>
class BasicRowClient final : public BasicRowStore<T> {
 public:
  using typename BasicRowStore<T>::Visit;

  // Connects to all servers. Blocks. `store` must outlive the client. own: the shard of number `worker` if it
  // is in this process, or null. Errors: ConfigError for invalid options; CommError if a server has other
  // options; those of meet_server().
  BasicRowClient(Store& store, const ServerRendezvous& rendezvous, int worker, const RowTableOptions& options,
                 RowShard<T>* own = nullptr);
  // The client of a table with one worker, whose only shard is in this process.
  explicit BasicRowClient(RowShard<T>& own);
  ~BasicRowClient() override;

  int32_t width() const override;
  bool totals() const override;
  void push(std::span<const BasicRowDelta<T>> deltas) override;
  void restore(std::span<const BasicRowDelta<T>> rows) override;
  uint64_t start_pull(std::span<const int64_t> keys) override;
  void wait(uint64_t pull, BasicRowBatch<T>& out) override;
  void clock() override;
  int64_t clocks() const override;
  int shards() const override;
  void scan(int shard, const Visit& visit) override;
  uint64_t bytes_sent() const override;
  uint64_t bytes_received() const override;

  // Returns the largest staleness of the answers so far: the clocks by which the slowest worker was behind.
  int64_t max_staleness() const;
  // Tells the servers that this worker needs them no more. Its clock then holds up no other worker. Errors:
  // ConfigError if a pull is started and not waited for.
  void goodbye();

 private:
  struct State;
  std::unique_ptr<State> state_;
};
// The client of a table of counts.
using RowClient = BasicRowClient<int32_t>;

}  // namespace starling
