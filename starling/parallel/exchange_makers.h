// The makers of the exchanges, by name, from the table in spec/exchanges.inc.
#pragma once

#include <memory>

#include "starling/parallel/exchange_parts.h"

namespace starling {

// Makes the strategy of the run's exchange, or ZeRO if train.shard is set. Collective over parts.group.
// Errors: ConfigError if the configuration asks for something that the exchange cannot do.
std::unique_ptr<Strategy> make_exchange(const ExchangeParts& parts);

}  // namespace starling
