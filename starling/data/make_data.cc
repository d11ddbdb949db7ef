#include "starling/data/make_data.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "starling/base/error.h"
#include "starling/data/digits.h"
#include "starling/data/generated.h"
#include "starling/data/grammar.h"
#include "starling/data/idx.h"

namespace starling {
namespace {

void write_digits(uint64_t seed, int64_t samples, const std::string& stem, const std::string& ending) {
  const auto store = make_digits(seed, samples);
  IdxImages images{kDigitShape.height, kDigitShape.width, {}};
  images.pixels.resize(static_cast<size_t>(samples) * kDigitShape.bytes());
  std::vector<int64_t> all(static_cast<size_t>(samples));
  std::iota(all.begin(), all.end(), 0);
  store->decode(all, images.pixels.data());
  std::vector<uint8_t> labels;
  for (const int64_t i : all) labels.push_back(static_cast<uint8_t>(store->label(i)));
  write_idx_images(stem + "-images-idx3-ubyte" + ending, images);
  write_idx_labels(stem + "-labels-idx1-ubyte" + ending, labels);
}

void write_grammar(uint64_t seed, int64_t train, int64_t test, const std::string& path) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  for (int64_t i = 0; out && i < train; ++i) out << grammar_paragraph(seed, i);
  for (int64_t i = 0; out && i < test; ++i) out << grammar_paragraph(generated_test_seed(seed), i);
  out.close();
  if (!out)
    throw DataError(fmt::format("{}: cannot write all of it; check the folder's rights and space", path));
}

}  // namespace

void make_data(const DataSpec& spec, uint64_t seed, const std::string& out_dir, bool gzip) {
  if (spec.source != "digits" && spec.source != "grammar") {
    throw ConfigError("data.source",
                      fmt::format("\"{}\" cannot be made; use digits or grammar", spec.source));
  }
  if (spec.samples < 0 || spec.test_samples < 0) {
    throw ConfigError(spec.samples < 0 ? "data.samples" : "data.test_samples", "must not be negative");
  }
  std::error_code error;
  std::filesystem::create_directories(out_dir, error);
  if (error) throw DataError(fmt::format("{}: cannot make the folder: {}", out_dir, error.message()));
  const std::filesystem::path dir(out_dir);
  const int64_t train = generated_size(spec.samples, kGeneratedTrain);
  const int64_t test = generated_size(spec.test_samples, kGeneratedTest);
  if (spec.source == "grammar") {
    write_grammar(seed, train, test, (dir / "grammar.txt").string());
    return;
  }
  const std::string ending = gzip ? ".gz" : "";
  write_digits(seed, train, (dir / "train").string(), ending);
  write_digits(generated_test_seed(seed), test, (dir / "t10k").string(), ending);
}

}  // namespace starling
