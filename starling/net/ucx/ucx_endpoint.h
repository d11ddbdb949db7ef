// The Endpoint over UCX. It uses an authenticated TCP connection to the same peer, over which both sides
// first exchange the addresses of their workers. Afterwards the TCP connection carries one message only: at
// its end, each side says how many messages it has sent. The TCP connection reports at once if the peer has
// died, has ended regularly, or no longer answers. UCX reports this late, or for sends only.
//
// A message consists of at most three messages of UCX, which are matched by tag. The rest may be divided into
// portions.
//
// - first: the sealed frame header (net/stream/frame.h) with the first bytes. These are all bytes of a
//   message of up to kUcxFirstBytes, and otherwise the head.
// - rest: the other bytes, from the sender's memory into the receiver's memory. The receiver requests them
//   once it has checked the header.
// - seals: the seals of the segments, if the data is authenticated or encrypted.
//
// Over TCP, the request and its answer take longer than sending kUcxMostUnasked bytes, because each of them
// wakes a sleeping rank. If the worker has portions, a rest of at most kUcxMostUnasked bytes is therefore
// sent without a request, in portions that UCX does not divide. If UCX divided a message and the sender died
// in between, UCX would never return its memory.
//
// The receiving worker keeps what is sent without a request, even if no receive waits for it. Any rank that
// steps, and UcxProgress, take it from the socket. A sender is therefore at most kUcxMostAhead ahead of its
// receiver. The receiver reports in short messages how much it has received. A message that would be too far
// ahead does not begin yet.
//
// A tag has 64 bits. They hold the number that the receiver has given to the connection (32), the part (2)
// and the number of the message (30).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "starling/net/endpoint.h"
#include "starling/net/security/handshake.h"
#include "starling/net/ucx/progress.h"
#include "starling/net/ucx/ucx_offer.h"

namespace starling {

// Returns a new offer of this side.
UcxOffer make_ucx_offer(UcxProgress& progress);

// Returns the keys of the connection, from a secret that only both sides have (Endpoint::shared_secret of the
// TCP connection) and the nonces of both sides. `first` is true on exactly one side.
ConnectionKeys ucx_keys(ConstBytes secret, DataSecurity security, const UcxOffer& mine,
                        const UcxOffer& theirs, bool first);

// Makes the endpoint. It takes over the TCP connection, whose rank must be set (set_peer_rank). The keys
// determine the protection of its messages.
// Errors: CommError if UCX cannot reach the peer.
std::unique_ptr<Endpoint> make_ucx_endpoint(std::shared_ptr<UcxProgress> progress,
                                            std::unique_ptr<Endpoint> tcp, const UcxOffer& mine,
                                            const UcxOffer& theirs, const ConnectionKeys& keys);

}  // namespace starling
