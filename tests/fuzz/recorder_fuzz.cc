// Reads files of flight recorders with any header and any records, and reports who waits for whom.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starling/comm/recorder/flight_recorder.h"
#include "starling/comm/recorder/flight_recorder_report.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

constexpr size_t kSize = sizeof(RecorderHeader) + kRecords * sizeof(Record);
constexpr size_t kPlaces = 64;  // how many places get records: the first ones and the last one of the file

// Returns the offset of a place that gets records.
size_t offset_of(size_t place) {
  return sizeof(RecorderHeader) + (place == kPlaces - 1 ? kRecords - 1 : place) * sizeof(Record);
}

// Makes a file: some bytes of the header, then records at the places that the input says. The file is valid
// until the next call. If the first byte is 255, the file is a byte too short. It is then an allocation of
// its own, so that AddressSanitizer sees a read behind its end.
std::span<const std::byte> file_of(FuzzInput& input) {
  static std::vector<std::byte> file(kSize);
  std::fill_n(file.begin(), offset_of(kPlaces - 2) + sizeof(Record), std::byte{0});
  std::fill_n(file.end() - sizeof(Record), sizeof(Record), std::byte{0});
  const size_t missing = input.byte() == 255 ? 1 : 0;
  std::memcpy(file.data(), "STLREC01", 8);
  const std::string head = input.text(8 + input.byte());
  std::memcpy(file.data() + 8, head.data(), head.size());
  const std::string names = input.text(input.byte());
  std::memcpy(file.data() + offsetof(RecorderHeader, names), names.data(), names.size());
  for (int i = 0; i < 32 && !input.empty(); ++i) {
    const size_t at = offset_of(input.byte() % kPlaces);
    const std::string record = input.text(sizeof(Record));
    std::memcpy(file.data() + at, record.data(), record.size());
  }
  if (missing == 0) return file;
  static std::unique_ptr<std::byte[]> cut;
  cut = std::make_unique<std::byte[]>(kSize - missing);
  std::copy_n(file.begin(), kSize - missing, cut.get());
  return {cut.get(), kSize - missing};
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  std::vector<Recording> recordings;
  for (int rank = 0; rank < 2 && !input.empty(); ++rank) {
    const std::span<const std::byte> file = file_of(input);
    auto recording = parse_recording(file);
    require_property(recording.has_value() == (file.size() == kSize));
    if (recording) recordings.push_back(std::move(*recording));
  }
  for (const Recording& recording : recordings) {
    for (const Record& record : recording.records) require_property(record.group < recording.groups.size());
  }
  const std::string report = recorder_report(recordings, 4);
  require_property(recordings.empty() || !report.empty());
  return 0;
}
