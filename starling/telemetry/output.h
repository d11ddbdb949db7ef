// The destination of a text sink: a file descriptor, or memory in tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "starling/base/unique_fd.h"

namespace starling {

class Output {
 public:
  virtual ~Output() = default;
  // Returns false if the reader has closed its end or the disk is full. Later calls are allowed.
  virtual bool write(std::string_view text) = 0;
  // Returns the present number of columns of the terminal, or 0 if the destination is not a terminal.
  virtual int columns() const { return 0; }
};

// FdOutput writes complete strings to a descriptor. If a pipe is closed, write() returns false and raises no
// SIGPIPE.
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

// Writes a line to standard output at once. If stdio has buffered earlier text, flush it before. Returns
// false as Output::write() does. Also returns false if a non-blocking standard output has no room for 10 s.
bool print_line(std::string_view line);

// FencedOutput writes a text only if `open` returns true at that moment. Otherwise it drops the text and
// reports success. Another process may have taken over the file, for example.
class FencedOutput final : public Output {
 public:
  // `open` is called before every write, on the writing thread.
  FencedOutput(std::unique_ptr<Output> inner, std::function<bool()> open)
      : inner_(std::move(inner)), open_(std::move(open)) {}
  bool write(std::string_view text) override { return !open_() || inner_->write(text); }

 private:
  std::unique_ptr<Output> inner_;
  std::function<bool()> open_;
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
