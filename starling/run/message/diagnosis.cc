#include "starling/run/message/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "starling/comm/recorder/flight_recorder_report.h"
#include "starling/net/address.h"

namespace starling {

std::vector<std::string> who_waits_on(const std::string& host, const std::vector<Recording>& recordings) {
  std::vector<Recording> own;
  std::copy_if(recordings.begin(), recordings.end(), std::back_inserter(own),
               [&](const Recording& recording) { return recording.host == host; });
  std::vector<std::string> lines = who_waits(own);
  const size_t others = recordings.size() - own.size();
  if (others > 0 && !who_waits(recordings).empty())
    lines.push_back(
        fmt::format("{} rank{} of other hosts left out: their latest entries may not have arrived here; "
                    "after the job has ended, starling doctor --recorder reads all of them",
                    others, others == 1 ? "" : "s"));
  return lines;
}

std::vector<std::string> who_waits_here(const std::filesystem::path& folder) {
  return who_waits_on(host_name(), read_recordings(folder));
}

}  // namespace starling
