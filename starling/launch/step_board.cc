#include "starling/launch/step_board.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/launch/rank_process.h"

namespace starling {
namespace {

// Each rank has a cache line, because ranks write concurrently.
constexpr size_t kStride = 64;

size_t bytes_for(int ranks) {
  return kStride * static_cast<size_t>(ranks);
}

}  // namespace

StepBoard::StepBoard(UniqueFd fd, int map_fd, int ranks) : fd_(std::move(fd)), ranks_(ranks) {
  void* map = ::mmap(nullptr, bytes_for(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, map_fd, 0);
  if (map == MAP_FAILED) {
    throw Error(ErrorCode::kInternal, fmt::format("cannot map the step board: {}", std::strerror(errno)));
  }
  map_ = map;
}

StepBoard::StepBoard(StepBoard&& other) noexcept
    : fd_(std::move(other.fd_)), map_(std::exchange(other.map_, nullptr)), ranks_(other.ranks_) {}

StepBoard::~StepBoard() {
  if (map_) ::munmap(map_, bytes_for(ranks_));
}

StepBoard StepBoard::create(int ranks) {
  UniqueFd fd(::memfd_create("starling-steps", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes_for(ranks))) != 0) {
    throw Error(ErrorCode::kInternal, fmt::format("cannot create the step board: {}", std::strerror(errno)));
  }
  fd = raised(fd.release());  // ranks get it under its number
  const int map_fd = fd.get();
  StepBoard board(std::move(fd), map_fd, ranks);
  for (int r = 0; r < ranks; ++r) board.set(r, -1);
  return board;
}

StepBoard StepBoard::open(int fd, int ranks) {
  struct stat st{};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || static_cast<size_t>(st.st_size) != bytes_for(ranks)) {
    throw Error(ErrorCode::kInternal,
                fmt::format("STARLING_BOARD_FD={} is not the step board of {} ranks. Unset it", fd, ranks));
  }
  return StepBoard(UniqueFd(), fd, ranks);
}

int64_t* StepBoard::cell(int rank) const {
  STARLING_CHECK(rank >= 0 && rank < ranks_, "rank {} of {}", rank, ranks_);
  return reinterpret_cast<int64_t*>(static_cast<std::byte*>(map_) + kStride * static_cast<size_t>(rank));
}

void StepBoard::set(int rank, int64_t step) {
  std::atomic_ref(*cell(rank)).store(step, std::memory_order_relaxed);
}

int64_t StepBoard::get(int rank) const {
  return std::atomic_ref(*cell(rank)).load(std::memory_order_relaxed);
}

}  // namespace starling
