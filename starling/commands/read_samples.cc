#include "starling/commands/read_samples.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "starling/base/error.h"
#include "starling/data/formats/cifar.h"
#include "starling/data/formats/idx.h"

namespace starling {
namespace {

// Returns images as samples with one feature per pixel and channel, from 0 to 1.
SampleTable samples_of_images(const ImageStore& images, const std::string& name) {
  SampleTable table;
  table.name = name;
  const size_t pixels = images.shape().bytes();
  table.features = static_cast<int64_t>(pixels);
  table.values.reserve(pixels * static_cast<size_t>(images.size()));
  std::vector<uint8_t> bytes(pixels);
  for (int64_t i = 0; i < images.size(); ++i) {
    const int64_t index[1] = {i};
    images.decode(index, bytes.data());
    for (const uint8_t byte : bytes) table.values.push_back(byte / 255.0);
    table.labels.push_back(static_cast<double>(images.label(i)));
  }
  return table;
}

}  // namespace

SampleTable read_samples(const SampleSource& source, const GeneratedSamples& generated) {
  SampleTable table;
  if (source.data.empty()) {
    table = make_samples(generated);
  } else if (source.data.starts_with("idx:")) {
    table = samples_of_images(*open_idx(source.data.substr(4)).train, source.data);
  } else if (source.data.starts_with("cifar-bin:")) {
    table = samples_of_images(*open_cifar(source.data.substr(10)).train, source.data);
  } else {
    table = read_csv_samples(source.data, source.label == "first" ? LabelColumn::kFirst : LabelColumn::kLast);
  }
  make_binary(table, source.positive);
  return table;
}

void check_sample_source(const std::string& data, const std::string& command) {
  const std::string kind = data.substr(0, data.find(':'));
  for (const char* other : {"images", "text", "served", "digits", "grammar"}) {
    if (kind == other && !std::filesystem::exists(data))
      throw ConfigError(
          "DATA",
          fmt::format("{} reads a CSV file, idx:DIR or cifar-bin:DIR, or no DATA, not {}", command, data));
  }
}

void check_label_column(const std::string& label) {
  if (label != "first" && label != "last")
    throw ConfigError("--label", fmt::format("\"{}\" is no column; write first or last", label));
}

}  // namespace starling
