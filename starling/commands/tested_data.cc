#include "starling/commands/tested_data.h"

#include "starling/base/error.h"
#include "starling/net/security/data_security.h"

namespace starling {

DataSets open_tested_data(const RunSpec& spec) {
  DataSets data =
      open_data(spec.data, spec.train.seed, spec.model.tokens, security_named(spec.comm.security));
  if (!data.test) {
    throw ConfigError("data.source",
                      spec.data.source + " has no test part; name one by --set data.test_source=…");
  }
  return data;
}

int64_t evaluation_batch(const RunSpec& spec) {
  constexpr int64_t kAutomatic = 64;
  return spec.train.eval_batch > 0 ? spec.train.eval_batch : kAutomatic;
}

}  // namespace starling
