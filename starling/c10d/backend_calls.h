// Helpers that the sources of StarlingBackend share. Only they include this file.
#pragma once

#include <c10/core/InferenceMode.h>
#include <poll.h>

#include <chrono>
#include <utility>

#include "starling/c10d/backend.h"
#include "starling/c10d/data_type.h"
#include "starling/c10d/tensor_bytes.h"

namespace starling {

// Calls `look` until it returns true or `end` is reached. Returns whether `look` returned true. The calls are
// frequent at first and every millisecond later.
template <typename Look>
bool look_until(std::chrono::steady_clock::time_point end, const Look& look) {
  constexpr int kOften = 1000;
  for (int i = 0;; ++i) {
    if (look()) return true;
    if (std::chrono::steady_clock::now() >= end) return look();
    ::poll(nullptr, 0, i < kOften ? 0 : 1);
  }
}

template <typename Body>
void StarlingBackend::execute(Lane lane, bool async, const c10::intrusive_ptr<StarlingWork>& work,
                              Body body) {
  auto begun = [body = std::move(body), work = work.get()] {  // complete() keeps the work alive
    // Without this mode, copying a result into a leaf that requires gradients would fail, or record a graph.
    const c10::InferenceMode no_autograd;
    work->begin();
    body();
  };
  auto complete = [work](std::exception_ptr error) { work->complete(std::move(error)); };
  if (async) {
    lanes_.submit(lane, {std::move(begun), std::move(complete)});
  } else {
    lanes_.run(lane, std::move(begun), std::move(complete));
  }
}

// Executes a collective. backend.h has the contract.
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
  constexpr Lane kCollectives{-1, -1};
  const bool async = note_coalesced(work) || options.asyncOp;
  execute(kCollectives, async, work,
          [this, on = group(), body = std::move(body)] { guarded([&] { body(*on); }); });
  return work;
}

}  // namespace starling
