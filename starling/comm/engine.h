// Engine: the Group. Orders the calls, numbers them, and hands each to the collectives of shared memory (one host) or to
// the hierarchical ones (several); carries a fault of one transport to the others.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "starling/comm/choice.h"
#include "starling/comm/collective/hierarchical.h"
#include "starling/comm/group.h"
#include "starling/comm/local_mail.h"
#include "starling/comm/local_team.h"
#include "starling/comm/places.h"
#include "starling/comm/remote_mail.h"
#include "starling/comm/remote_peers.h"
#include "starling/net/store.h"

namespace starling {

struct EngineParts {
  Places places;
  GroupOptions options;
  Store* store = nullptr;  // null: one rank
  std::string key;         // prefix of store keys
  std::string tuning;      // of rank 0 (GroupOptions)
  std::string name;        // of the group
  std::unique_ptr<LocalTeam> team;
  std::shared_ptr<Window> rings;  // null: one local rank
  // By rank; empty: one host. endpoints of the first are for collectives, of the second for send and recv.
  std::vector<std::unique_ptr<Endpoint>> collective_endpoints;
  std::vector<std::unique_ptr<Endpoint>> mail_endpoints;
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
  LocalSync* local_sync() override;

  void barrier() override;
  void broadcast(void* data, size_t count, DataType type, int root) override;
  void all_reduce(void* data, size_t count, DataType type, ReduceOp op) override;
  void reduce_scatter(const void* in, void* out, size_t count, DataType type, ReduceOp op) override;
  void all_gather(const void* in, void* out, size_t count, DataType type) override;
  void all_to_all(const void* in, std::span<const size_t> in_counts, void* out,
                  std::span<const size_t> out_counts, DataType type) override;
  void send(const void* data, size_t bytes, int peer, uint32_t tag) override;
  void recv(void* data, size_t bytes, int peer, uint32_t tag) override;
  bool try_recv(void* data, size_t bytes, int peer, uint32_t tag) override;
  void abort(const std::string& reason) override;

 private:
  // Numbers the operation and carries it out in its turn: body(operation, hierarchy or null on one host).
  template <typename Body>
  void carry_out(Operation operation, const Body& body);
  void connect(EngineParts& parts);
  void measure_link();
  Hierarchy hierarchy() const { return {places_, *team_, lane_.get(), lanes_, *everyone_, choice_}; }
  void check_peer(int peer, const char* what) const;
  bool is_local(int peer) const { return places_.host_of[peer] == places_.my_host(); }

  const Places places_;
  const GroupOptions options_;
  Store* const store_;
  const std::string key_;
  const std::unique_ptr<LocalTeam> team_;
  std::unique_ptr<LocalMail> local_mail_;  // null: no other rank on this host
  std::shared_ptr<FailureNotes> notes_;    // null: one host
  std::unique_ptr<RemotePeers> peers_;     // these four null: one host
  std::unique_ptr<RemoteMail> remote_mail_;
  std::unique_ptr<RemoteTeam> everyone_;
  std::unique_ptr<RemoteTeam> lane_;  // null on ranks beyond the last lane, too
  int lanes_ = 1;
  Choice choice_;
  std::unique_ptr<LocalSync> recorded_sync_;  // null: the team's own
  int recorded_group_ = -1;                   // of the recorder; -1: nothing is recorded
  std::mutex order_;                          // one collective at a time
  uint64_t sequence_ = 0;
  std::mutex window_order_;
  uint64_t windows_ = 0;
};

}  // namespace starling
