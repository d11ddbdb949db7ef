#include "starling/comm/collective/shm_numa_all_reduce.h"

#include <cstring>
#include <vector>

#include "starling/comm/collective/shm_direct_all_reduce.h"
#include "starling/comm/collective/staging.h"
#include "starling/comm/reduce/reduce_kernels.h"

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
    team_.post_round(kNodeReduced);
    for (const int r : leaders_) team_.await_round(kNodeReduced, r);

    Slice mine = slice_of(part.count(), static_cast<int>(leaders_.size()), places_.node, align);
    mine = {part.begin + mine.begin, part.begin + mine.end};
    reduce_over(leaders_, leaders_, mine, divisor_);
    team_.count_far(2 * (leaders_.size() - 1) * mine.count() * size_of(type_));
    team_.post_round(kAllReduced);
    for (const int r : leaders_) team_.await_round(kAllReduced, r);

    for (const int r : own_node()) {
      if (r == team_.rank()) continue;
      std::memcpy(at(r, part), at(team_.rank(), part), part.count() * size_of(type_));
    }
    count_moved(part.count() * size_of(type_), mine.count() * size_of(type_));
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

  // part: bytes of the part that this rank reduces within its node. mine: bytes of the slice that it reduces
  // between the nodes. The rank publishes what other ranks of its node reduce, what the other leaders reduce,
  // its slice to the leaders, and the result of its part to the ranks of its node.
  void count_moved(uint64_t part, uint64_t mine) {
    const uint64_t bytes = (count_ * size_of(type_) - part) + (part - mine) + (leaders_.size() - 1) * mine +
                           (own_node().size() - 1) * part;
    team_.count_published(bytes);
    team_.count_received(bytes);
  }

  LocalTeam& team_;
  const NumaPlaces& places_;
  const DataType type_;
  const size_t count_;
  const int divisor_;
  std::vector<int> leaders_;  // for this rank's part: one rank per node, in the order of the nodes
  Reduction job_;
};

}  // namespace

void numa_all_reduce(LocalTeam& team, const Operation& operation, size_t count, int divisor) {
  NumaAllReduce(team, operation, count, divisor).run();
}

}  // namespace starling
