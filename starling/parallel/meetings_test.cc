// The protocol of AD-PSGD cannot deadlock: a search visits every interleaving of the threads of two to four
// ranks on small graphs. The search runs the real Meetings. What surrounds them in parallel/ad_psgd.cc is
// modeled by the functions of `Model`: weights are messages without contents, and the mutex of a rank is a
// flag. On graphs whose ranks are active and passive at once, the search finds deadlocks.
#include "starling/parallel/meetings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

namespace starling {
namespace {

constexpr int kMost = 4;  // ranks

// A rank that asks all ranks to stop, from its step `step` on.
struct StopRequest {
  int rank = -1;
  int step = 0;
};

struct Settings {
  std::vector<std::vector<int>> asks;  // by rank: the ranks that it may ask for an average; passive: none
  int steps = 1;
  StopRequest request;
  int ranks() const { return static_cast<int>(asks.size()); }
};

enum class Phase : int { kBegin, kAwaitAnswer, kUpdate, kUpdating, kAgree, kArrive, kMeet, kEnd };
// The answering thread.
enum class Answer : int { kIdle, kHeard, kAverages, kEnded };

struct RankModel {
  explicit RankModel(const Meetings& fresh) : meetings(fresh) {}
  Phase phase = Phase::kBegin;
  Answer answer = Answer::kIdle;
  int step = 1;
  int asked = -1;       // the rank whose answer it awaits
  int answers = -1;     // the rank that the thread answers
  int finished = 0;     // ranks that will ask no more
  bool locked = false;  // some thread of the rank holds its weights
  int meets = 0;        // meetings that are over
  std::vector<int> stops;
  Meetings meetings;
};

struct State {
  std::vector<RankModel> ranks;
  // By sender and receiver. A request is 'r', and 'f' says that the sender has finished.
  std::array<std::array<std::string, kMost>, kMost> requests;
  std::array<std::array<int, kMost>, kMost> answers{};
  std::array<std::array<std::deque<MeetingMessage>, kMost>, kMost> meetings;

  std::string text() const {
    std::string text;
    for (const RankModel& r : ranks)
      text += fmt::format("{} {} {} {} {} {} {} {} {}|{}/", static_cast<int>(r.phase),
                          static_cast<int>(r.answer), r.step, r.asked, r.answers, r.finished,
                          r.locked ? 1 : 0, r.meets, fmt::join(r.stops, ","), r.meetings.state());
    for (size_t from = 0; from < ranks.size(); ++from) {
      for (size_t to = 0; to < ranks.size(); ++to) {
        text += fmt::format("{}{}", requests[from][to], answers[from][to]);
        for (const MeetingMessage& m : meetings[from][to])
          text += fmt::format(",{}:{}", static_cast<int>(m.kind), m.step);
        text += ';';
      }
    }
    return text;
  }
};

// What a search has found.
struct Found {
  size_t states = 0, ends = 0;
  int deadlocks = 0;
  std::string fault;  // the first violation of a promise of Meetings
};

class Search {
 public:
  explicit Search(Settings settings) : settings_(std::move(settings)), askers_(settings_.ranks(), 0) {
    for (const auto& asks : settings_.asks) {
      for (const int to : asks) ++askers_[to];
    }
  }

  Found run() {
    State first;
    for (int r = 0; r < settings_.ranks(); ++r) {
      first.ranks.emplace_back(Meetings(r, settings_.ranks()));
      if (askers_[r] == 0) first.ranks.back().answer = Answer::kEnded;
    }
    visit(first);
    while (!open_.empty() && found_.fault.empty()) {
      const State state = std::move(open_.back());
      open_.pop_back();
      moved_ = false;
      for (int r = 0; r < settings_.ranks(); ++r) {
        move_thread(state, r);
        move_rank(state, r);
      }
      if (!moved_) check_end(state);
    }
    found_.states = seen_.size();
    return found_;
  }

 private:
  void visit(State state) {
    moved_ = true;
    if (seen_.insert(state.text()).second) open_.push_back(std::move(state));
  }

  // Adds the state after `change` of rank `r`.
  void step(const State& state, int r, const std::function<void(State&, RankModel&)>& change) {
    State next = state;
    change(next, next.ranks[r]);
    visit(std::move(next));
  }

  // The answering thread: AdPsgd::answer_all() and answer().
  void move_thread(const State& state, int r) {
    const RankModel& rank = state.ranks[r];
    switch (rank.answer) {
      case Answer::kIdle:
        for (int from = 0; from < settings_.ranks(); ++from) {
          if (!state.requests[from][r].empty()) hear(state, r, from);
        }
        return;
      case Answer::kHeard:
        if (rank.locked) return;
        return step(state, r, [](State&, RankModel& next) {
          next.locked = true;
          next.answer = Answer::kAverages;
        });
      case Answer::kAverages:
        return step(state, r, [&](State& all, RankModel& next) {
          next.locked = false;
          next.answer = Answer::kIdle;
          ++all.answers[r][next.answers];
          next.answers = -1;
        });
      case Answer::kEnded:
        return;
    }
  }

