// ReadStall describes a step that waits for data: how long, for which samples, and for which file.
#pragma once

#include <cstdint>
#include <string>

namespace starling {

// A wait of next() of a loader that has reached LoaderOptions::stall_s, or a later report of that wait.
struct ReadStall {
  std::string source;    // SourceInfo::name
  std::string place;     // what is being read (read_place.h); empty if the source does not say
  int64_t step = 0;      // the first step of a run is step 1
  int64_t epoch = 0;     // counted from 0
  int64_t first = 0;     // the first position of this rank's samples in the order of the epoch
  int64_t samples = 0;   // of this rank
  double waited_s = 0;   // seconds
  bool over = false;     // the batch has come
  int64_t prefetch = 0;  // batches that are read ahead
  int64_t workers = 0;   // threads that read ahead
  int64_t bridging = 0;  // if over: the prefetch that outlasts such a wait at the present speed; 0: unknown
};

// Returns the report of rank `rank` as sentences: what waits, what is read, and what to do.
std::string stall_text(int rank, const ReadStall& stall);

}  // namespace starling
