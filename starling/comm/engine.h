// Engine: the implementation of Group over shared memory and connections.
//
// An Engine numbers the calls and carries them out in order. On one host it uses the collectives of shared
// memory, on several hosts the hierarchical collectives. If one transport fails, the Engine ends the waits on
// the other one.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "starling/comm/choice/choice.h"
#include "starling/comm/collective/hierarchical.h"
#include "starling/comm/group.h"
#include "starling/comm/host/local_messages.h"
#include "starling/comm/host/local_team.h"
#include "starling/comm/network/places.h"
#include "starling/comm/network/remote_messages.h"
#include "starling/comm/network/remote_peers.h"
#include "starling/comm/started_calls.h"
#include "starling/net/store/store.h"

namespace starling {

// EngineParts is everything that an Engine is made of. make_group (comm/bootstrap.h) fills it in.
struct EngineParts {
  Places places;
  GroupOptions options;
  Store* store = nullptr;      // null: the group has one rank
  std::string key;             // the prefix of the group's store keys
  std::string tuning;          // rank 0's GroupOptions::tuning
  std::string name;            // the name of the group
  std::vector<int> job_ranks;  // GroupSetup::world_ranks; empty: a rank has the same number in the job
  std::unique_ptr<LocalTeam> team;
  std::shared_ptr<Window> rings;  // null: there is one local rank
  // The connections by rank: one set for collectives, one for send and recv. Both are empty on one host.
  std::vector<std::unique_ptr<Endpoint>> collective_endpoints;
  std::vector<std::unique_ptr<Endpoint>> message_endpoints;
};

// Engine implements Group. The header comm/group.h states the contract of its calls.
class Engine final : public Group {
 public:
  // Connects the parts. If the choice of algorithms needs the cost of the link, the constructor measures the
  // link. The measurement is a collective over all ranks.
  explicit Engine(EngineParts parts);
  ~Engine() override;

  int rank() const override { return places_.rank; }
  int size() const override { return places_.size(); }
  int job_rank(int rank) const override { return job_ranks_.empty() ? rank : job_ranks_.at(rank); }
  int local_rank() const override { return team_->rank(); }
  std::vector<int> local_ranks() const override { return places_.local(); }
  std::string host_of(int rank) const override { return places_.host_names.at(rank); }
  TrafficCount traffic() const override;
  std::shared_ptr<Window> allocate_window(size_t bytes) override;
  LocalSync* local_sync() override;

  WorkPtr start(const Call& call) override;
  void run(const Call& call) override;
  bool try_recv(void* data, size_t bytes, int peer, uint32_t tag) override;
  void abort(const std::string& reason) override;

 private:
  // Tells the other ranks of a failure, as far as this rank can do so now.
  void spread(const Failure& failure);
  // Executes the call and blocks until it is done.
  void execute(const Call& call, Progress progress);
  // Waits for the collective in progress, numbers the operation and calls body(operation, hierarchy).
  // `hierarchy` is null on one host.
  template <typename Body>
  void carry_out(Operation operation, Progress progress, const Body& body);
  void collective(const Call& call, const Operation& operation, const Hierarchy* hosts);
  void all_to_all(const Call& call, Progress progress);
  void send(const Call& call, Progress progress);
  void recv(const Call& call, Progress progress);
  void connect(EngineParts& parts);
  void measure_link();
  Hierarchy hierarchy() const {
    return {places_, *team_, lane_.get(), lanes_, *everyone_, choice_, options_.all_reduce};
  }
  WaitPolicy waiting(Progress progress) const {
    return progress == Progress::kBackground ? WaitPolicy::beside_computation() : team_->policy();
  }
  bool is_local(int peer) const { return places_.host_of[peer] == places_.my_host(); }

  const Places places_;
  const GroupOptions options_;
  Store* const store_;
  const std::string key_;
  const std::vector<int> job_ranks_;
  const std::unique_ptr<LocalTeam> team_;
  std::unique_ptr<LocalMessages> local_messages_;  // null: no other rank on this host
  std::shared_ptr<FailureNotes> notes_;            // null: one host
  std::unique_ptr<RemotePeers> peers_;             // null on one host, as are the next three
  std::unique_ptr<RemoteMessages> remote_messages_;
  std::unique_ptr<RemoteTeam> everyone_;
  std::unique_ptr<RemoteTeam> lane_;  // null also on ranks beyond the last lane
  int lanes_ = 1;
  Choice choice_;
  std::unique_ptr<LocalSync> recorded_sync_;  // null: the counters of the team are used
  int recorded_group_ = -1;                   // the group's number in the recorder; -1: nothing is recorded
  std::mutex order_;                          // one collective at a time
  uint64_t sequence_ = 0;
  std::mutex window_order_;
  uint64_t windows_ = 0;
  StartedCalls calls_;  // the last member, because its threads use all others
};

}  // namespace starling