  void hear(const State& state, int r, int from) {
    step(state, r, [&](State& all, RankModel& next) {
      const char what = all.requests[from][r].front();
      all.requests[from][r].erase(0, 1);
      if (what == 'r') {
        next.answers = from;
        next.answer = Answer::kHeard;
      } else if (++next.finished == askers_[r]) {
        next.answer = Answer::kEnded;
      }
    });
  }

  // The computing thread. A rank that asks holds its weights until it has averaged them.
  void move_rank(const State& state, int r) {
    const RankModel& rank = state.ranks[r];
    switch (rank.phase) {
      case Phase::kBegin:
        return begin(state, r);
      case Phase::kAwaitAnswer:
        if (state.answers[rank.asked][r] == 0) return;
        return step(state, r, [&](State& all, RankModel& next) {
          --all.answers[next.asked][r];
          next.asked = -1;
          next.locked = false;
          next.phase = Phase::kUpdate;
        });
      case Phase::kUpdate:
        if (rank.locked) return;
        return step(state, r, [](State&, RankModel& next) {
          next.locked = true;
          next.phase = Phase::kUpdating;
        });
      case Phase::kUpdating:
        return step(state, r, [&](State&, RankModel& next) {
          next.locked = false;
          next.meetings.finish_step(next.step, asks(r, next));
          next.phase = Phase::kAgree;
        });
      case Phase::kArrive:
        return step(state, r, [](State&, RankModel& next) {
          next.meetings.arrive(next.step);
          next.phase = Phase::kMeet;
        });
      case Phase::kAgree:
      case Phase::kMeet:
        return await_messages(state, r);
      case Phase::kEnd:
        return;
    }
  }

  bool asks(int r, const RankModel& rank) const {
    return r == settings_.request.rank && rank.step >= settings_.request.step && rank.stops.empty();
  }

  void begin(const State& state, int r) {
    if (settings_.asks[r].empty())
      return step(state, r, [](State&, RankModel& next) { next.phase = Phase::kUpdate; });
    if (state.ranks[r].locked) return;
    for (const int peer : settings_.asks[r]) {
      step(state, r, [&](State& all, RankModel& next) {
        next.locked = true;
        next.asked = peer;
        all.requests[r][peer] += 'r';
        next.phase = Phase::kAwaitAnswer;
      });
    }
  }

  // AdPsgd::await_messages().
  void await_messages(const State& state, int r) {
    const RankModel& rank = state.ranks[r];
    if (rank.meetings.has_outgoing())
      return step(state, r, [&](State& all, RankModel& next) {
        for (const Meetings::Outgoing& out : next.meetings.take_outgoing())
          all.meetings[r][out.to].push_back(out.message);
      });
    for (int from = 0; from < settings_.ranks(); ++from) {
      if (state.meetings[from][r].empty()) continue;
      step(state, r, [&](State& all, RankModel& next) {
        next.meetings.receive(from, all.meetings[from][r].front());
        all.meetings[from][r].pop_front();
      });
    }
    if (!rank.meetings.may_go_on()) return;
    if (rank.phase == Phase::kMeet) check_meeting(state, r);
    step(state, r, [&](State& all, RankModel& next) { go_on(all, r, next); });
  }

  void go_on(State& all, int r, RankModel& next) {
    if (next.phase == Phase::kAgree) {
      const bool stops = next.meetings.stops_after(next.step);
      if (stops) next.stops.push_back(next.step);
      if (stops || next.step == settings_.steps) {
        next.phase = Phase::kArrive;
        return;
      }
    } else {
      ++next.meets;
      if (next.step == settings_.steps) {
        for (const int peer : settings_.asks[r]) all.requests[r][peer] += 'f';
        next.phase = Phase::kEnd;
        return;
      }
    }
    ++next.step;
    next.phase = Phase::kBegin;
  }

  // Rank `r` leaves a meeting. The first rank that leaves must find all ranks there, and no average on its
  // way.
  void check_meeting(const State& state, int r) {
    const RankModel& own = state.ranks[r];
    for (const RankModel& other : state.ranks) {
      if (other.meets > own.meets) return;
    }
    for (const RankModel& other : state.ranks) {
      if (other.phase != Phase::kMeet || other.step != own.step || other.answer == Answer::kAverages)
        found_.fault = "a rank has left a meeting before all ranks were there: " + state.text();
    }
    for (int from = 0; from < settings_.ranks(); ++from) {
      for (int to = 0; to < settings_.ranks(); ++to) {
        if (!state.requests[from][to].empty() || state.answers[from][to] > 0)
          found_.fault = "a message with weights was on its way in a meeting: " + state.text();
      }
    }
  }

