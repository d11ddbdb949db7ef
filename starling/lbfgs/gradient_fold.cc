#include "starling/lbfgs/gradient_fold.h"

#include <fmt/format.h>

#include <utility>

#include "starling/base/error.h"

namespace starling {

void GradientFold::begin(int portions, size_t size) {
  early_.assign(static_cast<size_t>(portions), std::nullopt);
  sum_.assign(size, 0);
  next_ = 0;
}

void GradientFold::add(int portion, std::vector<double> values) {
  if (portion < next_ || portion >= static_cast<int>(early_.size()) || early_[static_cast<size_t>(portion)] ||
      values.size() != sum_.size())
    throw CommError(fmt::format("portion {} of {} with {} elements, of {}, cannot be added", portion,
                                early_.size(), values.size(), sum_.size()));
  early_[static_cast<size_t>(portion)] = std::move(values);
  while (!done() && early_[static_cast<size_t>(next_)]) {
    std::optional<std::vector<double>>& ready = early_[static_cast<size_t>(next_)];
    for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += (*ready)[i];
    ready.reset();
    ++next_;
  }
}

}  // namespace starling
