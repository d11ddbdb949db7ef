// Writes the numbers of a run as event files of TensorBoard (run.tensorboard): one file for each start of a
// run. Format: https://github.com/tensorflow/tensorboard, "tensorboard/compat/proto/event.proto", in the
// records of TFRecord.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "starling/base/clock.h"
#include "starling/telemetry/sink.h"

namespace starling {

// Returns the CRC-32C (Castagnoli) of `bytes`.
uint32_t crc32c(std::string_view bytes);

// Returns a record of TFRecord: the length, its masked checksum, the bytes, and their masked checksum.
std::string tf_record(std::string_view bytes);

// Returns an Event message of TensorBoard with one scalar for each name: the tag and the value.
std::string scalars_event(double time, int64_t step, std::span<const std::pair<std::string, double>> scalars);

// Returns a sink that writes into a new file of `folder`, which it makes. The scalars are
//
//   train/loss, train/lr, train/epoch, train/samples_per_s     of every step
//   time/step_s, time/compute_s, time/exposed_comm_s, time/data_wait_s
//   test/loss, test/accuracy, test/NAME for other metrics      of every evaluation
//   time/checkpoint_s                                          of every checkpoint
//
// If `open` is given and returns false, events are dropped (FencedOutput). A full disk ends the writing with
// one message on standard error. Errors: ConfigError if the file cannot be made.
std::unique_ptr<EventSink> open_tensorboard_sink(const std::string& folder, const Clock& clock,
                                                 std::function<bool()> open = {});

}  // namespace starling
