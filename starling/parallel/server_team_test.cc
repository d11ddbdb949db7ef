// Teams of workers: what a leader pushes for its team, and what the ranks of a team get.
#include "starling/parallel/server_team.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

TEST(ServerTeam, TheMeanIsOverTheSamplesOfTheTeam) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    run_ranks(2, [&](const ThreadRank& at) {
      const auto group = join_group(*at.store, at.rank, at.size);
      const ServerTeam team(group.get());
      EXPECT_EQ(team.leads(), at.rank == 0);
      at::Tensor gradient =
          at::tensor(at.rank == 0 ? std::vector<double>{1, 8} : std::vector<double>{5, 0}, type);
      PushNotes notes{.lr = 0.5,
                      .loss = at.rank == 0 ? 2.0 : 6.0,
                      .stop = at.rank == 1,
                      .weight = at.rank == 0 ? 1.0 : 3.0};
      team.gather(gradient, notes);
      EXPECT_EQ(gradient[0].item<double>(), 4);  // (1 · 1 + 3 · 5) / 4
      EXPECT_EQ(gradient[1].item<double>(), 2);
      EXPECT_EQ(notes.weight, 4);
      EXPECT_EQ(notes.loss, 5);
      EXPECT_TRUE(notes.stop);
      EXPECT_EQ(notes.lr, 0.5);
    });
  }
}

TEST(ServerTeam, SamplesThatDoNotCountAreLeftOut) {
  run_ranks(2, [&](const ThreadRank& at) {
    const auto group = join_group(*at.store, at.rank, at.size);
    const ServerTeam team(group.get());
    at::Tensor gradient = at::full({3}, 7.0, at::kDouble);
    PushNotes notes{.loss = 1, .weight = 0};
    team.gather(gradient, notes);
    EXPECT_EQ(gradient.abs().sum().item<double>(), 0);
    EXPECT_EQ(notes.weight, 0);
    EXPECT_EQ(notes.loss, 0);
    EXPECT_FALSE(notes.stop);
  });
}

TEST(ServerTeam, EachRankGetsWhatTheLeaderHasPulled) {
  run_ranks(3, [&](const ThreadRank& at) {
    const auto group = join_group(*at.store, at.rank, at.size);
    const ServerTeam team(group.get());
    at::Tensor parameters = at::full({4}, at.rank == 0 ? 2.5 : -1.0, at::kFloat);
    PullReport report;
    if (team.leads())
      report = {.loss = 0.25, .stop = true, .stop_at = 9, .staleness = 3, .updates = 12, .redo = true};
    team.share(parameters, report);
    EXPECT_EQ(parameters.sum().item<double>(), 10);
    EXPECT_EQ(report.loss, 0.25);
    EXPECT_TRUE(report.stop);
    EXPECT_EQ(report.stop_at, 9);
    EXPECT_EQ(report.staleness, 3);
    EXPECT_EQ(report.updates, 12);
    EXPECT_TRUE(report.redo);
  });
}

TEST(ServerTeam, ARankAloneLeadsItselfAndChangesNothing) {
  const ServerTeam team(nullptr);
  EXPECT_TRUE(team.leads());
  at::Tensor gradient = at::full({2}, 3.0, at::kDouble);
  PushNotes notes{.loss = 4, .weight = 5};
  team.gather(gradient, notes);
  EXPECT_EQ(gradient.sum().item<double>(), 6);
  EXPECT_EQ(notes.weight, 5);
  EXPECT_EQ(notes.loss, 4);
  PullReport report{.loss = 6};
  team.share(gradient, report);
  EXPECT_EQ(report.loss, 6);
}

}  // namespace
}  // namespace starling
