// AD-PSGD: asynchronous decentralized parallel SGD, by pairs of ranks.
//
//   one step of an active rank i:  g_i ← gradient at x_i.
//                                  Meanwhile, with a random passive neighbor j:  x_i, x_j ← (x_i + x_j) / 2.
//                                  x_i ← x_i − lr · U(g_i).
//   one step of a passive rank j:  g_j ← gradient at x̂_j, a copy of x_j.
//                                  x_j ← x_j − lr · U(g_j).
//
// Source: Lian, Zhang, Zhang, Liu, "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML
// 2018, arXiv 1710.06952, algorithm 1. A gradient is applied to weights that have been averaged since it was
// computed. U is the update rule, whose states belong to the rank. If gradients are zero, an average keeps
// the mean of all ranks, and every rank approaches the mean. A step moves the mean by 1/p of the step of the
// rank.
//
// The graphs are those of gossip.h that are bipartite: `ring` and `torus`, if each of their cycles is even.
// The ranks of rank 0's side are active, and the ranks of the other side are passive.
//
// Messages: in each step, an active rank sends the number of the step (8 bytes) and its weights to one
// passive neighbor. It gets the neighbor's earlier weights. The number 0 says that the active rank has
// finished.
//
// Deadlock: an active rank waits for the answer of a passive rank. The thread of a passive rank that answers
// waits for no rank, except for the rest of a message that has begun to arrive. So there is no cycle of ranks
// that wait. If both ranks of a pair could ask, both could wait for the answer of the other one.
// meetings_test.cc explores all interleavings of small graphs.
//
// Meetings: the agreed model is the mean of the x of all ranks after one common step. The ranks meet by
// messages before they average (parallel/meetings.h), because a slow rank may be late by more than the
// timeout of a collective. Between meetings no rank waits for a slower one.
//
// Bytes: a step of an active rank sends |W| + 8 bytes, and the answer has |W| bytes. A meeting sends 16 bytes
// per rank to rank 0 and back. Memory: one further range on an active rank, two on a passive rank.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "starling/comm/work.h"
#include "starling/parallel/gossip.h"
#include "starling/parallel/meetings.h"
#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// Returns which ranks of a graph are active. Neighbors are never both active or both passive, and rank 0 is
// active. Errors: ConfigError if the graph is not bipartite.
std::vector<bool> active_ranks_of(GossipGraph graph, int size);

// Returns the neighbor with which an active rank averages in a step. All ranks compute equal results.
// `neighbors` is not empty.
int chosen_neighbor(const std::vector<int>& neighbors, uint64_t seed, int rank, int64_t step);

// The exchange "ad-psgd".
//
// Threads: one thread makes all calls, the computing thread. A passive rank has a second thread from the
// constructor to the destructor, the answering thread. It alone receives from active neighbors with
// kExchangeTag, and answers them. Both threads of a passive rank read and write x_j under mutex_, and neither
// sends or receives a message while it holds mutex_. An active rank starts its messages in begin_step(). The
// threads of the group carry them out while the computing thread computes, and update() waits for them.
class AdPsgd final : public ReplicaStrategy {
 public:
  // Collective over the group. All ranks start with the same parameters. The group and the clock must outlive
  // this object. Errors: ConfigError if the graph is not bipartite.
  AdPsgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, GossipGraph graph,
         Group& group, const Clock& clock);
  // Active: waits for the answer to a started message, and tells its neighbors that it has finished. Passive:
  // answers until all its neighbors have finished or a rank is lost. While an exception propagates, a passive
  // rank stops at once.
  ~AdPsgd() override;

  // Active: sends the parameters to a neighbor, without waiting. Passive: takes x_j as the parameters of the
  // step. A passive rank answers from its first begin_step() on, so load_state() must come before it.
  void begin_step(const Step& step) override;
  // Returns four statistics. exchanges is the number of pairs that have averaged, over all ranks.
  // active_ranks is a number of ranks. largest_lead is the largest number of steps between the ranks of a
  // pair when they averaged. disagreement is the present ‖x − mean‖ over all ranks. Collective.
  StrategyStats strategy_stats() override;

 protected:
  bool advance(StepReport& report) override;
  at::Tensor agreed() override;

 private:
  void request();
  void finish_request();
  void update_passive();
  bool stops_now();
  void meet();
  void await_messages();
  bool take_messages();
  void rethrow_failure();
  // The functions of the answering thread.
  void answer_all();
  void answer(int peer, int64_t step);

  const bool active_;
  const std::vector<int> neighbors_;
  const int active_ranks_;
  Meetings meetings_;
  int64_t met_at_ = -1;  // the step of the last meeting
  at::Tensor heard_;     // active: the answer; passive: a message, and the answer to it
  // Of an active rank: the messages of the step. Null if there are none.
  int64_t head_ = 0;
  WorkPtr sends_head_, sends_, receives_;
  // Of a passive rank. mutex_ guards the members below it.
  std::mutex mutex_;
  std::condition_variable changed_;
  at::Tensor x_;              // x_j; the replica has x̂_j
  bool open_ = false;         // x_ has a value, so the answering thread may average
  bool closing_ = false;      // this rank makes no further step
  bool stopping_ = false;     // the answering thread must end now
  bool answers_now_ = false;  // the answering thread sends an answer
  int64_t own_step_ = 0;      // the step that this rank computes
  int64_t exchanges_ = 0;
  int64_t largest_lead_ = 0;
  std::exception_ptr failure_;  // what ended the answering thread
  std::thread answering_;       // not guarded; set on passive ranks
};

}  // namespace starling
