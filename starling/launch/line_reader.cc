#include "starling/launch/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace starling {

// Returns false if the pipe is empty or closed.
bool LineReader::read_some(const Take& take) {
  char buffer[16 * 1024];
  pollfd ready{fd_.get(), POLLIN,
               0};  // a read may block, because other processes may share the file description
  if (::poll(&ready, 1, 0) <= 0) return false;
  ssize_t n;
  do {
    n = ::read(fd_.get(), buffer, sizeof buffer);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0) {
    fd_.reset();
    if (!partial_.empty()) take(partial_);
    partial_.clear();
    return false;
  }
  partial_.append(buffer, static_cast<size_t>(n));
  size_t begin = 0;
  for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    take(partial_.substr(begin, end - begin));
  }
  partial_.erase(0, begin);
  if (partial_.size() > longest_) {
    take(partial_);
    partial_.clear();
  }
  return true;
}

void LineReader::read(const Take& take) {
  for (int i = 0; i < 16 && open() && read_some(take); ++i) {
  }
}

void LineReader::finish(const Take& take) {
  while (open() && read_some(take)) {
  }
  fd_.reset();
  if (!partial_.empty()) take(partial_);
  partial_.clear();
}

}  // namespace starling
