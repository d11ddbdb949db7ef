#include "starling/comm/collective/shm_direct_all_reduce.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "starling/comm/collective/shm_numa_all_reduce.h"
#include "starling/comm/collective/staging.h"
#include "starling/comm/copy_bytes.h"
#include "starling/comm/reduce_kernels.h"

namespace starling {
namespace {

// Below this the second synchronisation of `direct` costs more than the copy of `flat`.
constexpr size_t kDirectBytes = 1024;
// Ranks that share cores do each other's slices up to this size, where turns on a core cost more than the reduction: 4 ranks on 2
// cores, medians of five alternating runs of 256 KB 17.9 µs each its own and 14.4 so, 1 MB 57 and 50, 4 MB 230 and 179; of 64 MB
// 6.6–11.7 and 10.0–12.1 ms (comm_bench 4, with this limit at 0 and without it).
constexpr size_t kEachOthersBytes = size_t{4} << 20;

// The most that `flat` takes. With a core for each rank the second synchronisation of `sliced` is cheap: 2 ranks, medians of five alternating
// runs of 4, 8 and 16 KB 2.5, 1.9 and 3.5 µs flat, 0.6, 0.9 and 1.4 in slices. On shared cores it is a turn more: 4 ranks on 2 cores,
// 4 and 8 KB 6.2 and 7.9 µs flat, 9.1 and 12 in slices (comm_bench --bytes N, with and without these limits).
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
  // Slices meet at multiples of a cache line.
  Slice slice(size_t bytes) const { return slice(bytes, team_.rank()); }
  Slice slice(size_t bytes, int r) const {
    return slice_of(elements(bytes), team_.size(), r, 64 / size_of(job_.type));
  }

  // Where the own slice of a chunk begins and ends.
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
      return;
    }
    for (int i = 0; i < team_.size(); ++i) {
      const int r = (team_.rank() + i) % team_.size();
      if (!team_.claim(r)) continue;
      reduce_in_place(slice(bytes_, r));
      team_.post_part(r);
    }
    team_.await_parts();
  }

  // A slice of all windows.
  void reduce_in_place(const Slice& part) {
    const size_t offset = part.begin * size_of(job_.type);
    for (int r = 0; r < team_.size(); ++r) {
      destinations_[r] = team_.address(team_.where(r)) + offset;
      sources_[r] = destinations_[r];
    }
    reduce_over(part.count());
    const uint64_t others = static_cast<uint64_t>(team_.size() - 1) * part.count() * size_of(job_.type);
    team_.count_read(others);
    team_.count_written(others);
    if (!team_.numa().nodes.empty())
      team_.count_far(2 * others / (team_.size() - 1) * (team_.size() - team_.numa().ranks_each()));
  }

  void fill_whole(size_t chunk) {
    copy_bytes(team_.slot(team_.rank(), team_.next_chunk() + chunk), data_ + chunk * kSlotBytes,
               length(chunk));
    team_.count_written(length(chunk));
  }

  void reduce_whole(size_t chunk) {
    std::byte* own = data_ + chunk * kSlotBytes;
    for (int r = 0; r < team_.size(); ++r) {
      sources_[r] = r == team_.rank() ? own : team_.slot(r, team_.next_chunk() + chunk);
    }
    destinations_.assign(1, own);
    reduce_over(elements(length(chunk)));
    team_.count_read(static_cast<uint64_t>(team_.size() - 1) * length(chunk));
  }

  // The own slice of a chunk stays where it is; the others' go to the own slot, to be reduced there by them.
  void fill_others(size_t chunk) {
    const auto [begin, end] = own_bytes(chunk);
    std::byte* slot = team_.slot(team_.rank(), team_.next_chunk() + chunk);
    const std::byte* own = data_ + chunk * kSlotBytes;
    copy_bytes(slot, own, begin);
    copy_bytes(slot + end, own + end, length(chunk) - end);
    team_.count_written(length(chunk) - (end - begin));
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
    const uint64_t others = static_cast<uint64_t>(team_.size() - 1) * part.count() * size_of(job_.type);
    team_.count_read(others);
    team_.count_written(others);
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
  // Asked once: the processor's answer is slow in a virtual machine.
  static const size_t bytes = static_cast<size_t>(std::max(16L << 20, sysconf(_SC_LEVEL3_CACHE_SIZE)));
  return bytes;
}

void shm_all_reduce(LocalTeam& team, const Operation& operation, void* data, size_t count, int divisor) {
  AllReduce(team, operation, data, count, divisor).run();
}

}  // namespace starling
