#include "starling/lbfgs/lbfgs_checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/base/unique_fd.h"

namespace starling {
namespace {

constexpr const char* kManifestName = "lbfgs.txt";
constexpr const char* kFirstLine = "starling lbfgs checkpoint 1";
constexpr uint64_t kMagic = 0x31304246474c5453;  // of a part

// The head of a part. The numbers and their hash follow.
struct PartHead {
  uint64_t magic = kMagic;
  int64_t iteration = 0, elements = 0, begin = 0, end = 0, memory = 0;
};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kCheckpoint, fmt::format("{}: {}", path, what));
}

std::string system_message() {
  return std::generic_category().message(errno);
}

// Writes a file under a temporary name, syncs it, renames it and syncs the folder.
void write_whole(const std::string& path, const void* data, size_t bytes) {
  const std::string folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  const UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) refuse(path, "cannot be made: " + system_message());
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(file.get(), from, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const std::string why = system_message();
      ::unlink(temporary.c_str());
      refuse(path, "cannot be written: " + why);
    }
    from += put, bytes -= static_cast<size_t>(put);
  }
  const UniqueFd place(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (::fsync(file.get()) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0 || !place.valid() ||
      ::fsync(place.get()) != 0) {
    const std::string why = system_message();
    ::unlink(temporary.c_str());
    refuse(path, "cannot be written: " + why);
  }
}

uint64_t hash_numbers(const double* numbers, size_t count) {
  uint64_t hash = kGolden;
  for (size_t i = 0; i < count; ++i) hash = mix64(hash + kGolden + std::bit_cast<uint64_t>(numbers[i]));
  return hash;
}

// Returns the vectors of a checkpoint: the weights, the gradient and the pairs.
std::vector<VectorId> saved_vectors(int memory) {
  std::vector<VectorId> vectors = {kPoint, kGradient};
  for (VectorId id = kFirstPair; id < s_of(memory); ++id) vectors.push_back(id);
  return vectors;
}

std::string name_of_part(const CheckpointPlace& place) {
  return fmt::format("lbfgs-{}-{}-of-{}", place.iteration, place.rank, place.ranks);
}

// Reads the numbers of a part after checking its head and hash.
std::vector<double> read_part(const CheckpointPlace& place, int64_t elements, int memory) {
  const std::string path = place.file();
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path, "cannot be opened; the checkpoint is not whole");
  PartHead head;
  file.read(reinterpret_cast<char*>(&head), sizeof(head));
  const VectorSlice slice = slice_of_shard(elements, place.ranks, place.rank);
  const PartHead expected{.iteration = place.iteration,
                          .elements = elements,
                          .begin = slice.begin,
                          .end = slice.end,
                          .memory = memory};
  if (!file || std::memcmp(&head, &expected, sizeof(head)) != 0)
    refuse(path, "is no part of this checkpoint");
  std::vector<double> numbers(saved_vectors(memory).size() * static_cast<size_t>(slice.size()) + 1);
  file.read(reinterpret_cast<char*>(numbers.data()),
            static_cast<std::streamsize>(numbers.size() * sizeof(double)));
  if (!file || file.peek() != std::ifstream::traits_type::eof() ||
      std::bit_cast<uint64_t>(numbers.back()) != hash_numbers(numbers.data(), numbers.size() - 1))
    refuse(path, "is damaged; use an older copy, or remove the folder to start anew");
  numbers.pop_back();
  return numbers;
}

// Reads "name value" lines of the manifest in their fixed order.
class ManifestReader {
 public:
  explicit ManifestReader(const std::string& path) : path_(path), file_(path) {}
  bool exists() const { return file_.is_open(); }
  void expect_line(const std::string& text) {
    std::string line;
    if (!std::getline(file_, line) || line != text) damaged(text);
  }
  std::string value(const std::string& name) {
    std::string line;
    if (!std::getline(file_, line) || !line.starts_with(name + " ")) damaged(name);
    return line.substr(name.size() + 1);
  }
  int64_t integer(const std::string& name) {
    return parse<int64_t>(name, [](const char* s, char** e) { return std::strtoll(s, e, 10); });
  }
  uint64_t hash(const std::string& name) {
    return parse<uint64_t>(name, [](const char* s, char** e) { return std::strtoull(s, e, 16); });
  }
  double number(const std::string& name) {
    return parse<double>(name, [](const char* s, char** e) { return std::strtod(s, e); });
  }
  [[noreturn]] void damaged(const std::string& name) const {
    refuse(path_, fmt::format("is damaged at \"{}\"; remove the folder to start anew", name));
  }

 private:
  template <typename T, typename Read>
  T parse(const std::string& name, const Read& read) {
    const std::string text = value(name);
    char* end = nullptr;
    errno = 0;
    const T result = read(text.c_str(), &end);
    if (text.empty() || *end != '\0' || errno == ERANGE) damaged(name);
    return result;
  }

  const std::string path_;
  std::ifstream file_;
};

}  // namespace

std::string CheckpointPlace::file() const {
  return folder + "/" + name_of_part(*this);
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
  write_whole(place.file(), bytes.data(), bytes.size());
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
    if (name.starts_with("lbfgs-") && name.ends_with(end) && name != name_of_part(place) &&
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
  const std::string text = fmt::format(
      "{}\nelements {}\nmemory {}\nridge {:a}\nsamples {:x}\nranks {}\niteration {}\nevaluations {}\n"
      "objective {:a}\nlargest_gradient {:a}\nslots [{}]\nend\n",
      kFirstLine, manifest.elements, manifest.memory, manifest.ridge, manifest.samples, manifest.ranks,
      state.iterations, state.evaluations, state.objective, state.largest_gradient,
      fmt::join(state.slots, " "));
  write_whole(folder + "/" + kManifestName, text.data(), text.size());
}

std::optional<LbfgsManifest> read_manifest(const std::string& folder) {
  ManifestReader reader(folder + "/" + kManifestName);
  if (!reader.exists()) return std::nullopt;
  LbfgsManifest manifest;
  reader.expect_line(kFirstLine);
  manifest.elements = reader.integer("elements");
  const int64_t memory = reader.integer("memory");
  manifest.ridge = reader.number("ridge");
  manifest.samples = reader.hash("samples");
  const int64_t ranks = reader.integer("ranks");
  if (memory < 1 || memory > (1 << 20)) reader.damaged("memory");
  if (ranks < 1 || ranks > (1 << 20)) reader.damaged("ranks");
  manifest.memory = static_cast<int>(memory);
  manifest.ranks = static_cast<int>(ranks);
  MinimizeState& state = manifest.state;
  state.started = true;
  state.iterations = reader.integer("iteration");
  state.evaluations = reader.integer("evaluations");
  state.objective = reader.number("objective");
  state.largest_gradient = reader.number("largest_gradient");
  std::string slots = reader.value("slots");
  if (slots.size() < 2 || slots.front() != '[' || slots.back() != ']') reader.damaged("slots");
  std::istringstream words(slots.substr(1, slots.size() - 2));
  for (std::string word; words >> word;) {
    char* end = nullptr;
    const int64_t slot = std::strtoll(word.c_str(), &end, 10);
    if (*end != '\0' || slot < 0 || slot >= memory) reader.damaged("slots");
    state.slots.push_back(static_cast<int>(slot));
  }
  if (static_cast<int64_t>(state.slots.size()) > memory) reader.damaged("slots");
  reader.expect_line("end");
  return manifest;
}

}  // namespace starling
