// Opens the data set that `data.source` names.
#pragma once

#include <memory>

#include "starling/data/data_sets.h"
#include "starling/data/served/served_store.h"
#include "starling/net/security/data_security.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Opens the data sets. `text_tokens` is the length of a text sample (the model's context). `security` is the
// protection that the reader and a data server must both use (comm.security). `added` has the kinds of data
// that the program adds; it may be null. Errors: ConfigError for an unknown source (the message suggests a
// similar one) and for settings that do not fit the data; DataError for missing or broken data; for a data
// server also those of ServedClient.
DataSets open_data(const DataSpec& spec, uint64_t seed, int64_t text_tokens,
                   DataSecurity security = DataSecurity::kNone, const Extensions* added = nullptr);

// Opens the images or the text that `data.source` names as they are stored. `starling data serve` serves
// them. Errors: those of open_data; ConfigError for generated text and for the data of another server.
ServedStores open_for_serving(const DataSpec& spec, uint64_t seed);

}  // namespace starling
