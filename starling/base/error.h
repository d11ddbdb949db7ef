// The exceptions of Starling. A fault throws an exception, a bug fails a CHECK (check.h), and an expected
// outcome is a return value. Code catches an exception only if it can recover from the fault. All other
// exceptions reach the outermost function of the thread or the process.
//
// Every message says what happened, where it happened, and what to do.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace starling {

// The kind of a fault. It determines the exit status of the program (starling/run/message/exit_status.h).
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

// The base class of all exceptions of Starling. what() is the message for the user. Reading an Error from
// several threads is safe.
class Error : public std::runtime_error {
 public:
  // `rank` is the rank on which the fault happened, or -1 if it is unknown.
  Error(ErrorCode code, const std::string& message, int rank = -1)
      : std::runtime_error(message), code_(code), rank_(rank) {}
  // The kind of the fault.
  ErrorCode code() const { return code_; }
  // The rank on which the fault happened, or -1 if it is unknown.
  int rank() const { return rank_; }

 private:
  ErrorCode code_;
  int rank_;
};

// The user wrote an invalid value. `where` is "file:line:column", a flag such as "--lr", or a key.
class ConfigError : public Error {
 public:
  // Puts `where` and a colon before the message. An empty `where` adds nothing.
  ConfigError(std::string where, const std::string& message)
      : Error(ErrorCode::kConfig, where.empty() ? message : where + ": " + message),
        where_(std::move(where)) {}
  // The place of the invalid value; empty if there is none. Valid as long as this object.
  const std::string& where() const { return where_; }

 private:
  std::string where_;
};

// A data file is missing, truncated or inconsistent. The message names the file and, if known, the offset.
class DataError : public Error {
 public:
  // `message` is the whole text of what(). It must name the file.
  explicit DataError(const std::string& message) : Error(ErrorCode::kData, message) {}
};

// Communication failed. For example, a peer was lost, a peer violates the protocol, or the system has no
// descriptors left.
class CommError : public Error {
 public:
  // `peer` is the rank that caused the error, or -1 if it is unknown.
  CommError(const std::string& message, int peer = -1) : Error(ErrorCode::kComm, message), peer_(peer) {}
  // The rank that caused the error, in the group of the failed operation, or -1 if it is unknown.
  int peer() const { return peer_; }

 protected:
  // For a derived class that has a code of its own.
  CommError(ErrorCode code, const std::string& message, int peer) : Error(code, message), peer_(peer) {}

 private:
  int peer_;
};

// A wait exceeded its timeout. `late` is the first late rank, or -1 if it is unknown. The message says what
// was awaited. For a collective, it names the collective, its sequence number, the late rank and the host of
// that rank.
class TimeoutError : public CommError {
 public:
  // peer() returns `late`.
  TimeoutError(const std::string& message, int late = -1) : CommError(ErrorCode::kTimeout, message, late) {}
};

}  // namespace starling
