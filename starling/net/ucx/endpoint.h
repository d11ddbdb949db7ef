// The Endpoint over UCX. It stands upon an authenticated TCP connection to the same peer, over which both sides have told each other
// their workers' addresses; that connection then carries no messages, but tells at once when the peer has died, ends in order, or
// does not answer any more (UCX tells late, or of sends only).
//
// A message is three of UCX's at most, but for portions, by tag: first the frame header of net/frame.h, sealed as over TCP, with the
// message's first bytes: all up to kUcxFirstBytes, else its head; then the rest, from the sender's memory into the receiver's; then the
// seals of its segments where data is authenticated or encrypted. The receiver asks for the rest when it has checked the header.
//
// Over TCP that question and its answer take longer than to send up to kUcxMostUnasked bytes, because each wakes a rank that sleeps: so
// many leave unasked, in portions that UCX keeps in one piece. Of a message that came in several, UCX would never give the memory back if
// the sender died between them.
//
// The receiving worker keeps what arrives unasked, whether anybody receives or not: any rank that steps, and UcxProgress, take it from the
// socket. So a sender is ahead of its receiver by kUcxMostAhead at most. The receiver tells, in short messages of their own, how much it
// has received; a message that would be too far ahead does not begin before.
//
// The tag: the number that the receiver has given the connection (32 bits), the part (2 bits), the message's number (30 bits).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "starling/net/endpoint.h"
#include "starling/net/handshake.h"
#include "starling/net/ucx/progress.h"

namespace starling {

// What a side tells the other, over TCP.
struct UcxOffer {
  uint32_t connection = 0;  // of the worker that receives by it
  uint32_t portion = 0;     // in which this side sends the rest of a message (UcxWorker::portion)
  Digest nonce{};
  std::string address;  // of its worker
};

UcxOffer make_ucx_offer(UcxProgress& progress);
// As the body of a control message, and back; CommError naming `from`.
std::string encode_offer(const UcxOffer& offer);
UcxOffer decode_offer(ConstBytes body, const std::string& from);

// The keys of the connection, from the job's key and the nonces of both sides: `first` is the same side for both.
ConnectionKeys ucx_keys(const JobIdentity& identity, const UcxOffer& mine, const UcxOffer& theirs,
                        bool first);

// Takes over the TCP connection, whose rank must be set (set_peer_rank), and gives its messages the security of the keys. CommError
// where UCX knows no way to the peer.
std::unique_ptr<Endpoint> make_ucx_endpoint(std::shared_ptr<UcxProgress> progress,
                                            std::unique_ptr<Endpoint> tcp, const UcxOffer& mine,
                                            const UcxOffer& theirs, const ConnectionKeys& keys);

}  // namespace starling
