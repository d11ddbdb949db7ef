#include "starling/data/factory.h"

#include <fmt/format.h>

#include <algorithm>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/data/cifar.h"
#include "starling/data/digits.h"
#include "starling/data/generated.h"
#include "starling/data/grammar.h"
#include "starling/data/idx.h"
#include "starling/data/image_folder.h"
#include "starling/data/image_source.h"
#include "starling/data/loader.h"
#include "starling/data/served_images.h"
#include "starling/data/served_key.h"
#include "starling/data/text_source.h"

namespace starling {
namespace {

// "images:/data/x" -> {"images", "/data/x"}; "digits" -> {"digits", ""}.
struct Place {
  std::string kind;
  std::string path;
  DataSecurity security = DataSecurity::kNone;  // of a data server
};

Place parse_place(const std::string& key, const std::string& value) {
  static constexpr const char* kNeedPath[] = {"idx", "cifar-bin", "images", "text", "served"};
  const size_t colon = value.find(':');
  Place place{value.substr(0, colon), colon == std::string::npos ? "" : value.substr(colon + 1),
              DataSecurity::kNone};
  if (place.kind == "digits" || place.kind == "grammar") {
    if (colon != std::string::npos) {
      throw ConfigError(
          key, fmt::format("{} is generated and takes no path; write \"{}\"", place.kind, place.kind));
    }
    return place;
  }
  if (std::find(std::begin(kNeedPath), std::end(kNeedPath), place.kind) == std::end(kNeedPath)) {
    const std::vector<std::string> kinds = {"idx",    "cifar-bin", "images", "text",
                                            "served", "digits",    "grammar"};
    const std::string near = nearest(place.kind, kinds);
    throw ConfigError(
        key, fmt::format("unknown kind of data \"{}\"{}; there are idx:DIR, cifar-bin:DIR, images:PATH, "
                         "text:FILE, served:HOST:PORT, digits and grammar",
                         place.kind, near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near)));
  }
  if (place.path.empty()) {
    throw ConfigError(key, fmt::format("{} needs a path; write \"{}:{}\"", place.kind, place.kind,
                                       place.kind == "served" ? "HOST:PORT" : "PATH"));
  }
  return place;
}

int64_t generated_size(int64_t asked, int64_t usual) {
  return asked > 0 ? asked : usual;
}

// A fixed part of a source: `count` samples, spread over all of it by a permutation that no seed changes.
// Augmentation stays keyed by the index in the whole source.
class Excerpt final : public Source {
 public:
  Excerpt(std::shared_ptr<const Source> whole, int64_t count) : whole_(std::move(whole)), count_(count) {}
  const SourceInfo& info() const override { return whole_->info(); }
  int64_t size() const override { return count_; }
  Batch read(const std::vector<int64_t>& indices, int64_t epoch) const override {
    std::vector<int64_t> inner(indices.size());
    std::transform(indices.begin(), indices.end(), inner.begin(),
                   [&](int64_t i) { return sample_at(0, 0, i, whole_->size(), Order::kShuffled); });
    return whole_->read(inner, epoch);
  }

