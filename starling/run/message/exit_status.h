// What the program's exit status says. Scripts may rely on it.
#pragma once

#include "starling/base/error.h"

namespace starling {

enum ExitStatus : int {
  kExitOk = 0,
  kExitOther = 1,  // a check failed (verify), or a fault of no kind below
  kExitConfig = 2,
  kExitData = 3,
  kExitComm = 4,
  kExitCheckpoint = 5,
  kExitNumeric = 6,
  kExitInterrupted = 130,  // Ctrl-C; a run that another signal interrupts ends with 128 + the signal
};

constexpr ExitStatus exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kConfig:
      return kExitConfig;
    case ErrorCode::kData:
      return kExitData;
    case ErrorCode::kComm:
    case ErrorCode::kTimeout:
      return kExitComm;
    case ErrorCode::kCheckpoint:
      return kExitCheckpoint;
    case ErrorCode::kNumeric:
      return kExitNumeric;
    case ErrorCode::kInterrupted:
      return kExitInterrupted;
    case ErrorCode::kInternal:
    case ErrorCode::kMemory:
      return kExitOther;
  }
  return kExitOther;
}

// The word for a kind of fault in {"event":"error","code":…}.
constexpr const char* code_word(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kConfig:
      return "config";
    case ErrorCode::kData:
      return "data";
    case ErrorCode::kComm:
      return "comm";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kCheckpoint:
      return "checkpoint";
    case ErrorCode::kNumeric:
      return "numeric";
    case ErrorCode::kMemory:
      return "memory";
    case ErrorCode::kInterrupted:
      return "interrupted";
  }
  return "internal";
}

}  // namespace starling
