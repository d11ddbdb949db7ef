#include "starling/data/formats/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "starling/data/formats/text_store.h"
#include "starling/data/source_factory.h"

namespace starling {
namespace {

constexpr int64_t kMaxCounted = 100'000;
constexpr int64_t kBatch = 256;
constexpr int64_t kPreviewCharacters = 240;

// Draws an image in ten grades of ink. Each cell has two characters, because a terminal's characters are
// twice as high as wide. A side has at most 32 cells.
std::string draw(const float* image, int64_t channels, int64_t height, int64_t width) {
  constexpr std::string_view kInk = " .:-=+*#%@";
  const int64_t step = std::max<int64_t>(1, (std::max(height, width) + 31) / 32);
  std::string lines;
  for (int64_t y = 0; y < height; y += step) {
    for (int64_t x = 0; x < width; x += step) {
      double sum = 0;
      for (int64_t c = 0; c < channels; ++c) sum += image[(c * height + y) * width + x];
      const auto grade = static_cast<int64_t>(sum / static_cast<double>(channels) * 9.999);
      lines.append(2, kInk[static_cast<size_t>(std::clamp<int64_t>(grade, 0, 9))]);
    }
    lines.erase(lines.find_last_not_of(' ') + 1);
    lines += '\n';
  }
  return lines;
}

// Adds a batch of images to the histogram and the sums.
void count_images(const Batch& batch, DataReport& report) {
  const int64_t channels = report.input_shape[0];
  const int64_t plane = report.input_shape[1] * report.input_shape[2];
  const float* pixels = batch.input.const_data_ptr<float>();
  const int64_t* target = batch.target.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < batch.size(); ++i) {
    ++report.label_histogram[static_cast<size_t>(target[i])];
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0, square = 0;
      for (int64_t k = 0; k < plane; ++k, ++pixels) sum += *pixels, square += *pixels * *pixels;
      report.mean[static_cast<size_t>(c)] += sum / static_cast<double>(plane);
      report.std[static_cast<size_t>(c)] += square / static_cast<double>(plane);
    }
  }
}

void count_text(const Batch& batch, DataReport& report) {
  const int64_t* target = batch.target.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < batch.target.numel(); ++i) ++report.label_histogram[static_cast<size_t>(target[i])];
}

std::string first_characters(const Source& source) {
  const std::u32string vocabulary = decode_utf8(source.info().vocabulary, "vocabulary");
  std::u32string text;
  for (int64_t i = 0; i < source.size() && static_cast<int64_t>(text.size()) < kPreviewCharacters; ++i) {
    const Batch batch = source.read({i}, 0);
    for (int64_t k = 0; k < batch.input.numel() && static_cast<int64_t>(text.size()) < kPreviewCharacters;
         ++k) {
      text.push_back(vocabulary[static_cast<size_t>(batch.input.const_data_ptr<int64_t>()[k])]);
    }
  }
  return encode_utf8(text);
}

// Reads and decodes the samples in `report.counted`, and fills the histogram, the mean and the deviation.
void count_samples(const Source& source, DataReport& report) {
  report.label_histogram.resize(static_cast<size_t>(report.classes));
  if (!report.text) report.mean.resize(static_cast<size_t>(report.input_shape[0])), report.std = report.mean;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < report.counted; ++i) {
    indices.push_back(i * report.train_samples / report.counted);
    if (static_cast<int64_t>(indices.size()) < kBatch && i + 1 < report.counted) continue;
    const Batch batch = source.read(indices, 0);
    report.text ? count_text(batch, report) : count_images(batch, report);
    indices.clear();
  }
  for (size_t c = 0; c < report.mean.size(); ++c) {
    const double mean = report.mean[c] / static_cast<double>(report.counted);
    report.std[c] =
        std::sqrt(std::max(report.std[c] / static_cast<double>(report.counted) - mean * mean, 0.0));
    report.mean[c] = mean;
  }
}

