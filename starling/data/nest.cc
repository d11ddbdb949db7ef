#include "starling/data/nest.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling::nest {

void refuse_call(const std::string& what, size_t outputs, size_t targets) {
  throw ConfigError(what,
                    fmt::format("its parameters do not fit {} output(s) of the model and {} target(s) of "
                                "the data set; let it take the outputs and then the targets",
                                outputs, targets));
}

void refuse_nest(size_t tensors) {
  throw ConfigError("Run::fit",
                    fmt::format("a nest has more tensors than the {} of the model or the data set; a "
                                "vector of tensors takes all that are left, so let it be the last",
                                tensors));
}

void refuse_forward(size_t inputs) {
  throw ConfigError("Run::fit",
                    fmt::format("the data set has {} input(s), and the forward function of the model "
                                "takes another number of tensors",
                                inputs));
}

}  // namespace starling::nest
