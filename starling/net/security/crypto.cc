#include "starling/net/security/crypto.h"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <memory>

#include "starling/base/error.h"

namespace starling {
namespace {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

void require(bool ok, const char* what) {
  if (!ok)
    throw Error(ErrorCode::kInternal, fmt::format("OpenSSL: {} failed (error {:#x}); is the library whole?",
                                                  what, ERR_get_error()));
}

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

OSSL_PARAM octets(const char* name, std::span<const std::byte> bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(bytes.data()), bytes.size());
}

OSSL_PARAM sha256() {
  static char name[] = "SHA256";
  return OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, name, 0);
}

}  // namespace

Digest hmac_sha256(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts) {
  const std::unique_ptr<EVP_MAC, Freed<EVP_MAC_free>> mac(EVP_MAC_fetch(nullptr, "HMAC", nullptr));
  require(mac != nullptr, "EVP_MAC_fetch");
  const std::unique_ptr<EVP_MAC_CTX, Freed<EVP_MAC_CTX_free>> state(EVP_MAC_CTX_new(mac.get()));
  require(state != nullptr, "EVP_MAC_CTX_new");
  const OSSL_PARAM params[] = {sha256(), OSSL_PARAM_construct_end()};
  require(EVP_MAC_init(state.get(), raw(key), key.size(), params) == 1, "EVP_MAC_init");
  for (const auto& part : parts)
    require(part.empty() || EVP_MAC_update(state.get(), raw(part), part.size()) == 1, "EVP_MAC_update");
  Digest digest;
  size_t written = 0;
  require(EVP_MAC_final(state.get(), reinterpret_cast<unsigned char*>(digest.data()), &written,
                        digest.size()) == 1,
          "EVP_MAC_final");
  require(written == digest.size(), "HMAC-SHA256");
  return digest;
}

Digest hkdf_sha256(std::span<const std::byte> key, std::span<const std::byte> salt, std::string_view info) {
  const std::unique_ptr<EVP_KDF, Freed<EVP_KDF_free>> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  require(kdf != nullptr, "EVP_KDF_fetch");
  const std::unique_ptr<EVP_KDF_CTX, Freed<EVP_KDF_CTX_free>> state(EVP_KDF_CTX_new(kdf.get()));
  require(state != nullptr, "EVP_KDF_CTX_new");
  const OSSL_PARAM params[] = {sha256(), octets(OSSL_KDF_PARAM_KEY, key), octets(OSSL_KDF_PARAM_SALT, salt),
                               octets(OSSL_KDF_PARAM_INFO, std::as_bytes(std::span(info))),
                               OSSL_PARAM_construct_end()};
  Digest derived;
  require(EVP_KDF_derive(state.get(), reinterpret_cast<unsigned char*>(derived.data()), derived.size(),
                         params) == 1,
          "EVP_KDF_derive");
  return derived;
}

void fill_random(std::span<std::byte> out) {
  require(RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size())) == 1,
          "RAND_bytes");
}

void wipe(std::span<std::byte> secret) {
  OPENSSL_cleanse(secret.data(), secret.size());
}

}  // namespace starling