void preview(const Source& source, DataReport& report) {
  if (report.text) {
    report.preview = first_characters(source);
    return;
  }
  const Batch first = source.read({0}, 0);
  report.preview_label = first.target.const_data_ptr<int64_t>()[0];
  report.preview = draw(first.input.const_data_ptr<float>(), report.input_shape[0], report.input_shape[1],
                        report.input_shape[2]);
}

std::string class_lines(const DataReport& report) {
  std::string lines;
  const int64_t most =
      std::max<int64_t>(1, *std::max_element(report.label_histogram.begin(), report.label_histogram.end()));
  for (size_t c = 0; c < report.label_histogram.size(); ++c) {
    const int64_t count = report.label_histogram[c];
    const std::string name = c < report.class_names.size() ? report.class_names[c] : std::to_string(c);
    lines += fmt::format("  {:<20} {:>9}  {}\n", name, count,
                         std::string(static_cast<size_t>(40 * count / most), '#'));
  }
  return lines;
}

}  // namespace

DataReport inspect_data(const DataSpec& spec, uint64_t seed, int64_t text_tokens, DataSecurity security) {
  DataSpec plain = spec;
  plain.augment = false;
  plain.normalize = false;
  const DataSets sets = open_data(plain, seed, text_tokens, security);
  const SourceInfo& info = sets.train->info();
  DataReport report;
  report.source = info.name;
  report.text = info.text;
  report.train_samples = sets.train->size();
  report.test_samples = sets.test ? sets.test->size() : 0;
  report.input_shape = info.input_shape;
  report.classes = info.classes;
  report.class_names = info.class_names;
  report.vocabulary = info.vocabulary;
  report.tensors = !info.text && (info.input_shape.size() != 3 || info.classes < 1);
  if (report.tensors) return report;
  report.counted = std::min(kMaxCounted, report.train_samples);
  count_samples(*sets.train, report);
  preview(*sets.train, report);
  return report;
}

std::string to_text(const DataReport& report) {
  std::string text =
      fmt::format("source   {}\nsamples  {} training, {}\n", report.source, report.train_samples,
                  report.test_samples > 0 ? fmt::format("{} test", report.test_samples) : "no test part");
  if (report.text) {
    text += fmt::format("sample   {} characters\nalphabet {} characters\n\n{}\n", report.input_shape[0],
                        report.classes, report.preview);
    return text;
  }
  if (report.tensors)
    return text + fmt::format("sample   a tensor of {}\n", fmt::join(report.input_shape, " x "));
  text += fmt::format("sample   {} (channels x height x width)\nclasses  {}\n",
                      fmt::join(report.input_shape, " x "), report.classes);
  text += fmt::format("mean     {:.4f}\nstd      {:.4f}\n", fmt::join(report.mean, " "),
                      fmt::join(report.std, " "));
  text +=
      fmt::format("\nsamples per class{}\n{}",
                  report.counted < report.train_samples ? fmt::format(" (of {} read)", report.counted) : "",
                  class_lines(report));
  const auto label = static_cast<size_t>(report.preview_label);
  text += fmt::format("\ntraining sample 0, class {}\n{}",
                      label < report.class_names.size() ? report.class_names[label] : std::to_string(label),
                      report.preview);
  return text;
}

std::string to_json(const DataReport& report) {
  nlohmann::ordered_json json = {{"event", "data"},
                                 {"source", report.source},
                                 {"kind", report.tensors ? "tensors"
                                          : report.text  ? "text"
                                                         : "images"},
                                 {"train_samples", report.train_samples},
                                 {"test_samples", report.test_samples},
                                 {"input_shape", report.input_shape},
                                 {"classes", report.classes},
                                 {"counted", report.counted},
                                 {"label_histogram", report.label_histogram}};
  if (report.text) {
    json["vocabulary"] = report.vocabulary;
  } else {
    json["class_names"] = report.class_names;
    json["mean"] = report.mean;
    json["std"] = report.std;
    json["preview_label"] = report.preview_label;
  }
  json["preview"] = report.preview;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace starling
