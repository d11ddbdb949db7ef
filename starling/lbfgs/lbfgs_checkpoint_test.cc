// Damages the text file of a checkpoint.
#include "starling/lbfgs/lbfgs_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

LbfgsManifest some_manifest() {
  LbfgsManifest manifest{
      .elements = 7, .memory = 5, .ridge = 0.01, .samples = 0x123456789abcdef, .ranks = 2, .state = {}};
  manifest.state.iterations = 4;
  manifest.state.evaluations = 6;
  manifest.state.objective = 0.25;
  manifest.state.largest_gradient = 0.125;
  manifest.state.least_objective = 0.25;
  manifest.state.least_gradient = 0.125;
  manifest.state.fruitless = 1;
  manifest.state.exhausted = false;
  manifest.state.slots = {2, 0, 1};
  return manifest;
}

// Returns the message of the Error of read_manifest(), or an empty text.
std::string refusal(const std::string& folder) {
  try {
    read_manifest(folder);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
    return error.what();
  }
  return {};
}

// Replaces the first `from` of a text, which must have one.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// The file that a program of format 2 has written.
const std::string kFormat2 =
    "starling lbfgs checkpoint 2\nelements 7\nmemory 5\nridge 0x1.47ae147ae147bp-7\nsamples "
    "123456789abcdef\nranks 2\niteration 4\nevaluations 6\nobjective 0x1p-2\nlargest_gradient 0x1p-3\n"
    "least_objective 0x1p-2\nleast_gradient 0x1p-3\nfruitless 1\nexhausted 0\nslots [2 0 1]\nend\n";

void expect_some_manifest(const std::string& folder) {
  const auto found = read_manifest(folder);
  ASSERT_TRUE(found);
  const LbfgsManifest expected = some_manifest();
  EXPECT_EQ(found->elements, 7);
  EXPECT_EQ(found->memory, 5);
  EXPECT_EQ(found->ridge, 0.01);
  EXPECT_EQ(found->samples, expected.samples);
  EXPECT_EQ(found->ranks, 2);
  EXPECT_EQ(found->state.iterations, 4);
  EXPECT_EQ(found->state.evaluations, 6);
  EXPECT_EQ(found->state.objective, 0.25);
  EXPECT_EQ(found->state.largest_gradient, 0.125);
  EXPECT_EQ(found->state.fruitless, 1);
  EXPECT_FALSE(found->state.exhausted);
  EXPECT_THAT(found->state.slots, ElementsAre(2, 0, 1));
}

TEST(LbfgsManifest, IsReadAsItWasWritten) {
  const TempDir dir;
  write_manifest(dir.path(), some_manifest());
  expect_some_manifest(dir.path());
}

TEST(LbfgsManifest, AnEarlierFormatHasNoHash) {
  const TempDir dir;
  write_bytes(dir.file("lbfgs.txt"), kFormat2);
  expect_some_manifest(dir.path());
}

// A changed number would be believed, because the parts are whole.
TEST(LbfgsManifest, EveryChangedBitIsRefused) {
  const TempDir dir;
  write_manifest(dir.path(), some_manifest());
  const std::string path = dir.file("lbfgs.txt"), text = read_bytes(path);
  for (size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      write_bytes(path, changed);
      EXPECT_THAT(refusal(dir.path()), HasSubstr("is damaged")) << "bit " << bit << " of byte " << at;
    }
  }
}

TEST(LbfgsManifest, ACutOrLongerTextIsRefused) {
  const TempDir dir;
  write_manifest(dir.path(), some_manifest());
  const std::string path = dir.file("lbfgs.txt"), text = read_bytes(path);
  for (size_t size = 0; size < text.size(); ++size) {
    write_bytes(path, text.substr(0, size));
    EXPECT_THAT(refusal(dir.path()), HasSubstr("is damaged")) << size;
  }
  write_bytes(path, text + "end\n");
  EXPECT_THAT(refusal(dir.path()), HasSubstr("is damaged"));
}

TEST(LbfgsManifest, NumbersThatNoRunWritesAreRefused) {
  const TempDir dir;
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"evaluations 6", "evaluations -7"},
                                                        {"iteration 4", "iteration -1"},
                                                        {"iteration 4", "iteration 9223372036854775807"},
                                                        {"evaluations 6", "evaluations 9223372036854775807"},
                                                        {"objective 0x1p-2", "objective nan"},
                                                        {"largest_gradient 0x1p-3", "largest_gradient inf"},
                                                        {"exhausted 0", "exhausted 2"},
                                                        {"fruitless 1", "fruitless -1"},
                                                        {"[2 0 1]", "[2 2 2]"},
                                                        {"[2 0 1]", "[9 9 9]"},
                                                        {"elements 7", "elements -7"},
                                                        {"end\n", "end\nmore\n"}}) {
    write_bytes(dir.file("lbfgs.txt"), replaced(kFormat2, from, to));
    EXPECT_THAT(refusal(dir.path()), HasSubstr("is damaged")) << to;
  }
}

// Reading a folder fails after it was opened, as reading a file of a damaged disk does.
TEST(LbfgsManifest, OneThatCannotBeReadIsAnErrorWithItsPath) {
  const TempDir folder;
  std::filesystem::create_directory(folder.path() / "lbfgs.txt");
  EXPECT_THAT(refusal(folder.path().string()),
              testing::HasSubstr("lbfgs.txt: cannot be opened or read: Is a directory"));
}

}  // namespace
}  // namespace starling
