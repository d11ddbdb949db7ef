// What the calls of StarlingBackend share; included by its sources only.
#pragma once

#include <poll.h>

#include <chrono>
#include <utility>

#include "starling/c10d/backend.h"
#include "starling/c10d/data_type.h"
#include "starling/c10d/tensor_bytes.h"

namespace starling {

// Calls `look` until it returns true or `end` has come, at first often, later every millisecond.
template <typename Look>
bool look_until(std::chrono::steady_clock::time_point end, const Look& look) {
  constexpr int kOften = 1000;
  for (int i = 0;; ++i) {
    if (look()) return true;
    if (std::chrono::steady_clock::now() >= end) return look();
    ::poll(nullptr, 0, i < kOften ? 0 : 1);
  }
}

template <typename CallOptions, typename Body>
StarlingBackend::WorkPtr StarlingBackend::collective(c10d::OpType type, const char* title,
                                                     const CallOptions& options, Tensors outputs, Body body) {
  const WorkDescription description{
      .rank = rank_,
      .type = type,
      .title = title,
      .sequence = ++sequence_,
      .timeout = options.timeout.count() > 0 ? options.timeout : std::chrono::milliseconds(wait_limit_)};
  auto work = c10::make_intrusive<StarlingWork>(description, std::move(outputs), hooks_);
  Job job{[this, on = group(), body = std::move(body)] { guarded([&] { body(*on); }); }, work};
  if (note_coalesced(work) || options.asyncOp) {
    collectives_.submit(std::move(job));
  } else {
    collectives_.run(std::move(job));
  }
  return work;
}

}  // namespace starling
