#include "starling/run/folder/resume_command.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

class ResumeCommand : public testing::Test {
 protected:
  std::string command(const std::vector<std::string>& argv) const {
    return resume_hint(argv, spec_, environment_, "runs/a b").command;
  }
  RunSpec spec_;
  Environment environment_;
};

TEST_F(ResumeCommand, NamesTheRunFolderOnceAndBeforeOwnArguments) {
  EXPECT_EQ(command({"./app", "-n", "2"}), "./app -n 2 --run-dir 'runs/a b'");
  EXPECT_EQ(command({"./app", "--run-dir", "x", "--lr=0.1", "--run-dir=y", "--", "--run-dir", "z", "it's"}),
            "./app --lr=0.1 --run-dir 'runs/a b' -- --run-dir z 'it'\\''s'");
  EXPECT_EQ(command({"./app", "--set", "model.widths=[1,2]"}),
            "./app --set 'model.widths=[1,2]' --run-dir 'runs/a b'");
}

TEST_F(ResumeCommand, ResumesAlsoARunThatBeganAnew) {
  spec_.run.resume = "never";
  EXPECT_EQ(command({"./app", "--resume", "never"}), "./app --run-dir 'runs/a b' --resume auto");
  EXPECT_EQ(command({"./app", "-c", "never.toml"}), "./app -c never.toml --run-dir 'runs/a b' --resume auto");
}

TEST_F(ResumeCommand, AnotherProgramsRanksAreCounted) {
  spec_.train.ranks = 3;
  environment_.identity.origin = ProcessOrigin::kLauncher;
  EXPECT_EQ(command({"./app"}), "./app -n 3 --run-dir 'runs/a b'");  // starling launch -n 3 ./app
  EXPECT_EQ(command({"./app", "-n3"}), "./app -n3 --run-dir 'runs/a b'");
  EXPECT_EQ(command({"./app", "--set", "train.ranks=3"}), "./app --set train.ranks=3 --run-dir 'runs/a b'");
}

TEST_F(ResumeCommand, NamesALauncherThatIsNotOurs) {
  EXPECT_EQ(resume_hint({"./app"}, spec_, environment_, "r").launcher, "");
  environment_.identity.origin = ProcessOrigin::kTorchrun;
  const ResumeHint hint = resume_hint({"./app"}, spec_, environment_, "r");
  EXPECT_EQ(hint.launcher, "torchrun");
  EXPECT_EQ(hint.command, "./app --run-dir r");
}

}  // namespace
}  // namespace starling
