#include "starling/net/security/gcm.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <limits>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr size_t kNonceSize = 12;  // four zero bytes, then the number of the unit

void require_gcm(bool ok, const char* what) {
  if (!ok)
    throw Error(ErrorCode::kInternal,
                fmt::format("OpenSSL: AES-256-GCM: {} failed (error {:#x}); is the library whole?", what,
                            ERR_get_error()));
}

struct FreeCipher {
  void operator()(EVP_CIPHER* cipher) const { EVP_CIPHER_free(cipher); }
};

}  // namespace

void Gcm::Free::operator()(evp_cipher_ctx_st* cipher) const {
  EVP_CIPHER_CTX_free(cipher);  // also wipes the key
}

Gcm::Gcm(const Digest& key, Use use) : cipher_(EVP_CIPHER_CTX_new()) {
  require_gcm(cipher_ != nullptr, "EVP_CIPHER_CTX_new");
  const std::unique_ptr<EVP_CIPHER, FreeCipher> cipher(EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr));
  require_gcm(cipher != nullptr, "EVP_CIPHER_fetch");
  static_assert(sizeof(Digest) == 32);
  require_gcm(EVP_CipherInit_ex(cipher_.get(), cipher.get(), nullptr,
                                reinterpret_cast<const unsigned char*>(key.data()), nullptr,
                                use == Use::kSeal ? 1 : 0) == 1,
              "EVP_CipherInit_ex");
}

void Gcm::begin() {
  STARLING_CHECK(unit_ < std::numeric_limits<uint64_t>::max(), "the nonces of this key are used up");
  std::array<std::byte, kNonceSize> nonce{};
  store_le<uint64_t>(&nonce[4], unit_++);
  require_gcm(EVP_CipherInit_ex(cipher_.get(), nullptr, nullptr, nullptr,
                                reinterpret_cast<const unsigned char*>(nonce.data()), -1) == 1,
              "setting the nonce");
}

void Gcm::update(std::span<const std::byte> from, std::byte* to) {
  if (from.empty()) return;
  STARLING_CHECK(from.size() <= static_cast<size_t>(std::numeric_limits<int>::max()),
                 "{} bytes in a unit of GCM", from.size());
  int written = 0;
  require_gcm(EVP_CipherUpdate(cipher_.get(), reinterpret_cast<unsigned char*>(to), &written,
                               reinterpret_cast<const unsigned char*>(from.data()),
                               static_cast<int>(from.size())) == 1,
              "EVP_CipherUpdate");
}

void Gcm::authenticate(std::span<const std::byte> bytes) {
  update(bytes, nullptr);
}

void Gcm::transform(std::span<const std::byte> from, std::byte* to) {
  update(from, to);
}

Seal Gcm::seal() {
  Seal seal;
  unsigned char none[16];
  int written = 0;
  require_gcm(EVP_CipherFinal_ex(cipher_.get(), none, &written) == 1, "EVP_CipherFinal_ex");
  require_gcm(EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_GET_TAG, kSealBytes, seal.data()) == 1,
              "reading the tag");
  return seal;
}

bool Gcm::opens(const Seal& seal) {
  unsigned char none[16];
  int written = 0;
  require_gcm(EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_SET_TAG, kSealBytes,
                                  const_cast<std::byte*>(seal.data())) == 1,
              "setting the tag");
  return EVP_CipherFinal_ex(cipher_.get(), none, &written) == 1;
}

}  // namespace starling
