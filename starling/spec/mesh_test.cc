#include "starling/spec/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/base/error.h"

namespace starling {
namespace {

TEST(Mesh, NamedAxesAndTheRestIsReplicas) {
  EXPECT_EQ(parse_mesh("", 4), (MeshSpec{4, 1, 1}));
  EXPECT_EQ(parse_mesh("stage=2", 4), (MeshSpec{2, 2, 1}));
  EXPECT_EQ(parse_mesh("tensor=2,replica=1,stage=4", 8), (MeshSpec{1, 4, 2}));
}

TEST(Mesh, NamesAtLeastSoManyRanks) {
  EXPECT_EQ(ranks_named(""), 1);
  EXPECT_EQ(ranks_named("stage=50,replica=16"), 800);
  EXPECT_THROW(ranks_named("depth=2"), ConfigError);
}

TEST(Mesh, MustMultiplyToTheRanks) {
  EXPECT_THROW(parse_mesh("replica=2,stage=2", 2), ConfigError);
  EXPECT_THROW(parse_mesh("stage=3", 4), ConfigError);
  EXPECT_THROW(parse_mesh("replica=2", 4), ConfigError);
}

TEST(Mesh, RefusesWhatIsNoAxis) {
  for (const char* text :
       {"stage", "stage=", "stage=0", "stage=-1", "stage=2x", "depth=2", "stage=2,,tensor=1"})
    EXPECT_THROW(parse_mesh(text, 2), ConfigError) << text;
}

TEST(Mesh, PlacesHaveTheTensorAxisInside) {
  using testing::ElementsAre;
  const MeshPlace place = place_of({2, 3, 2}, 9);  // (1 · 3 + 1) · 2 + 1
  EXPECT_EQ(place.replica, 1);
  EXPECT_EQ(place.stage, 1);
  EXPECT_EQ(place.tensor, 1);
  EXPECT_THAT(place.replica_ranks, ElementsAre(3, 9));
  EXPECT_THAT(place.stage_ranks, ElementsAre(7, 9, 11));
  EXPECT_THAT(place.tensor_ranks, ElementsAre(8, 9));
  EXPECT_THAT(place.model_ranks, ElementsAre(6, 7, 8, 9, 10, 11));
}

TEST(Mesh, TheGroupsOfAnAxisDivideTheRanks) {
  const MeshSpec mesh{2, 2, 2};
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const MeshPlace own = place_of(mesh, rank);
    EXPECT_EQ(own.replica_ranks[own.replica], rank);
    EXPECT_EQ(own.stage_ranks[own.stage], rank);
    EXPECT_EQ(own.tensor_ranks[own.tensor], rank);
    for (const int peer : own.replica_ranks) EXPECT_EQ(place_of(mesh, peer).replica_ranks, own.replica_ranks);
    for (const int peer : own.stage_ranks) EXPECT_EQ(place_of(mesh, peer).stage_ranks, own.stage_ranks);
    for (const int peer : own.tensor_ranks) EXPECT_EQ(place_of(mesh, peer).tensor_ranks, own.tensor_ranks);
    for (const int peer : own.model_ranks) EXPECT_EQ(place_of(mesh, peer).model_ranks, own.model_ranks);
  }
}

}  // namespace
}  // namespace starling
