#include "starling/net/fresh_name.h"

#include <fmt/format.h>

#include "starling/net/job_key.h"

namespace starling {

std::string fresh_name() {
  const JobKey random = make_job_key();
  std::string name = "starling-";
  for (const std::byte b : random.bytes().first(JobKey::kBytes / 2))
    name += fmt::format("{:02x}", static_cast<int>(b));
  return name;
}

}  // namespace starling
