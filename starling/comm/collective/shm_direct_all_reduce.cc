#include "starling/comm/collective/shm_direct_all_reduce.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "starling/comm/collective/shm_numa_all_reduce.h"
#include "starling/comm/collective/staging.h"
#include "starling/comm/reduce/copy_bytes.h"
#include "starling/comm/reduce/reduce_kernels.h"

namespace starling {
namespace {

// Up to this size `flat` is used even for tensors in windows: the copy costs less than the second
// synchronization of `direct`.
constexpr size_t kDirectBytes = 1024;
// Ranks that share cores execute each other's slices up to this size, because turns on a core then cost more
// than the reduction. For larger tensors the reduction costs more.
constexpr size_t kEachOthersBytes = size_t{4} << 20;

// Returns the largest size for `flat`. If each rank has a core, the second synchronization of `sliced` is
// cheap. If ranks share cores, it costs one more turn on a core.
size_t flat_bytes(const LocalTeam& team) {
  return team.shared_cores() ? kFlatBytes : 2048;
}

class AllReduce {
 public:
  AllReduce(LocalTeam& team, const Operation& operation, void* data, size_t count, int divisor)
      : team_(team),
        operation_(operation),
        data_(static_cast<std::byte*>(data)),
        bytes_(count * size_of(operation.type)),
        sources_(team.size()),
        destinations_(team.size()) {
    job_.type = operation.type;
    job_.op = summed(operation.op);
    job_.divisor = divisor;
  }

  void run() {
    const bool flat = bytes_ <= flat_bytes(team_);
    const uint64_t where = bytes_ <= kDirectBytes ? kNowhere : team_.locate(data_, bytes_);
    const auto fill = [this, flat](size_t chunk) { flat ? fill_whole(chunk) : fill_others(chunk); };
    const bool ahead = where == kNowhere;
    if (ahead) prefill(team_, fill);
    team_.enter(operation_, where, ahead);
    const size_t chunks = (bytes_ + kSlotBytes - 1) / kSlotBytes;
    if (team_.all_in_windows() && bytes_ >= kNumaBytes && numa_pays(team_, job_.type, job_.divisor)) {
      numa_all_reduce(team_, operation_, elements(bytes_), job_.divisor);
    } else if (team_.all_in_windows()) {
      direct();
    } else if (flat) {
      run_staged(team_, chunks, fill, [this](size_t c) { reduce_whole(c); });
    } else {
      run_staged(team_, chunks, fill, [this](size_t c) { reduce_slice(c); }, [this](size_t c) { drain(c); });
    }
  }

 private:
  size_t length(size_t chunk) const { return std::min(kSlotBytes, bytes_ - chunk * kSlotBytes); }
  size_t elements(size_t bytes) const { return bytes / size_of(job_.type); }
  // The slices of a tensor meet at multiples of a cache line.
  Slice slice(size_t bytes) const { return slice(bytes, team_.rank()); }
  Slice slice(size_t bytes, int r) const {
    return slice_of(elements(bytes), team_.size(), r, 64 / size_of(job_.type));
  }

  // Returns where this rank's slice of a chunk begins and ends, in bytes.
  Slice own_bytes(size_t chunk) const {
    const Slice part = slice(length(chunk));
    return {part.begin * size_of(job_.type), part.end * size_of(job_.type)};
  }

  void direct() {
    job_.stream = bytes_ >= stream_bytes();
    if (!team_.shared_cores() || !team_.numa().nodes.empty() || bytes_ > kEachOthersBytes) {
      reduce_in_place(slice(bytes_));
      team_.post_exit();
      team_.await_exit_all();
    } else {
      for (int i = 0; i < team_.size(); ++i) {
        const int r = (team_.rank() + i) % team_.size();
        if (!team_.claim(r)) continue;
        reduce_in_place(slice(bytes_, r));
        team_.post_part(r);
      }
      team_.await_parts();
    }
    count_own_part();
  }

