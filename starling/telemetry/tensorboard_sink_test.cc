#include "starling/telemetry/tensorboard_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(TensorBoard, TheChecksumIsThatOfCastagnoli) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
}

// The bytes are those of TFRecordWriter of TensorFlow for the record "abc".
TEST(TensorBoard, ARecordHasTwoMaskedChecksums) {
  const std::string record = tf_record("abc");
  ASSERT_EQ(record.size(), 19u);
  EXPECT_EQ(record.substr(0, 8), std::string("\x03\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
}

TEST(TensorBoard, AnEventIsAProtocolBuffer) {
  const std::pair<std::string, double> scalars[] = {{"a", 0.5}};
  EXPECT_EQ(scalars_event(1.0, 300, scalars), std::string("\x09\0\0\0\0\0\0\xF0\x3F", 9)  // the time, 1.0
                                                  + std::string("\x10\xAC\x02", 3)        // the step, 300
                                                  + std::string("\x2A\x0A\x0A\x08", 4)  // summary, one value
                                                  + std::string("\x0A\x01"
                                                                "a",
                                                                3)                      // its tag
                                                  + std::string("\x15\0\0\0\x3F", 5));  // its value, 0.5f
}

}  // namespace
}  // namespace starling
