// Makes backends of some of the ranks of another backend.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "starling/base/error.h"
#include "starling/c10d/backend.h"

namespace starling {
namespace {

constexpr int kAbortBefore = 1;  // torch.distributed.SHRINK_ABORT

}  // namespace

RendezvousOptions StarlingBackend::rendezvous_of(const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& options) const {
  RendezvousOptions rendezvous = rendezvous_;
  rendezvous.world_ranks.clear();
  for (const int r : ranks) rendezvous.world_ranks.push_back(world_rank(r));
  if (options && !options->group_name.empty()) rendezvous.name = options->group_name;
  if (options && options->timeout.count() > 0) rendezvous.group.timeout = options->timeout;
  return rendezvous;
}

StarlingBackend::BackendPtr StarlingBackend::split(const StorePtr& store, const std::vector<int>& ranks,
                                                   const c10::intrusive_ptr<Options>& options) {
  for (const int r : ranks) check_rank("split", r);
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return {};
  return make(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
              rendezvous_of(ranks, options));
}

StarlingBackend::BackendPtr StarlingBackend::merge(const StorePtr& store,
                                                   const c10::intrusive_ptr<Options>& options,
                                                   const int& rank, const int& size) {
  return make(store, rank, size, rendezvous_of({}, options));
}

StarlingBackend::BackendPtr StarlingBackend::shrink(const std::vector<int64_t>& excluded, int flags,
                                                    const c10::intrusive_ptr<Options>& options) {
  if (!store_) {
    throw Error(ErrorCode::kConfig, "shrink: this group was not made from a store of c10d; make a new one");
  }
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    if (std::find(excluded.begin(), excluded.end(), r) == excluded.end()) ranks.push_back(r);
  }
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format("shrink: rank {} is among the excluded ranks ({}); only the remaining ranks call shrink",
                    rank_, fmt::join(excluded, ", ")));
  }
  if ((flags & kAbortBefore) != 0) abort();
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(fmt::format("starling/left/{}/", fmt::join(ranks, ",")), store_);
  return make(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
              rendezvous_of(ranks, options));
}

c10d::ReconfigureHandle StarlingBackend::get_reconfigure_handle() const {
  if (point_) return point_->handle();
  throw Error(ErrorCode::kConfig, "this group was not made to be reconfigured; give enable_reconfigure=True");
}

StarlingBackend::WorkPtr StarlingBackend::reconfigure(const c10d::ReconfigureOptions& options) {
  get_reconfigure_handle();
  std::vector<std::string> handles;
  if (const auto* ordered = std::get_if<std::vector<std::string>>(&options.handles)) {
    handles = *ordered;
  } else {
    const auto& set = std::get<std::unordered_set<std::string>>(options.handles);
    handles.assign(set.begin(), set.end());
    std::sort(handles.begin(), handles.end());
  }
  RendezvousOptions rendezvous = rendezvous_;
  rendezvous.world_ranks.clear();
  if (options.timeout) rendezvous.group.timeout = *options.timeout;
  {
    const std::lock_guard lock(group_mutex_);
    if (group_) group_->abort("the group is reconfigured");
    group_.reset();
  }
  auto group = point_->join(handles, options.uuid, rendezvous);
  {
    const std::lock_guard lock(group_mutex_);
    rank_ = group->rank();
    size_ = group->size();
    group_ = std::move(group);
    rendezvous_.world_ranks.clear();
  }
  sequence_ = 0;
  windows_ = 0;  // a rank that joins now has made no window
  monitored_ = 0;
  error_ = c10d::ErrorType::SUCCESS;
  auto work = c10::make_intrusive<StarlingWork>(
      WorkDescription{.rank = rank_, .title = "starling:reconfigure", .sequence = 0}, Tensors{});
  work->complete(nullptr);
  return work;
}

}  // namespace starling
