// Engine: the Group. Orders the calls, numbers them, and hands each to the collectives of the transports that the ranks
// have: shared memory within a host (collective/shm_*), TCP between hosts (collective/tcp_*), or both one after another.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/comm/local_mail.h"
#include "starling/comm/local_team.h"
#include "starling/net/store.h"

namespace starling {

// Who is where, equal on all ranks.
struct Places {
  int rank = 0;
  std::vector<std::string> host_names;       // of each rank
  std::vector<std::vector<int>> hosts;       // the ranks of each host that share memory, ascending; by first rank
  std::vector<int> host_of;                  // index into hosts, of each rank
  int size() const { return static_cast<int>(host_of.size()); }
  const std::vector<int>& local() const { return hosts[host_of[rank]]; }
  int local_rank_of(int other) const;
};

struct EngineParts {
  Places places;
  GroupOptions options;
  Store* store = nullptr;  // null: one rank
  std::string key;         // prefix of store keys
  std::unique_ptr<LocalTeam> team;
  std::shared_ptr<Window> rings;  // null: one local rank
};

class Engine final : public Group {
 public:
  explicit Engine(EngineParts parts);
  ~Engine() override;

  int rank() const override { return places_.rank; }
  int size() const override { return places_.size(); }
  int local_rank() const override { return team_->rank(); }
  std::vector<int> local_ranks() const override { return places_.local(); }
  std::string host_of(int rank) const override { return places_.host_names.at(rank); }
  TrafficCount traffic() const override;
  std::shared_ptr<Window> allocate_window(size_t bytes) override;
  LocalSync* local_sync() override { return team_.get(); }

  void barrier() override;
  void broadcast(void* data, size_t count, DataType type, int root) override;
  void all_reduce(void* data, size_t count, DataType type, ReduceOp op) override;
  void reduce_scatter(const void* in, void* out, size_t count, DataType type, ReduceOp op) override;
  void all_gather(const void* in, void* out, size_t count, DataType type) override;
  void all_to_all(const void* in, std::span<const size_t> in_counts, void* out, std::span<const size_t> out_counts,
                  DataType type) override;
  void send(const void* data, size_t bytes, int peer, uint32_t tag) override;
  void recv(void* data, size_t bytes, int peer, uint32_t tag) override;
  void abort(const std::string& reason) override;

 private:
  // The next operation in order. Call with the mutex held.
  Operation next(CollectiveKind kind, DataType type, uint64_t bytes, ReduceOp op = ReduceOp::kSum, int root = 0);
  void check_peer(int peer, const char* what) const;

  const Places places_;
  const GroupOptions options_;
  Store* const store_;
  const std::string key_;
  const std::unique_ptr<LocalTeam> team_;
  std::unique_ptr<LocalMail> mail_;
  std::mutex order_;  // one collective at a time
  uint64_t sequence_ = 0;
  std::mutex window_order_;
  uint64_t windows_ = 0;
};

}  // namespace starling
