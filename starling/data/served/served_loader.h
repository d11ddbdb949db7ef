// The loader of a run whose ranks do not step together. Each rank asks the data server for its next batch
// (served_leases.h). Each sample of an epoch is used once, by the rank that asks first, and the tickets of a
// lost rank go to other ranks. The order of batches is a function of (seed, epoch, position). The assignment
// of batches to ranks is not.
#pragma once

#include <memory>

#include "starling/data/loader.h"
#include "starling/data/served/served_client.h"

namespace starling {

// Returns a loader that takes tickets. Let b be global_batch / ranks, and let n be ranks times the steps of
// an epoch. Ticket t holds the b samples from position (t mod n) · b of epoch t / n. The job begins with
// ticket first_step · ranks: give this number to the constructor of `tickets`. A batch counts as used when
// the next one is asked for, or when the loader is destroyed without an exception. One thread reads up to
// `prefetch` batches ahead. The options workers, unequal, parts and remainder have no effect. Errors:
// ConfigError as make_loader.
std::unique_ptr<Loader> make_leased_loader(std::shared_ptr<const Source> source, const LoaderOptions& options,
                                           std::unique_ptr<TicketStream> tickets);

}  // namespace starling
