#include "starling/commands/interrupted_text.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(InterruptedText, ACheckpointIsNamedAndTheCommandGoesOn) {
  EXPECT_EQ(interrupted_text({.unit = "sweep", .done = 18, .of = 60, .checkpoint = "ck"}),
            "interrupted after sweep 18 of 60; ck has the checkpoint, and the same command goes on");
  EXPECT_EQ(interrupted_text({.unit = "round", .done = 3, .checkpoint = "ck"}),
            "interrupted after round 3; ck has the checkpoint, and the same command goes on");
  EXPECT_EQ(interrupted_text({.checkpoint = "ck"}),
            "interrupted; ck has the checkpoint, and the same command goes on");
}

TEST(InterruptedText, WithoutACheckpointNothingIsSaved) {
  EXPECT_EQ(
      interrupted_text({.unit = "epoch", .done = 2, .of = 9}),
      "interrupted after epoch 2 of 9; nothing was saved: with --checkpoint DIR, the same command would "
      "go on");
  EXPECT_EQ(interrupted_text({.unit = "epoch", .done = 2, .of = 9, .saved = "out has the factors so far"}),
            "interrupted after epoch 2 of 9; out has the factors so far: with --checkpoint DIR, the same "
            "command would go on");
}

// The search for anchors of `topics` comes before its first sweep, and has no checkpoint.
TEST(InterruptedText, ALoopThatHasNotBegunHasNoCheckpoint) {
  EXPECT_EQ(interrupted_text({.unit = "sweep", .done = 0, .of = 9, .checkpoint = "ck"}),
            "interrupted before the end of the first sweep; the same command starts anew");
}

}  // namespace
}  // namespace starling
