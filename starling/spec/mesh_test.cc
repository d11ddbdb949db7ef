#include "starling/spec/mesh.h"

#include <gtest/gtest.h>

#include "starling/base/error.h"

namespace starling {
namespace {

TEST(Mesh, NamedAxesAndTheRestIsReplicas) {
  EXPECT_EQ(parse_mesh("", 4), (MeshSpec{4, 1, 1}));
  EXPECT_EQ(parse_mesh("stage=2", 4), (MeshSpec{2, 2, 1}));
  EXPECT_EQ(parse_mesh("tensor=2,replica=1,stage=4", 8), (MeshSpec{1, 4, 2}));
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

}  // namespace
}  // namespace starling
