#include "starling/data/generated/make_data.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <system_error>
#include <vector>

#include "starling/base/error.h"
#include "starling/data/formats/idx.h"
#include "starling/data/generated/digits.h"
#include "starling/data/generated/generated.h"
#include "starling/data/generated/grammar.h"

namespace starling {
namespace {

// The names of MNIST's files behind "train" and "t10k".
constexpr const char* kImages = "-images-idx3-ubyte";
constexpr const char* kLabels = "-labels-idx1-ubyte";

void write_digits(uint64_t seed, int64_t samples, const std::string& stem, const std::string& ending) {
  const auto store = make_digits(seed, samples);
  IdxImages images{kDigitShape.height, kDigitShape.width, {}};
  images.pixels.resize(static_cast<size_t>(samples) * kDigitShape.bytes());
  std::vector<int64_t> all(static_cast<size_t>(samples));
  std::iota(all.begin(), all.end(), 0);
  store->decode(all, images.pixels.data());
  std::vector<uint8_t> labels;
  for (const int64_t i : all) labels.push_back(static_cast<uint8_t>(store->label(i)));
  write_idx_images(stem + kImages + ending, images);
  write_idx_labels(stem + kLabels + ending, labels);
}

void write_grammar(uint64_t seed, int64_t train, int64_t test, const std::string& path) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  for (int64_t i = 0; out && i < train; ++i) out << grammar_paragraph(seed, i);
  for (int64_t i = 0; out && i < test; ++i) out << grammar_paragraph(generated_test_seed(seed), i);
  out.close();
  if (!out)
    throw DataError(fmt::format("{}: cannot write all of it; check the folder's rights and space", path));
}

// Refuses to replace what a user may not be able to make again.
void require_new(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code error;
    const auto status = std::filesystem::symlink_status(path, error);
    if (status.type() == std::filesystem::file_type::not_found) continue;
    throw ConfigError("DIR",
                      fmt::format("{} exists and is not replaced: give another folder, or --force to replace "
                                  "the files",
                                  path));
  }
}

}  // namespace

void make_data(const DataSpec& spec, uint64_t seed, const std::string& out_dir,
               const MakeDataOptions& options) {
  if (spec.source != "digits" && spec.source != "grammar") {
    throw ConfigError("data.source",
                      fmt::format("\"{}\" cannot be made; use digits or grammar", spec.source));
  }
  if (spec.samples < 0 || spec.test_samples < 0) {
    throw ConfigError(spec.samples < 0 ? "data.samples" : "data.test_samples", "must not be negative");
  }
  const std::filesystem::path dir(out_dir);
  const std::string text = dir / "grammar.txt";
  const std::string ending = options.gzip ? ".gz" : "";
  const std::string train_stem = dir / "train", test_stem = dir / "t10k";
  if (!options.replace) {
    spec.source == "grammar" ? require_new({text})
                             : require_new({train_stem + kImages + ending, train_stem + kLabels + ending,
                                            test_stem + kImages + ending, test_stem + kLabels + ending});
  }
  std::error_code error;
  std::filesystem::create_directories(out_dir, error);
  if (error) throw DataError(fmt::format("{}: cannot make the folder: {}", out_dir, error.message()));
  const int64_t train = generated_size(spec.samples, kGeneratedTrain);
  const int64_t test = generated_size(spec.test_samples, kGeneratedTest);
  if (spec.source == "grammar") return write_grammar(seed, train, test, text);
  write_digits(seed, train, train_stem, ending);
  write_digits(generated_test_seed(seed), test, test_stem, ending);
}

}  // namespace starling
