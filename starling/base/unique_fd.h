// UniqueFd owns a file descriptor and closes it.
#pragma once

#include <unistd.h>

#include <utility>

namespace starling {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  // The descriptor, or -1 if there is none.
  int get() const { return fd_; }
  // Whether there is a descriptor.
  bool valid() const { return fd_ >= 0; }
  // Returns the descriptor, which then belongs to the caller.
  int release() { return std::exchange(fd_, -1); }
  // Closes the descriptor and takes over `fd`.
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace starling
