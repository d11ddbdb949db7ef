// Corpus writes the first inputs of a fuzzer.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

namespace starling {

// The folder ROOT/TARGET, with the files seed-0, seed-1 and so on.
class Corpus {
 public:
  Corpus(const std::filesystem::path& root, const std::string& target) : folder_(root / target) {
    std::filesystem::create_directories(folder_);
  }
  void add(const std::string& bytes) {
    std::ofstream file(folder_ / fmt::format("seed-{}", count_++), std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path folder_;
  int count_ = 0;
};

inline std::string bytes_of(std::initializer_list<int> values) {
  std::string text;
  for (const int v : values) text += static_cast<char>(v);
  return text;
}

template <typename Byte>
std::string text_of(const std::vector<Byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Seeds of the parsers of files, in file_seeds.cc.
void file_seeds(const std::filesystem::path& root);
// Seeds of the readers of checkpoints, in checkpoint_seeds.cc.
void checkpoint_seeds(const std::filesystem::path& root);
// Seeds of the parsers of lines and messages, in text_seeds.cc.
void text_seeds(const std::filesystem::path& root);

}  // namespace starling
