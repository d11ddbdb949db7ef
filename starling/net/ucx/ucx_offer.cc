#include "starling/net/ucx/ucx_offer.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr size_t kLeastPortion = 4096;  // the smallest that a peer may announce

}  // namespace

std::string encode_offer(const UcxOffer& offer) {
  std::array<std::byte, 8> numbers{};
  store_le<uint32_t>(numbers.data(), offer.connection);
  store_le<uint32_t>(numbers.data() + 4, offer.portion);
  std::string text(reinterpret_cast<const char*>(numbers.data()), numbers.size());
  text.append(reinterpret_cast<const char*>(offer.nonce.data()), offer.nonce.size());
  return text + offer.address;
}

UcxOffer decode_offer(ConstBytes body, const std::string& from) {
  UcxOffer offer;
  constexpr size_t kNumbers = sizeof(offer.connection) + sizeof(offer.portion);
  const size_t fixed = kNumbers + offer.nonce.size();
  if (body.size() <= fixed) throw CommError(from + ": sent no UCX address");
  offer.connection = load_le<uint32_t>(body.data());
  offer.portion = load_le<uint32_t>(body.data() + sizeof(offer.connection));
  if (offer.portion != 0 && offer.portion < kLeastPortion)
    throw CommError(
        fmt::format("{}: sends in portions of {} bytes, which are too small", from, offer.portion));
  std::memcpy(offer.nonce.data(), body.data() + kNumbers, offer.nonce.size());
  offer.address.assign(reinterpret_cast<const char*>(body.data()) + fixed, body.size() - fixed);
  return offer;
}

}  // namespace starling
