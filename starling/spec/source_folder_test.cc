#include "starling/spec/source_folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "starling/base/error.h"
#include "starling/spec/config.h"
#include "starling/spec/validate.h"

namespace starling {
namespace {

using testing::HasSubstr;

std::string error_of_source(const std::string& source) {
  Config config;
  apply_set(config, "data.source=" + source);
  try {
    validate(config.spec, config.origins, 0);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(SourceFolder, TheFilesOfAFolderTellItsKind) {
  const auto folder = std::filesystem::path(testing::TempDir()) / fmt::format("source_folder_{}", ::getpid());
  const std::string path = folder.string();
  std::filesystem::create_directories(folder);
  EXPECT_EQ(source_of_folder(path), "");
  EXPECT_EQ(source_of_folder(path + "/absent"), "");
  std::ofstream(folder / "train-images-idx3-ubyte.gz") << "x";
  EXPECT_EQ(source_of_folder(path), "idx:" + path);
  EXPECT_THAT(error_of_source(path), HasSubstr("is unknown: did you mean \"idx:" + path + "\"? use idx:DIR"));
  std::filesystem::rename(folder / "train-images-idx3-ubyte.gz", folder / "data_batch_1.bin");
  EXPECT_EQ(source_of_folder(path), "cifar-bin:" + path);
  EXPECT_EQ(source_of_folder(path + "/data_batch_1.bin"), "");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace starling
