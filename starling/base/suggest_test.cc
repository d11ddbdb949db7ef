#include "starling/base/suggest.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(Suggest, FindsTheNearWord) {
  const std::vector<std::string> models = {"mlp", "lenet5", "resnet18", "resnet34", "gpt"};
  EXPECT_EQ(nearest("resnet81", models), "resnet18");
  EXPECT_EQ(nearest("lenet", models), "lenet5");
  EXPECT_EQ(nearest("gtp", models), "gpt");
}

TEST(Suggest, StaysSilentWhenNothingIsNear) {
  EXPECT_EQ(nearest("transformer-xl", {"mlp", "gpt"}), "");
}

}  // namespace
}  // namespace starling