  // Reduces one slice over all windows.
  void reduce_in_place(const Slice& part) {
    const size_t offset = part.begin * size_of(job_.type);
    for (int r = 0; r < team_.size(); ++r) {
      destinations_[r] = team_.address(team_.where(r)) + offset;
      sources_[r] = destinations_[r];
    }
    reduce_over(part.count());
  }

  // Counts what the slice of this rank moved, whichever rank executed it. This rank publishes every other
  // slice of its tensor to the rank that reduces that slice, and its own slice of the result to all ranks.
  void count_slices(uint64_t bytes, uint64_t own) {
    const uint64_t moved = bytes - own + static_cast<uint64_t>(team_.size() - 1) * own;
    team_.count_published(moved);
    team_.count_received(moved);
  }

  void count_own_part() {
    const uint64_t own = slice(bytes_).count() * size_of(job_.type);
    count_slices(bytes_, own);
    if (!team_.numa().nodes.empty())
      team_.count_far(2 * own * static_cast<uint64_t>(team_.size() - team_.numa().ranks_each()));
  }

  void fill_whole(size_t chunk) {
    copy_bytes(team_.slot(team_.rank(), team_.next_chunk() + chunk), data_ + chunk * kSlotBytes,
               length(chunk));
    team_.count_published(static_cast<uint64_t>(team_.size() - 1) * length(chunk));
  }

  void reduce_whole(size_t chunk) {
    std::byte* own = data_ + chunk * kSlotBytes;
    for (int r = 0; r < team_.size(); ++r) {
      sources_[r] = r == team_.rank() ? own : team_.slot(r, team_.next_chunk() + chunk);
    }
    destinations_.assign(1, own);
    reduce_over(elements(length(chunk)));
    team_.count_received(static_cast<uint64_t>(team_.size() - 1) * length(chunk));
  }

  // Copies the slices of the other ranks to this rank's staging slot, where those ranks reduce them. This
  // rank's own slice stays in its memory.
  void fill_others(size_t chunk) {
    const auto [begin, end] = own_bytes(chunk);
    std::byte* slot = team_.slot(team_.rank(), team_.next_chunk() + chunk);
    const std::byte* own = data_ + chunk * kSlotBytes;
    copy_bytes(slot, own, begin);
    copy_bytes(slot + end, own + end, length(chunk) - end);
  }

  void reduce_slice(size_t chunk) {
    const Slice part = slice(length(chunk));
    for (int r = 0; r < team_.size(); ++r) {
      std::byte* start =
          r == team_.rank() ? data_ + chunk * kSlotBytes : team_.slot(r, team_.next_chunk() + chunk);
      destinations_[r] = start + part.begin * size_of(job_.type);
      sources_[r] = destinations_[r];
    }
    reduce_over(part.count());
    count_slices(length(chunk), part.count() * size_of(job_.type));
  }

  void drain(size_t chunk) {
    const auto [begin, end] = own_bytes(chunk);
    const std::byte* slot = team_.slot(team_.rank(), team_.next_chunk() + chunk);
    std::byte* own = data_ + chunk * kSlotBytes;
    copy_bytes(own, slot, begin);
    copy_bytes(own + end, slot + end, length(chunk) - end);
  }

  void reduce_over(size_t count) {
    job_.sources = sources_;
    job_.destinations = destinations_;
    job_.count = count;
    reduce(job_);
  }

  LocalTeam& team_;
  const Operation& operation_;
  std::byte* const data_;
  const size_t bytes_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
  Reduction job_;
};

}  // namespace

size_t stream_bytes() {
  // sysconf is called once, because it is slow in a virtual machine.
  static const size_t bytes = static_cast<size_t>(std::max(16L << 20, sysconf(_SC_LEVEL3_CACHE_SIZE)));
  return bytes;
}

void shm_all_reduce(LocalTeam& team, const Operation& operation, void* data, size_t count, int divisor) {
  AllReduce(team, operation, data, count, divisor).run();
}

}  // namespace starling
