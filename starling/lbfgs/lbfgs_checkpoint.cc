#include "starling/lbfgs/lbfgs_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "starling/base/atomic_file.h"
#include "starling/base/byte_hash.h"
#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/base/read_file.h"

namespace starling {
namespace {

constexpr const char* kManifestName = "lbfgs.txt";
constexpr const char* kFirstLine = "starling lbfgs checkpoint 3";    // since which there is a hash
constexpr const char* kEarlierLine = "starling lbfgs checkpoint 2";  // is read, too
constexpr std::string_view kHashName = "hash ";  // of the last line; the hash is of the text before it
constexpr const char* kPartPrefix = "lbfgs-";
constexpr uint64_t kMagic = 0x31304246474c5453;  // of a part

// The head of a part. The numbers and their hash follow.
struct PartHead {
  uint64_t magic = kMagic;
  int64_t iteration = 0, elements = 0, begin = 0, end = 0, memory = 0;
};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kCheckpoint, fmt::format("{}: {}", path, what));
}

void write_whole(const std::string& folder, const std::string& name, const std::string& bytes) {
  make_checkpoint_folder(folder);  // ranks of another host may not share the folder of rank 0 yet
  AtomicFile file(folder + "/" + name);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

uint64_t hash_numbers(const double* numbers, size_t count) {
  uint64_t hash = kGolden;
  for (size_t i = 0; i < count; ++i) hash = mix64(hash + kGolden + std::bit_cast<uint64_t>(numbers[i]));
  return hash;
}

// Returns the last line of a manifest whose other lines are `text`.
std::string hash_line(std::string_view text) {
  return fmt::format("{}{:016x}\n", kHashName, hash_bytes(text));
}

// Returns the vectors of a checkpoint: the weights, the gradient and the pairs.
std::vector<VectorId> saved_vectors(int memory) {
  std::vector<VectorId> vectors = {kPoint, kGradient};
  for (VectorId id = kFirstPair; id < s_of(memory); ++id) vectors.push_back(id);
  return vectors;
}

std::string name_of_part(const CheckpointPlace& place) {
  return fmt::format("{}{}-{}-of-{}", kPartPrefix, place.iteration, place.rank, place.ranks);
}

// Reads the numbers of a part after checking its head and hash.
std::vector<double> read_part(const CheckpointPlace& place, int64_t elements, int memory) {
  const std::string path = place.file();
  const VectorSlice slice = slice_of_shard(elements, place.ranks, place.rank);
  std::vector<double> numbers(saved_vectors(memory).size() * static_cast<size_t>(slice.size()) + 1);
  PartHead head;
  const size_t size = sizeof(head) + numbers.size() * sizeof(double);
  const FileText file = read_file(path, size);
  if (file.error == ENOENT) refuse(path, "does not exist; the checkpoint is not whole");
  if (file.error == EFBIG) refuse(path, "is too long for a part of this checkpoint");
  if (file.error != 0) refuse(path, "cannot be opened or read: " + file.reason());
  const bool has_head = file.text.size() >= sizeof(head);
  if (has_head) std::memcpy(&head, file.text.data(), sizeof(head));
  const PartHead expected{.iteration = place.iteration,
                          .elements = elements,
                          .begin = slice.begin,
                          .end = slice.end,
                          .memory = memory};
  if (!has_head || std::memcmp(&head, &expected, sizeof(head)) != 0)
    refuse(path, "is no part of this checkpoint");
  const bool fits = file.text.size() == size;
  if (fits) std::memcpy(numbers.data(), file.text.data() + sizeof(head), numbers.size() * sizeof(double));
  if (!fits || std::bit_cast<uint64_t>(numbers.back()) != hash_numbers(numbers.data(), numbers.size() - 1))
    refuse(path, "is damaged; use an older copy, or remove the folder to start anew");
  numbers.pop_back();
  return numbers;
}

// Reads "name value" lines of the manifest in their fixed order.
class ManifestReader {
 public:
  explicit ManifestReader(const std::string& path) : path_(path) {
    FileText file = read_file(path);
    exists_ = file.error != ENOENT;
    if (exists_ && file.error != 0) refuse(path, "cannot be opened or read: " + file.reason());
    text_ = std::move(file.text);
  }
  bool exists() const { return exists_; }
  // Reads the first line. Checks and removes the line with the hash, which an earlier format has not.
  void begin() {
    const std::string first = line(kFirstLine);
    if (first == kEarlierLine) return;
    if (first != kFirstLine) damaged(kFirstLine);
    const size_t end = text_.rfind(kHashName);
    if (end == std::string::npos || text_.substr(end) != hash_line(std::string_view(text_).substr(0, end)))
      damaged("hash");
    text_.resize(end);
  }
  // Checks the last line.
  void end() {
    if (line("end") != "end" || at_ != text_.size()) damaged("end");
  }
  std::string value(const std::string& name) {
    const std::string found = line(name);
    if (!found.starts_with(name + " ")) damaged(name);
    return found.substr(name.size() + 1);
  }
  // Returns a number from `least` to `most`.
  int64_t integer(const std::string& name, int64_t least, int64_t most) {
    const int64_t number = integer(name);
    if (number < least || number > most) damaged(name);
    return number;
  }
  int64_t integer(const std::string& name) {
    return parse<int64_t>(name, [](const char* s, char** e) { return std::strtoll(s, e, 10); });
  }
  uint64_t hash(const std::string& name) {
    return parse<uint64_t>(name, [](const char* s, char** e) { return std::strtoull(s, e, 16); });
  }
  // Returns a finite number.
  double number(const std::string& name) {
    const double number = parse<double>(name, [](const char* s, char** e) { return std::strtod(s, e); });
    if (!std::isfinite(number)) damaged(name);
    return number;
  }
  [[noreturn]] void damaged(const std::string& name) const {
    refuse(path_, fmt::format("is damaged at \"{}\"; remove the folder to start anew", name));
  }

 private:
  // Returns the next line. `name` is for messages.
  std::string line(const std::string& name) {
    const size_t end = text_.find('\n', at_);
    if (end == std::string::npos) damaged(name);
    std::string found = text_.substr(at_, end - at_);
    at_ = end + 1;
    return found;
  }
  template <typename T, typename Read>
  T parse(const std::string& name, const Read& read) {
    const std::string text = value(name);
    char* end = nullptr;
    errno = 0;
    const T result = read(text.c_str(), &end);
    if (text.empty() || end != text.c_str() + text.size() || errno == ERANGE) damaged(name);
    return result;
  }

  const std::string path_;
  bool exists_ = false;
  std::string text_;
  size_t at_ = 0;  // in text_, of the next line
};

// Reads the numbers of the slots: each is below `memory` and occurs once.
std::vector<int> read_slots(ManifestReader& reader, int64_t memory) {
  const std::string slots = reader.value("slots");
  if (slots.size() < 2 || slots.front() != '[' || slots.back() != ']') reader.damaged("slots");
  std::vector<int> numbers;
  std::vector<bool> seen(static_cast<size_t>(memory));
  std::istringstream words(slots.substr(1, slots.size() - 2));
  for (std::string word; words >> word;) {
    char* end = nullptr;
    const int64_t slot = std::strtoll(word.c_str(), &end, 10);
    if (end != word.c_str() + word.size() || slot < 0 || slot >= memory || seen[static_cast<size_t>(slot)])
      reader.damaged("slots");
    seen[static_cast<size_t>(slot)] = true;
    numbers.push_back(static_cast<int>(slot));
  }
  return numbers;
}

// Refuses a folder with parts, which a new run would remove.
void refuse_parts(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (const std::filesystem::directory_iterator none; !error && entry != none; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.starts_with(kPartPrefix))
      refuse(folder, fmt::format("has {} but no {}; copy that file there, or give another folder", name,
                                 kManifestName));
  }
  if (error && error != std::errc::no_such_file_or_directory)
    refuse(folder, "cannot be read: " + error.message());
}

}  // namespace

