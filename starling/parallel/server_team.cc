#include "starling/parallel/server_team.h"

#include <array>

#include "starling/c10d/data_type.h"

namespace starling {

void ServerTeam::gather(at::Tensor& gradient, PushNotes& notes) const {
  if (group_ == nullptr) return;
  std::array<double, 3> sums = {notes.weight, notes.weight * notes.loss, notes.stop ? 1.0 : 0.0};
  all_reduce(*group_, sums.data(), sums.size(), DataType::kFp64, ReduceOp::kSum);
  const double weight = sums[0];
  gradient.mul_(weight > 0 ? notes.weight / weight : 0);
  all_reduce(*group_, gradient.data_ptr(), static_cast<size_t>(gradient.numel()),
             data_type_of(gradient.scalar_type()), ReduceOp::kSum);
  notes.weight = weight;
  notes.loss = weight > 0 ? sums[1] / weight : 0;
  notes.stop = sums[2] > 0;
}

void ServerTeam::share(at::Tensor& parameters, PullReport& report) const {
  if (group_ == nullptr) return;
  broadcast(*group_, parameters.data_ptr(), static_cast<size_t>(parameters.numel()),
            data_type_of(parameters.scalar_type()), 0);
  std::array<double, 6> numbers = {report.loss,
                                   report.stop ? 1.0 : 0.0,
                                   static_cast<double>(report.stop_at),
                                   static_cast<double>(report.staleness),
                                   static_cast<double>(report.updates),
                                   report.redo ? 1.0 : 0.0};
  broadcast(*group_, numbers.data(), numbers.size(), DataType::kFp64, 0);
  report = {numbers[0],
            numbers[1] > 0,
            static_cast<int64_t>(numbers[2]),
            static_cast<int64_t>(numbers[3]),
            static_cast<int64_t>(numbers[4]),
            numbers[5] > 0};
}

}  // namespace starling
