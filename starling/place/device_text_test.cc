#include "starling/place/device_text.h"

#include <gtest/gtest.h>

#include <cmath>

#include "starling/base/error.h"

namespace starling {
namespace {

TEST(ParseDevices, ReadsSpeedsAndMemories) {
  const std::vector<PlacementDevice> devices = parse_devices("1,0.5:512MB,2e-1:1.5GB,3:7kB");
  ASSERT_EQ(devices.size(), 4u);
  EXPECT_EQ(devices[0].speed, 1);
  EXPECT_TRUE(std::isinf(devices[0].memory_bytes));
  EXPECT_EQ(devices[1].speed, 0.5);
  EXPECT_EQ(devices[1].memory_bytes, 512e6);
  EXPECT_EQ(devices[2].memory_bytes, 1.5e9);
  EXPECT_EQ(devices[3].memory_bytes, 7e3);
  EXPECT_EQ(devices[3].name, "device 3");
}

TEST(ParseDevices, RefusesOtherTexts) {
  for (const char* text : {"", ",", "1,", "0", "-1", "nan", "inf", "1x", "1:", "1:4", "1:4TB", "1:0GB",
                           "1:-1GB", "1 ,2", "1:1GBx", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"})
    EXPECT_THROW(parse_devices(text), ConfigError) << text;
}

}  // namespace
}  // namespace starling
