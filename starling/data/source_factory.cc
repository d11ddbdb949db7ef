#include "starling/data/source_factory.h"

#include <fmt/format.h>

#include <algorithm>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/data/formats/cifar.h"
#include "starling/data/formats/idx.h"
#include "starling/data/formats/image_folder.h"
#include "starling/data/formats/image_source.h"
#include "starling/data/formats/text_source.h"
#include "starling/data/generated/digits.h"
#include "starling/data/generated/generated.h"
#include "starling/data/generated/grammar.h"
#include "starling/data/loader.h"
#include "starling/data/served/served_images.h"
#include "starling/data/served/served_key.h"
#include "starling/data/served/served_tensors.h"
#include "starling/data/served/served_text.h"
#include "starling/spec/extensions.h"

namespace starling {
namespace {

// Place has the parts of a data source: "images:/data/x" gives {"images", "/data/x"}, and "digits" gives
// {"digits", ""}.
struct Place {
  std::string kind;
  std::string path;
  DataSecurity security = DataSecurity::kNone;      // protection that a data server must use
  std::shared_ptr<const ServedClient> client = {};  // of a data server, after connect()

  ServedKind served_kind() const { return client->description().parts.front().kind; }
};

// Connects to the data server that the place names, if it names one.
void connect(Place& place) {
  if (place.kind != "served") return;
  const ServedPlace served = parse_served(place.path);
  place.client = std::make_shared<ServedClient>(served.address, served_identity(served, place.security));
}

Place parse_place(const std::string& key, const std::string& value) {
  static constexpr const char* kNeedPath[] = {"idx", "cifar-bin", "images", "text", "served"};
  const size_t colon = value.find(':');
  Place place{value.substr(0, colon), colon == std::string::npos ? "" : value.substr(colon + 1),
              DataSecurity::kNone, nullptr};
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

// Excerpt is a fixed part of a source. Its `count` samples are spread over the whole source by a permutation
// that does not depend on the seed. Augmentation still uses the index in the whole source.
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
  if (place.kind == "served") return open_served(place.client);
  return {make_digits(seed, generated_size(spec.samples, kGeneratedTrain)),
          make_digits(generated_test_seed(seed), generated_size(spec.test_samples, kGeneratedTest))};
}

TextParts open_texts(const DataSpec& spec, const Place& place, uint64_t seed, int64_t tokens,
                     double validation, const TextStore* like) {
  if (place.kind == "text") return open_text(place.path, validation, tokens, like);
  if (place.kind == "served") return open_served_text(*place.client);
  return {make_grammar(seed, generated_size(spec.samples, kGeneratedTrain)),
          make_grammar(generated_test_seed(seed), generated_size(spec.test_samples, kGeneratedTest))};
}

// Parses data.test_source: a kind and a path, or a path alone, which then has the kind of data.source.
Place test_place(const DataSpec& spec, const Place& train) {
  if (spec.test_source.find(':') == std::string::npos && spec.test_source != "digits" &&
      spec.test_source != "grammar" && !train.path.empty()) {
    Place place{train.kind, spec.test_source, train.security, nullptr};
    connect(place);
    return place;
  }
  Place place = parse_place("data.test_source", spec.test_source);
  place.security = train.security;
  connect(place);
  return place;
}

bool is_text(const Place& place) {
  if (place.client) return place.served_kind() == ServedKind::kText;
  return place.kind == "text" || place.kind == "grammar";
}

// Pictures has both parts as they are stored, and the name of the test part.
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
        "in {} classes; give test data of the same size and classes",
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

// Texts has both parts, and the name of the test part.
struct Texts {
  TextParts parts;
  std::string test_name;
};

Texts open_text_parts(const DataSpec& spec, const Place& place, uint64_t seed, int64_t tokens) {
  if (tokens < 1)
    throw ConfigError("model.tokens", fmt::format("{} tokens per sample; use at least 1", tokens));
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
  for (const auto& part : {parts.train, parts.test}) {
    if (part && part->samples(tokens) < 1)
      throw DataError(fmt::format("{}: a part of the text is shorter than one sample of {} characters",
                                  spec.source, tokens + 1));
  }
  return {std::move(parts), std::move(test_name)};
}

DataSets open_text_sets(const DataSpec& spec, const Place& place, uint64_t seed, int64_t tokens) {
  const auto [parts, test_name] = open_text_parts(spec, place, seed, tokens);
  DataSets sets;
  sets.train = make_text_source(spec.source, parts.train, tokens, spec.augment, seed);
  if (parts.test) sets.test = make_text_source(test_name, parts.test, tokens, false, seed);
  return sets;
}

DataSets open_tensor_sets(const DataSpec& spec, const Place& place) {
  if (!spec.test_source.empty())
    throw ConfigError("data.test_source", fmt::format("{} serves tensors and their test part: leave out {}",
                                                      spec.source, spec.test_source));
  DataSets sets;
  sets.train = open_served_tensors(place.client, 0, spec.source);
  if (place.client->description().parts.size() > 1)
    sets.test = open_served_tensors(place.client, 1, spec.source);
  return sets;
}

DataSets open_sets(const DataSpec& spec, const Place& place, uint64_t seed, int64_t text_tokens) {
  if (place.client && place.served_kind() == ServedKind::kTensors) return open_tensor_sets(spec, place);
  return is_text(place) ? open_text_sets(spec, place, seed, text_tokens) : open_image_sets(spec, place, seed);
}

}  // namespace

ServedStores open_for_serving(const DataSpec& spec, uint64_t seed) {
  const Place place = parse_place("data.source", spec.source);
  if (place.kind == "grammar" || place.kind == "served") {
    throw ConfigError("data.source",
                      fmt::format("{} cannot be served: a data server serves what it holds itself "
                                  "(idx:DIR, cifar-bin:DIR, images:PATH, digits, text:FILE)",
                                  spec.source));
  }
  if (is_text(place)) return served_stores(open_text_parts(spec, place, seed, 1).parts);
  return served_stores(open_picture_parts(spec, place, seed).parts);
}

namespace {

// Refuses values that no source can have.
void check_numbers(const DataSpec& spec) {
  if (spec.pad < 0 || spec.pad > 1024)
    throw ConfigError("data.pad", fmt::format("{} pixels; use 0 to 1024", spec.pad));
  if (spec.samples < 0 || spec.test_samples < 0) {
    throw ConfigError(spec.samples < 0 ? "data.samples" : "data.test_samples",
                      "must not be negative; 0 means all");
  }
  if (!(spec.validation >= 0 && spec.validation < 1)) {
    throw ConfigError("data.validation",
                      fmt::format("{} is not a share; use at least 0 and less than 1", spec.validation));
  }
}

// Returns the row of the program that opens `source`, or null.
const AddedSource* row_of(const Extensions* added, const std::string& source) {
  return find_added_source(added, source.substr(0, source.find(':')));
}

// Opens a source of the program.
DataSets open_added(const AddedSource& row, const std::string& source, const DataSpec& spec, uint64_t seed,
                    int64_t text_tokens) {
  const size_t colon = source.find(':');
  DataSets sets =
      row.open({colon == std::string::npos ? "" : source.substr(colon + 1), spec, seed, text_tokens});
  if (!sets.train)
    throw DataError(
        fmt::format("{}: the program's function for this kind of data returned no training set", source));
  return sets;
}

// Opens the data of a run whose training or test data are of a kind that the program adds.
DataSets open_with_added(const DataSpec& spec, uint64_t seed, int64_t text_tokens, DataSecurity security,
                         const Extensions& added) {
  const auto open = [&](const std::string& source) {
    if (const AddedSource* row = row_of(&added, source))
      return open_added(*row, source, spec, seed, text_tokens);
    DataSpec own = spec;
    own.source = source;
    own.test_source.clear();
    own.samples = own.test_samples = 0;
    return open_data(own, seed, text_tokens, security);
  };
  DataSets sets = open(spec.source);
  if (!spec.test_source.empty()) {
    // A path alone has the kind of the training data.
    const bool has_kind = row_of(&added, spec.test_source) ||
                          spec.test_source.find(':') != std::string::npos || spec.test_source == "digits" ||
                          spec.test_source == "grammar";
    const std::string kind = spec.source.substr(0, spec.source.find(':'));
    const DataSets test = open(has_kind ? spec.test_source : kind + ":" + spec.test_source);
    sets.test = test.test ? test.test : test.train;
  }
  sets.train = limited("data.samples", sets.train, spec.samples);
  sets.test = limited("data.test_samples", sets.test, spec.test_samples);
  return sets;
}

}  // namespace

DataSets open_data(const DataSpec& spec, uint64_t seed, int64_t text_tokens, DataSecurity security,
                   const Extensions* added) {
  check_numbers(spec);
  if (row_of(added, spec.source) || (!spec.test_source.empty() && row_of(added, spec.test_source)))
    return open_with_added(spec, seed, text_tokens, security, *added);
  Place place = parse_place("data.source", spec.source);
  place.security = security;
  connect(place);
  if (!spec.test_source.empty() && is_text(place) != is_text(test_place(spec, place))) {
    throw ConfigError("data.test_source",
                      fmt::format("{} and {} cannot be mixed: one is text, the other images", spec.source,
                                  spec.test_source));
  }
  DataSets sets = open_sets(spec, place, seed, text_tokens);
  sets.train = limited("data.samples", sets.train, spec.samples);
  sets.test = limited("data.test_samples", sets.test, spec.test_samples);
  return sets;
}

}  // namespace starling
