// The batches of a run whose ranks do not march in step: each asks the data server for the next one (served_leases.h), so that every
// sample is used once an epoch by whoever comes first, and what a lost rank held goes to the others. The order is a function of
// (seed, epoch, position) as ever; which rank gets which batch is not.
#pragma once

#include <memory>

#include "starling/data/loader.h"
#include "starling/data/served_client.h"

namespace starling {

// Ticket t is positions [t mod n · b, …) of epoch t / n, b = global_batch / ranks samples, n = ranks · steps an epoch; the job
// begins with ticket first_step · ranks. A batch counts as used when the next one is asked for. Up to `prefetch` batches are read
// ahead by one thread. Errors: ConfigError as make_loader.
std::unique_ptr<Loader> make_leased_loader(std::shared_ptr<const Source> source, const LoaderOptions& options,
                                           std::unique_ptr<TicketStream> tickets);

}  // namespace starling
