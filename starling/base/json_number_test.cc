#include "starling/base/json_number.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace starling {
namespace {

using nlohmann::json;

TEST(JsonNumber, ReturnsIntegersThatFit) {
  EXPECT_EQ(integer_of<int>(json::parse("-7")), -7);
  EXPECT_EQ(integer_of<int>(json::parse("2147483647")), 2147483647);
  EXPECT_EQ(integer_of<uint64_t>(json::parse("18446744073709551615")), UINT64_MAX);
  EXPECT_EQ(integer_of<int64_t>(json::parse("-9223372036854775808")), INT64_MIN);
  EXPECT_EQ(integers_of<int64_t>(json::parse("[3, -4]")), (std::vector<int64_t>{3, -4}));
  EXPECT_TRUE(integers_of<int>(json::parse("[]")).empty());
}

TEST(JsonNumber, RefusesWhatDoesNotFit) {
  for (const char* text : {"2147483648", "-2147483649", "1.0", "3e42", "\"1\"", "null", "true", "[1]", "{}"})
    EXPECT_THROW(integer_of<int>(json::parse(text)), json::exception) << text;
  EXPECT_THROW(integer_of<uint64_t>(json::parse("-1")), json::exception);
  EXPECT_THROW(integer_of<int64_t>(json::parse("9223372036854775808")), json::exception);
  for (const char* text : {"[1, 2.5]", "7", "{\"a\":1}", "null"})
    EXPECT_THROW(integers_of<int64_t>(json::parse(text)), json::exception) << text;
}

}  // namespace
}  // namespace starling
