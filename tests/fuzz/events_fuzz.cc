// Reads any lines as the JSON lines of a run's events. Lines that are no events must be ignored. The
// categories of a run's time add up.
#include <cmath>
#include <numeric>
#include <string>

#include "starling/report/advice.h"
#include "starling/report/run_record.h"
#include "starling/report/run_times.h"
#include "starling/report/time_account.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  const std::string text(reinterpret_cast<const char*>(data), size);
  RunRecord record;
  RunTimes times;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    record.add_line(text.substr(begin, end - begin));
    times.add_line(text.substr(begin, end - begin));
    begin = end + 1;
  }
  for (const RunPoint& point : record.steps) require_property(point.accuracy == -1);
  reached(record, {.accuracy = 0.5});
  reached(record, {.loss = 0.5});
  record.statistic("step_bytes", 0);
  record.ranks();
  times.finish();
  if (times.starts.empty()) return 0;
  const TimeAccount account = account_of(times, RunSpec());
  const double sum = std::accumulate(account.seconds, account.seconds + kTimeUses, 0.0);
  require_property(std::abs(sum - account.wall_s) <= 1e-9 * account.wall_s);
  for (const double part : account.seconds) require_property(part >= -1e-9 * account.wall_s);
  choose_advice(account);
  return 0;
}
