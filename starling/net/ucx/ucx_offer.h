// UcxOffer is what the sides of a UCX connection tell each other before it begins, and its form in a message.
#pragma once

#include <cstdint>
#include <string>

#include "starling/net/endpoint.h"
#include "starling/net/security/crypto.h"

namespace starling {

// UcxOffer is what each side tells the other over TCP.
struct UcxOffer {
  uint32_t connection = 0;  // the connection's number in the worker of the side that sends the offer
  uint32_t portion = 0;     // the size in which this side sends the rest of a message (UcxWorker::portion)
  Digest nonce{};
  std::string address;  // of this side's worker
};

// Returns an offer as the body of a control message.
std::string encode_offer(const UcxOffer& offer);
// Returns the offer in a control message. Errors: CommError that names `from`.
UcxOffer decode_offer(ConstBytes body, const std::string& from);

}  // namespace starling
