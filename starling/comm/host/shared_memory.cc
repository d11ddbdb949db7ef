#include "starling/comm/host/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/net/deadline.h"

namespace starling {
namespace {

// Populated windows of kHugeWindow bytes or more consist of huge pages if the kernel has them. Their size is
// rounded up to whole huge pages. Passes over huge pages are faster (docs/explanation/communication.md).
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugeWindow = size_t{8} << 20;

size_t page_bytes() {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t round_up(size_t bytes, size_t unit) {
  return (bytes == 0 ? unit : (bytes + unit - 1) / unit * unit);
}

[[noreturn]] void refuse(const char* what, size_t bytes) {
  throw CommError(fmt::format(
      "cannot {} a shared-memory window of {} bytes: {}; smaller buckets or fewer ranks per host need "
      "less memory",
      what, bytes, std::strerror(errno)));
}

class SharedWindow final : public Window {
 public:
  // `bytes` is the size of a region. It is a multiple of `align`. Each region begins at a multiple of
  // `align`.
  SharedWindow(size_t bytes, int local_size, size_t align)
      : bytes_(bytes), reserved_(bytes * static_cast<size_t>(local_size) + align) {
    reservation_ = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reservation_ == MAP_FAILED) refuse("reserve", reserved_);
    const auto address = reinterpret_cast<uintptr_t>(reservation_);
    base_ = static_cast<std::byte*>(reservation_) + (round_up(address, align) - address);
  }
  ~SharedWindow() override { munmap(reservation_, reserved_); }
  SharedWindow(const SharedWindow&) = delete;

  size_t bytes() const override { return bytes_; }
  std::byte* region(int local_rank) const override {
    return base_ + bytes_ * static_cast<size_t>(local_rank);
  }

  void map(int local_rank, int fd, bool populate) {
    const int flags = MAP_SHARED | MAP_FIXED | (populate ? MAP_POPULATE : 0);
    if (mmap(region(local_rank), bytes_, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED)
      refuse("map", bytes_);
  }

 private:
  size_t bytes_;
  size_t reserved_;
  void* reservation_;
  std::byte* base_;
};

UniqueFd make_region(const std::string& key, size_t bytes) {
  UniqueFd fd(memfd_create(("starling " + key).substr(0, 200).c_str(), MFD_CLOEXEC));
  if (!fd.valid()) refuse("create", bytes);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) refuse("size", bytes);
  return fd;
}

// Gives a mapped region huge pages before anything else touches it.
// MADV_COLLAPSE (Linux 6.1) needs no privileges, and shmem_enabled may have any value but `deny`. It needs
// one allocated page in each huge page. If the kernel refuses to collapse the pages, the region keeps small
// pages.
void take_huge_pages(const UniqueFd& fd, std::byte* region, size_t bytes) {
#ifndef MADV_COLLAPSE
  constexpr int MADV_COLLAPSE = 25;
#endif
  for (size_t at = 0; at < bytes; at += kHugePage)
    posix_fallocate(fd.get(), static_cast<off_t>(at), static_cast<off_t>(page_bytes()));
  madvise(region, bytes, MADV_COLLAPSE);
}

// Allocates the pages now and throws if there is no memory. Otherwise a later access would end in SIGBUS.
void take_pages(const UniqueFd& fd, size_t bytes) {
  do {
    errno = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (errno == EINTR);  // a signal, such as that of a profiler, ends the call early
  if (errno != 0) refuse("allocate", bytes);
}

UniqueFd await_region(Store& store, const WindowRequest& request, int peer) {
  constexpr Milliseconds kLook{200};
  const Deadline deadline = deadline_in(request.timeout);
  for (;;) {
    try {
      return store.get_fd(fmt::format("{}/{}", request.key, peer), std::min(kLook, request.timeout));
    } catch (const TimeoutError&) {
      if (request.look) request.look(peer);
      if (has_passed(deadline)) {
        throw TimeoutError(
            fmt::format("local rank {} did not offer its window '{}' within {} ms; see that rank's log", peer,
                        request.key, request.timeout.count()));
      }
    }
  }
}

UniqueFd fetch_region(Store& store, const WindowRequest& request, int peer, size_t bytes) {
  UniqueFd fd = await_region(store, request, peer);
  struct stat info{};
  if (fstat(fd.get(), &info) != 0 || static_cast<size_t>(info.st_size) != bytes) {
    throw CommError(fmt::format(
        "window '{}': local rank {} asks for {} bytes, local rank {} for {}; every rank of a host must "
        "allocate the same windows in the same order",
        request.key, peer, info.st_size, request.local_rank, bytes));
  }
  return fd;
}

}  // namespace

std::shared_ptr<Window> make_shared_window(Store* store, const WindowRequest& request) {
  const size_t page = request.populate && request.bytes >= kHugeWindow ? kHugePage : page_bytes();
  const size_t bytes = round_up(request.bytes, page);
  auto window = std::make_shared<SharedWindow>(bytes, request.local_size, page);
  const UniqueFd own = make_region(request.key, bytes);
  if (page == kHugePage) {
    window->map(request.local_rank, own.get(), false);
    take_huge_pages(own, window->region(request.local_rank), bytes);
  }
  if (request.populate) take_pages(own, bytes);
  window->map(request.local_rank, own.get(), request.populate);
  if (request.local_size == 1) return window;
  store->put_fd(fmt::format("{}/{}", request.key, request.local_rank), own.get(), request.local_size - 1);
  for (int r = 0; r < request.local_size; ++r) {
    if (r == request.local_rank) continue;
    window->map(r, fetch_region(*store, request, r, bytes).get(), request.populate);
  }
  return window;
}

}  // namespace starling
