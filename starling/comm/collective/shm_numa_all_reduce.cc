#include "starling/comm/collective/shm_numa_all_reduce.h"

#include <cstring>
#include <vector>

#include "starling/comm/collective/shm_direct_all_reduce.h"
#include "starling/comm/collective/staging.h"
#include "starling/comm/reduce_kernels.h"

namespace starling {
namespace {

class NumaAllReduce {
 public:
  NumaAllReduce(LocalTeam& team, const Operation& operation, size_t count, int divisor)
      : team_(team), places_(team.numa()), type_(operation.type), count_(count), divisor_(divisor) {
    job_.type = operation.type;
    job_.op = summed(operation.op);
    job_.stream = count * size_of(operation.type) >= stream_bytes();
    for (const auto& node : places_.nodes) leaders_.push_back(node[static_cast<size_t>(places_.place)]);
  }

  void run() {
    const size_t align = 64 / size_of(type_);
    const Slice part = slice_of(count_, places_.ranks_each(), places_.place, align);
    reduce_over(own_node(), {team_.rank()}, part, 1);
    count_moved(own_node(), part, true, false);
    team_.post_round(kNodeReduced);
    for (const int r : leaders_) team_.await_round(kNodeReduced, r);

    Slice mine = slice_of(part.count(), static_cast<int>(leaders_.size()), places_.node, align);
    mine = {part.begin + mine.begin, part.begin + mine.end};
    reduce_over(leaders_, leaders_, mine, divisor_);
    count_moved(leaders_, mine, true, true);
    team_.count_far(2 * (leaders_.size() - 1) * mine.count() * size_of(type_));
    team_.post_round(kAllReduced);
    for (const int r : leaders_) team_.await_round(kAllReduced, r);

    for (const int r : own_node()) {
      if (r == team_.rank()) continue;
      std::memcpy(at(r, part), at(team_.rank(), part), part.count() * size_of(type_));
    }
    count_moved(own_node(), part, false, true);
    team_.post_exit();
    team_.await_exit_all();
  }

 private:
  const std::vector<int>& own_node() const { return places_.nodes[static_cast<size_t>(places_.node)]; }
  std::byte* at(int r, const Slice& slice) const {
    return team_.address(team_.where(r)) + slice.begin * size_of(type_);
  }

  void reduce_over(const std::vector<int>& from, const std::vector<int>& to, const Slice& slice,
                   int divisor) {
    std::vector<const void*> sources;
    std::vector<void*> destinations;
    sources.reserve(from.size());
    destinations.reserve(to.size());
    for (const int r : from) sources.push_back(at(r, slice));
    for (const int r : to) destinations.push_back(at(r, slice));
    job_.sources = sources;
    job_.destinations = destinations;
    job_.count = slice.count();
    job_.divisor = divisor;
    reduce(job_);
  }

  void count_moved(const std::vector<int>& ranks, const Slice& slice, bool read, bool written) {
    const uint64_t bytes = (ranks.size() - 1) * slice.count() * size_of(type_);
    if (read) team_.count_read(bytes);
    if (written) team_.count_written(bytes);
  }

  LocalTeam& team_;
  const NumaPlaces& places_;
  const DataType type_;
  const size_t count_;
  const int divisor_;
  std::vector<int> leaders_;  // of this rank's part, one a node, in the order of the nodes
  Reduction job_;
};

}  // namespace

void numa_all_reduce(LocalTeam& team, const Operation& operation, size_t count, int divisor) {
  NumaAllReduce(team, operation, count, divisor).run();
}

}  // namespace starling