  // No thread can move.
  void check_end(const State& state) {
    ++found_.ends;
    const auto ended = [](const RankModel& r) {
      return r.phase == Phase::kEnd && r.answer == Answer::kEnded;
    };
    if (!std::all_of(state.ranks.begin(), state.ranks.end(), ended)) {
      ++found_.deadlocks;
      return;
    }
    for (const RankModel& r : state.ranks) {
      const bool late = r.meetings.stops_after(settings_.steps + 1);  // the run has ended before
      if (r.stops != state.ranks[0].stops) found_.fault = "ranks stopped after different steps";
      if (settings_.request.rank >= 0 && !late && r.stops.size() != 1)
        found_.fault = "a request to stop was lost, or obeyed twice: " + state.text();
      if (r.stops.size() == 1 && r.stops[0] < settings_.request.step)
        found_.fault = "ranks stopped before they were asked to";
    }
  }

  const Settings settings_;
  std::vector<int> askers_;  // by rank: how many ranks may ask it
  std::vector<State> open_;
  std::unordered_set<std::string> seen_;
  bool moved_ = false;
  Found found_;
};

struct NamedGraph {
  const char* name;
  std::vector<std::vector<int>> asks;
  int steps;
};

const std::vector<NamedGraph>& bipartite() {
  static const std::vector<NamedGraph> kGraphs = {{"pair", {{1}, {}}, 4},
                                                  {"passive center", {{1}, {}, {1}}, 2},
                                                  {"active center", {{1, 2}, {}, {}}, 2},
                                                  {"ring of four", {{1, 3}, {}, {1, 3}, {}}, 1}};
  return kGraphs;
}

TEST(Meetings, NoInterleavingOfABipartiteGraphDeadlocks) {
  for (const NamedGraph& graph : bipartite()) {
    for (int rank = -1; rank < static_cast<int>(graph.asks.size()); ++rank) {
      const Found found = Search({graph.asks, graph.steps, {rank, 1}}).run();
      EXPECT_EQ(found.fault, "") << graph.name << ", rank " << rank << " asks";
      EXPECT_EQ(found.deadlocks, 0) << graph.name << ", rank " << rank << " asks";
      EXPECT_GT(found.states, 50u) << graph.name;
      EXPECT_GE(found.ends, 1u) << graph.name;
    }
  }
}

TEST(Meetings, TwoStepsOfARingOfFourDoNotDeadlock) {
  const Found found = Search({{{1, 3}, {}, {1, 3}, {}}, 2, {3, 1}}).run();
  EXPECT_EQ(found.fault, "");
  EXPECT_EQ(found.deadlocks, 0);
  EXPECT_GT(found.states, 100'000u);
}

// Ranks of an odd ring would have to be active and passive at once.
TEST(Meetings, TheSearchFindsTheDeadlocksOfOtherGraphs) {
  const std::vector<std::vector<std::vector<int>>> graphs = {
      {{1}, {2}, {0}}, {{1, 2}, {0, 2}, {0, 1}}, {{1}, {0}}};
  for (const auto& asks : graphs) {
    const Found found = Search({asks, 1, {}}).run();
    EXPECT_EQ(found.fault, "");
    EXPECT_GT(found.deadlocks, 0) << asks.size() << " ranks";
    EXPECT_GT(found.ends, static_cast<size_t>(found.deadlocks)) << "no interleaving went well";
  }
}

// Delivers messages until there are none.
void deliver(std::vector<Meetings>& ranks) {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t from = 0; from < ranks.size(); ++from) {
      for (const Meetings::Outgoing& out : ranks[from].take_outgoing()) {
        ranks[static_cast<size_t>(out.to)].receive(static_cast<int>(from), out.message);
        moved = true;
      }
    }
  }
}

TEST(Meetings, ARankMayAskAgain) {
  std::vector<Meetings> ranks = {Meetings(0, 3), Meetings(1, 3), Meetings(2, 3)};
  for (const int64_t step : {5, 6, 7, 8}) {
    const bool asks = step == 5 || step == 7;
    ranks[0].finish_step(step, false);
    ranks[1].finish_step(step, asks);
    ranks[2].finish_step(step, false);
    deliver(ranks);
    for (const Meetings& rank : ranks) {
      EXPECT_TRUE(rank.may_go_on());
      EXPECT_EQ(rank.stops_after(step), asks) << step;
    }
  }
}

TEST(Meetings, OneRankMeetsNobody) {
  Meetings alone(0, 1);
  alone.finish_step(3, true);
  EXPECT_TRUE(alone.may_go_on());
  EXPECT_TRUE(alone.stops_after(3));
  alone.finish_step(4, false);
  EXPECT_FALSE(alone.stops_after(4));
  alone.arrive(4);
  EXPECT_TRUE(alone.may_go_on());
  EXPECT_TRUE(alone.take_outgoing().empty());
}

}  // namespace
}  // namespace starling
