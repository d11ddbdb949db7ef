#include "starling/run/message/print_error.h"

#include <fmt/format.h>

#include <cstdio>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "starling/base/error.h"
#include "starling/run/message/exit_status.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"
#include "starling/telemetry/unix_time.h"

namespace starling {

bool asks_for_json(std::span<const char* const> argv) {
  for (const std::string_view word : argv) {
    if (word == "--") return false;
    if (word == "--json") return true;
  }
  return false;
}

int print_error(bool json, const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const ErrorCode code = known ? known->code() : memory ? ErrorCode::kMemory : ErrorCode::kInternal;
  const std::string message = memory ? "out of memory: use a smaller batch or fewer ranks" : error.what();
  std::fflush(nullptr);
  FdOutput(2).write(fmt::format("starling: error: {}\n", printable(message)));
  if (json) {
    nlohmann::ordered_json line = {
        {"event", "error"}, {"time", unix_time_s()}, {"code", code_word(code)}, {"message", message}};
    if (known && known->rank() >= 0) line["rank"] = known->rank();
    print_line(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  return exit_status(code);
}

}  // namespace starling
