#include "starling/run/message/dry_run.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "starling/spec/on_failure.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {

void print_dry_run(const std::string& text, bool json) {
  const nlohmann::ordered_json object = {{"event", "result"}, {"dry_run", true}, {"text", text}};
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;  // a path may be no UTF-8
  print_line(json ? object.dump(-1, ' ', false, replace) : text);
}

std::string processes_text(const RunSpec& spec) {
  std::string text = ranks_text(spec.train.ranks);
  if (!spec.train.mesh.empty()) text += fmt::format(" ({})", spec.train.mesh);
  const int64_t servers = has_servers(spec) ? spec.exchange.servers : 0;
  if (servers > 0) text += " and " + counted(servers, "server");
  return text;
}

}  // namespace starling