 private:
  std::shared_ptr<const Source> whole_;
  int64_t count_;
};

std::shared_ptr<const Source> limited(const std::string& key, std::shared_ptr<const Source> source,
                                      int64_t count) {
  if (!source || count == 0 || count == source->size()) return source;
  if (count < 0 || count > source->size()) {
    throw ConfigError(
        key, fmt::format("{} samples asked for, {} has {}; use a number up to that, or 0 for all", count,
                         source->info().name, source->size()));
  }
  return std::make_shared<Excerpt>(std::move(source), count);
}

ImageParts open_images(const DataSpec& spec, const Place& place, uint64_t seed, const ImageStore* like) {
  if (place.kind == "idx") return open_idx(place.path);
  if (place.kind == "cifar-bin") return open_cifar(place.path);
  if (place.kind == "images") return open_image_folder(place.path, like);
  if (place.kind == "served") {
    const ServedPlace served = parse_served(place.path);
    return open_served(
        std::make_shared<ServedClient>(served.address, served_identity(served, place.security)));
  }
  return {make_digits(seed, generated_size(spec.samples, kGeneratedTrain)),
          make_digits(generated_test_seed(seed), generated_size(spec.test_samples, kGeneratedTest))};
}

TextParts open_texts(const DataSpec& spec, const Place& place, uint64_t seed, int64_t tokens,
                     double validation, const TextStore* like) {
  if (place.kind == "text") return open_text(place.path, validation, tokens, like);
  return {make_grammar(seed, generated_size(spec.samples, kGeneratedTrain)),
          make_grammar(generated_test_seed(seed), generated_size(spec.test_samples, kGeneratedTest))};
}

// data.test_source: a kind and a path, or a path alone, then of the kind of data.source.
Place test_place(const DataSpec& spec, const Place& train) {
  if (spec.test_source.find(':') == std::string::npos && spec.test_source != "digits" &&
      spec.test_source != "grammar" && !train.path.empty()) {
    return {train.kind, spec.test_source, train.security};
  }
  Place place = parse_place("data.test_source", spec.test_source);
  place.security = train.security;
  return place;
}

bool is_text(const Place& place) {
  return place.kind == "text" || place.kind == "grammar";
}

// Both parts as they are, and how the test part is called.
struct Pictures {
  ImageParts parts;
  std::string test_name;
};

Pictures open_picture_parts(const DataSpec& spec, const Place& place, uint64_t seed) {
  Pictures pictures{open_images(spec, place, seed, nullptr), spec.source};
  ImageParts& parts = pictures.parts;
  if (!spec.test_source.empty()) {
    const Place other = test_place(spec, place);
    ImageParts own = open_images(spec, other, seed, parts.train.get());
    parts.test = own.test ? own.test : own.train;
    pictures.test_name = spec.test_source;
  }
  if (parts.test &&
      (parts.test->shape() != parts.train->shape() || parts.test->classes() > parts.train->classes())) {
    const ImageShape a = parts.train->shape(), b = parts.test->shape();
    throw DataError(fmt::format(
        "{}: test images of {} x {} x {} in {} classes do not fit training images of {} x {} x {} "
        "in {} classes",
        pictures.test_name, b.channels, b.height, b.width, parts.test->classes(), a.channels, a.height,
        a.width, parts.train->classes()));
  }
  return pictures;
}

DataSets open_image_sets(const DataSpec& spec, const Place& place, uint64_t seed) {
  const auto [parts, test_name] = open_picture_parts(spec, place, seed);
  const Normalization normalization =
      spec.normalize ? normalization_for(*parts.train) : no_normalization(parts.train->shape().channels);
  const Augmentation augmentation{spec.augment, static_cast<int>(spec.pad), seed};
  DataSets sets;
  sets.train = make_image_source(spec.source, parts.train, normalization, augmentation);
  if (parts.test) sets.test = make_image_source(test_name, parts.test, normalization, Augmentation{});
  return sets;
}

DataSets open_text_sets(const DataSpec& spec, const Place& place, uint64_t seed, int64_t tokens) {
  if (tokens < 1) throw ConfigError("model.tokens", fmt::format("{} tokens a sample; at least 1", tokens));
  const double validation = spec.test_source.empty() ? spec.validation : 0.0;
  TextParts parts = open_texts(spec, place, seed, tokens, validation, nullptr);
  std::string test_name = spec.source;
  if (!spec.test_source.empty()) {
    const Place other = test_place(spec, place);
    const TextParts own = open_texts(spec, other, seed, tokens, 0.0, parts.train.get());
    parts.test = own.test ? own.test : own.train;
    test_name = spec.test_source;
    if (parts.test->vocabulary().text() != parts.train->vocabulary().text()) {
      throw DataError(fmt::format("{}: its vocabulary is not that of {}", test_name, spec.source));
    }
  }
  DataSets sets;
  sets.train = make_text_source(spec.source, parts.train, tokens, spec.augment, seed);
  if (parts.test) sets.test = make_text_source(test_name, parts.test, tokens, false, seed);
  return sets;
}

}  // namespace

ImageParts open_pictures(const DataSpec& spec, uint64_t seed) {
  const Place place = parse_place("data.source", spec.source);
  if (is_text(place) || place.kind == "served") {
    throw ConfigError("data.source",
                      fmt::format("{} cannot be served: a data server serves pictures that it holds itself "
                                  "(idx:DIR, cifar-bin:DIR, images:PATH, digits)",
                                  spec.source));
  }
  return open_picture_parts(spec, place, seed).parts;
}

DataSets open_data(const DataSpec& spec, uint64_t seed, int64_t text_tokens, DataSecurity security) {
  Place place = parse_place("data.source", spec.source);
  place.security = security;
  if (spec.pad < 0 || spec.pad > 1024)
    throw ConfigError("data.pad", fmt::format("{} pixels; use 0 to 1024", spec.pad));
  if (spec.samples < 0 || spec.test_samples < 0) {
    throw ConfigError(spec.samples < 0 ? "data.samples" : "data.test_samples",
                      "must not be negative; 0 stands for all");
  }
  if (!(spec.validation >= 0 && spec.validation < 1)) {
    throw ConfigError("data.validation",
                      fmt::format("{} is no share; use 0 to less than 1", spec.validation));
  }
  if (!spec.test_source.empty() && is_text(place) != is_text(test_place(spec, place))) {
    throw ConfigError("data.test_source",
                      fmt::format("{} and {} cannot be mixed: one is text, the other images", spec.source,
                                  spec.test_source));
  }
  DataSets sets =
      is_text(place) ? open_text_sets(spec, place, seed, text_tokens) : open_image_sets(spec, place, seed);
  sets.train = limited("data.samples", sets.train, spec.samples);
  sets.test = limited("data.test_samples", sets.test, spec.test_samples);
  return sets;
}

}  // namespace starling
