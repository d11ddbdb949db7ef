#include "starling/run/message/print_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/base/error.h"
#include "starling/run/message/exit_status.h"

namespace starling {
namespace {

using testing::HasSubstr;
using testing::Not;

// A message may quote a line of a file, and the line may hold an escape sequence.
TEST(PrintError, ControlCharactersDoNotReachTheTerminal) {
  const DataError error("line 2: \"\x1b[31;1mred\x1b]0;title\x07 2 3\"\nremedy\t§");
  testing::internal::CaptureStderr();
  EXPECT_EQ(print_error(false, error), exit_status(error.code()));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "starling: error: line 2: \"?[31;1mred?]0;title? 2 3\"\nremedy\t§\n");
}

TEST(PrintError, JsonKeepsTheBytesAsEscapes) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  print_error(true, DataError("a \x1b[1m b"));
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("\"message\":\"a \\u001b[1m b\""));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace starling