std::string CheckpointPlace::file() const {
  return folder + "/" + name_of_part(*this);
}

void prepare_checkpoint_folder(const std::string& folder) {
  make_checkpoint_folder(folder);
  const AtomicFile probe(folder + "/" + kManifestName);  // is removed without a trace
}

void write_checkpoint_part(const CheckpointPlace& place, VectorShard& shard, int memory) {
  std::vector<double> numbers;
  for (const VectorId id : saved_vectors(memory)) {
    const std::span<const double> values = shard.vector(id);
    numbers.insert(numbers.end(), values.begin(), values.end());
  }
  numbers.push_back(std::bit_cast<double>(hash_numbers(numbers.data(), numbers.size())));
  const PartHead head{.iteration = place.iteration,
                      .elements = shard.elements(),
                      .begin = shard.slice().begin,
                      .end = shard.slice().end,
                      .memory = memory};
  std::string bytes(sizeof(head) + numbers.size() * sizeof(double), '\0');
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), numbers.data(), numbers.size() * sizeof(double));
  write_whole(place.folder, name_of_part(place), bytes);
}

void remove_older_parts(const CheckpointPlace& place, int64_t kept) {
  const std::string end = fmt::format("-{}-of-{}", place.rank, place.ranks);
  CheckpointPlace other = place;
  other.iteration = kept;
  std::error_code ignored;
  std::vector<std::filesystem::path> old;
  for (std::filesystem::directory_iterator entry(place.folder, ignored), none; !ignored && entry != none;
       entry.increment(ignored)) {
    const std::string name = entry->path().filename();
    if (name.starts_with(kPartPrefix) && name.ends_with(end) && name != name_of_part(place) &&
        name != name_of_part(other))
      old.push_back(entry->path());
  }
  for (const std::filesystem::path& path : old) std::filesystem::remove(path, ignored);
}

