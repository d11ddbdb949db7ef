// The exceptions of Starling. A fault throws one of these; a bug ends in CHECK (check.h); an expected outcome is a
// return value. Only the supervisor, the edges of threads and processes, and the program catch.
//
// Every message says what happened, where, and what to do about it.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace starling {

// What kind of fault an Error is; the program's exit status depends on it (starling/run/exit_status.h).
enum class ErrorCode {
  kInternal,
  kConfig,
  kData,
  kComm,
  kTimeout,
  kCheckpoint,
  kNumeric,
  kMemory,
  kInterrupted
};

class Error : public std::runtime_error {
 public:
  // rank: the rank that the fault happened on, -1 where none is known.
  Error(ErrorCode code, const std::string& message, int rank = -1)
      : std::runtime_error(message), code_(code), rank_(rank) {}
  ErrorCode code() const { return code_; }
  int rank() const { return rank_; }

 private:
  ErrorCode code_;
  int rank_;
};

// A value that the user wrote is wrong. `where` is "file:line:column", a flag such as "--lr", or a key.
class ConfigError : public Error {
 public:
  ConfigError(std::string where, const std::string& message)
      : Error(ErrorCode::kConfig, where.empty() ? message : where + ": " + message),
        where_(std::move(where)) {}
  const std::string& where() const { return where_; }

 private:
  std::string where_;
};

// A data file is missing, truncated or contradicts itself. The message names the file and, where it has one, the offset.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message) : Error(ErrorCode::kData, message) {}
};

// A peer is gone or does not speak our protocol.
class CommError : public Error {
 public:
  // peer: the rank that is at fault, -1 if it is not known.
  CommError(const std::string& message, int peer = -1) : Error(ErrorCode::kComm, message), peer_(peer) {}
  int peer() const { return peer_; }

 protected:
  CommError(ErrorCode code, const std::string& message, int peer) : Error(code, message), peer_(peer) {}

 private:
  int peer_;
};

// A wait came to its end. `late` is the first late rank; the message names the collective, its sequence number, the
// late rank and its host.
class TimeoutError : public CommError {
 public:
  TimeoutError(const std::string& message, int late = -1) : CommError(ErrorCode::kTimeout, message, late) {}
};

}  // namespace starling
