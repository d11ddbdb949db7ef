#include "starling/comm/host/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "starling/base/unique_fd.h"

namespace starling {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Returns how many KiB of huge pages of shared memory the mapping around `at` has in this process
// (/proc/self/smaps).
size_t huge_kib(const void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-')
      inside = begin <= address && address < end;
    else if (inside && line.starts_with("ShmemPmdMapped:"))
      return std::stoul(line.substr(std::strlen("ShmemPmdMapped:")));
  }
  return 0;
}

// Returns whether this kernel gives a mapped memfd a huge page on request. It asks by the same system call,
// without Starling's code.
bool kernel_makes_huge_pages() {
  const UniqueFd fd(memfd_create("starling probe", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), kHugePage) != 0) return false;
  void* reserved = mmap(nullptr, 2 * kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return false;
  auto* start = static_cast<std::byte*>(reserved);
  start += kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage;
  void* page = mmap(start, kHugePage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0);
  bool made = false;
  if (page != MAP_FAILED) {
    std::memset(page, 1, 4096);
    constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1
    made = madvise(page, kHugePage, kCollapse) == 0 && huge_kib(page) == kHugePage / 1024;
  }
  munmap(reserved, 2 * kHugePage);
  return made;
}

std::shared_ptr<Window> window_of(size_t bytes, bool populate) {
  WindowRequest request;
  request.key = "test";
  request.bytes = bytes;
  request.populate = populate;
  return make_shared_window(nullptr, request);
}

TEST(SharedMemory, LargeWindowsLieInHugePages) {
  if (!kernel_makes_huge_pages()) GTEST_SKIP() << "this kernel makes no huge pages on request";
  const auto window = window_of(5 * kHugePage - 100, true);
  EXPECT_EQ(window->bytes(), 5 * kHugePage);
  EXPECT_EQ(huge_kib(window->region(0)), 5 * kHugePage / 1024);
}

TEST(SharedMemory, OthersLieInPagesOfTheirOwnSize) {
  for (const bool populate : {true, false}) {
    const size_t bytes =
        populate ? kHugePage + 1 : 5 * kHugePage + 1;  // pages of the second kind are taken when written
    const auto window = window_of(bytes, populate);
    EXPECT_LT(window->bytes(), bytes + kHugePage);
    EXPECT_EQ(window->bytes() % static_cast<size_t>(sysconf(_SC_PAGESIZE)), 0U);
    EXPECT_EQ(window->region(0)[0], std::byte{0});
    EXPECT_EQ(window->region(0)[bytes - 1], std::byte{0});
  }
}

}  // namespace
}  // namespace starling