void read_checkpoint_parts(const std::string& folder, int64_t iteration, int ranks, VectorShard& shard,
                           int64_t elements, int memory) {
  const std::vector<VectorId> vectors = saved_vectors(memory);
  const VectorSlice own = shard.slice();
  for (int rank = 0; rank < ranks; ++rank) {
    const VectorSlice from = slice_of_shard(elements, ranks, rank);
    const int64_t begin = std::max(own.begin, from.begin), end = std::min(own.end, from.end);
    if (begin >= end) continue;
    const std::vector<double> numbers = read_part({folder, iteration, ranks, rank}, elements, memory);
    for (size_t v = 0; v < vectors.size(); ++v) {
      const auto first = numbers.begin() + static_cast<int64_t>(v) * from.size() + (begin - from.begin);
      std::copy(first, first + (end - begin), shard.vector(vectors[v]).begin() + (begin - own.begin));
    }
  }
}

void write_manifest(const std::string& folder, const LbfgsManifest& manifest) {
  const MinimizeState& state = manifest.state;
  std::string text = fmt::format(
      "{}\nelements {}\nmemory {}\nridge {:a}\nsamples {:x}\nranks {}\niteration {}\nevaluations {}\n"
      "objective {:a}\nlargest_gradient {:a}\nleast_objective {:a}\nleast_gradient {:a}\nfruitless "
      "{}\nexhausted {}\nslots [{}]\nend\n",
      kFirstLine, manifest.elements, manifest.memory, manifest.ridge, manifest.samples, manifest.ranks,
      state.iterations, state.evaluations, state.objective, state.largest_gradient, state.least_objective,
      state.least_gradient, state.fruitless, state.exhausted ? 1 : 0, fmt::join(state.slots, " "));
  text += hash_line(text);
  write_whole(folder, kManifestName, text);
}

std::optional<LbfgsManifest> read_manifest(const std::string& folder) {
  ManifestReader reader(folder + "/" + kManifestName);
  if (!reader.exists()) {
    refuse_parts(folder);
    return std::nullopt;
  }
  LbfgsManifest manifest;
  constexpr int64_t kMost = int64_t{1} << 53, kMostPairs = 1 << 20, kMostRanks = 1 << 20;
  reader.begin();
  manifest.elements = reader.integer("elements", 0, kMost);
  const int64_t memory = reader.integer("memory", 1, kMostPairs);
  manifest.ridge = reader.number("ridge");
  manifest.samples = reader.hash("samples");
  manifest.memory = static_cast<int>(memory);
  manifest.ranks = static_cast<int>(reader.integer("ranks", 1, kMostRanks));
  MinimizeState& state = manifest.state;
  state.started = true;
  state.iterations = reader.integer("iteration", 0, kMost);
  state.evaluations = reader.integer("evaluations", 0, kMost);
  state.objective = reader.number("objective");
  state.largest_gradient = reader.number("largest_gradient");
  state.least_objective = reader.number("least_objective");
  state.least_gradient = reader.number("least_gradient");
  state.fruitless = static_cast<int>(std::min<int64_t>(reader.integer("fruitless", 0, kMost), 1 << 20));
  state.exhausted = reader.integer("exhausted", 0, 1) != 0;
  state.slots = read_slots(reader, memory);
  reader.end();
  return manifest;
}

}  // namespace starling
