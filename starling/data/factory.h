// Opens what `data.source` names.
#pragma once

#include <memory>

#include "starling/data/image_store.h"
#include "starling/data/source.h"
#include "starling/net/data_security.h"
#include "starling/spec/run_spec.h"

namespace starling {

struct DataSets {
  std::shared_ptr<const Source> train;
  std::shared_ptr<const Source> test;  // null where the source has no test part
};

// text_tokens: length of a text sample (the model's context). Errors: ConfigError for an unknown source (suggests the
// near one), DataError for what is missing or broken. security: what a data server must agree on (comm.security).
DataSets open_data(const DataSpec& spec, uint64_t seed, int64_t text_tokens,
                   DataSecurity security = DataSecurity::kNone);

// The pictures that `data.source` names, as they are stored: what `starling data serve` serves. Errors: as above; ConfigError
// for text.
ImageParts open_pictures(const DataSpec& spec, uint64_t seed);

}  // namespace starling
