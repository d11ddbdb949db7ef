// Damages the manifests of checkpoints.
#include "starling/train/checkpoint_folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::HasSubstr;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// Writes a checkpoint of one file. Returns its folder.
std::filesystem::path write_one(const std::filesystem::path& run_dir) {
  CheckpointFolderWriter writer(run_dir, 10);
  writer.add_text("state.json", "{}");
  return writer.commit();
}

// The older whole checkpoint must be used if a damaged byte makes the newest one look newer than the program.
TEST(CheckpointFolder, AChangedVersionIsDamageAndNoNewerFormat) {
  const TempDir run;
  const auto folder = write_one(run.path());
  ASSERT_TRUE(check_checkpoint(folder).whole());
  const auto manifest = folder / "manifest.json";
  const std::string text = text_of(manifest);
  for (const char* version : {"3", "0", "1", "99", "6"}) {
    std::string changed = text;
    const std::string name = "\"version\": ";
    changed.replace(changed.find(name) + name.size(), 1, version);
    write_text(manifest, changed);
    const CheckpointCheck check = check_checkpoint(folder);
    EXPECT_FALSE(check.newer) << version;
    EXPECT_THAT(check.damage, HasSubstr("manifest")) << version;
  }
}

TEST(CheckpointFolder, AManifestOfANewerFormatIsNewer) {
  const TempDir run;
  const auto folder = write_one(run.path());
  const auto manifest = folder / "manifest.json";
  auto newer = nlohmann::json::parse(text_of(manifest));
  newer["version"] = newest_checkpoint_version() + 1;
  newer.erase("manifest_xxh3");
  const std::string hashed = newer.dump();
  write_text(manifest, hashed);
  EXPECT_TRUE(check_checkpoint(folder).newer);
  const XXH128_hash_t hash = XXH3_128bits(hashed.data(), hashed.size());
  newer["manifest_xxh3"] = fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  write_text(manifest, newer.dump(1));
  const CheckpointCheck check = check_checkpoint(folder);
  EXPECT_TRUE(check.newer);
  EXPECT_EQ(check.damage, "");
  EXPECT_EQ(check.version, newest_checkpoint_version() + 1);
}

TEST(CheckpointFolder, BytesBehindAZeroByteAreDamage) {
  const TempDir run;
  const auto folder = write_one(run.path());
  const auto manifest = folder / "manifest.json";
  write_text(manifest, text_of(manifest) + std::string("\0garbage{{", 10));
  EXPECT_THAT(check_checkpoint(folder).damage, HasSubstr("manifest.json is damaged"));
}

}  // namespace
}  // namespace starling
