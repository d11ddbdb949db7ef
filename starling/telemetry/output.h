// Where a text sink writes: a file descriptor, or memory in tests.
#pragma once

#include <string>
#include <string_view>

#include "starling/base/unique_fd.h"

namespace starling {

class Output {
 public:
  virtual ~Output() = default;
  // False once the reader is gone or the disk is full; later calls may still be made.
  virtual bool write(std::string_view text) = 0;
  // Columns of the terminal behind it now (it may be resized); 0 where there is none.
  virtual int columns() const { return 0; }
};

// Writes whole strings to a descriptor. A closed pipe is a `false`, never a SIGPIPE.
class FdOutput final : public Output {
 public:
  explicit FdOutput(int borrowed_fd) : fd_(borrowed_fd) {}
  explicit FdOutput(UniqueFd owned) : owned_(std::move(owned)), fd_(owned_.get()) {}
  bool write(std::string_view text) override;
  int columns() const override;
  int fd() const { return fd_; }

 private:
  UniqueFd owned_;
  int fd_;
};

class StringOutput final : public Output {
 public:
  explicit StringOutput(int columns = 0) : columns_(columns) {}
  bool write(std::string_view text) override {
    text_ += text;
    return true;
  }
  int columns() const override { return columns_; }
  const std::string& text() const { return text_; }
  void clear() { text_.clear(); }
  void set_columns(int columns) { columns_ = columns; }

 private:
  std::string text_;
  int columns_;
};

}  // namespace starling
