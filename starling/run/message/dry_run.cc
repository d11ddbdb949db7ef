#include "starling/run/message/dry_run.h"

#include <nlohmann/json.hpp>

#include "starling/telemetry/output.h"

namespace starling {

void print_dry_run(const std::string& text, bool json) {
  const nlohmann::ordered_json object = {{"event", "result"}, {"dry_run", true}, {"text", text}};
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;  // a path may be no UTF-8
  print_line(json ? object.dump(-1, ' ', false, replace) : text);
}

}  // namespace starling
