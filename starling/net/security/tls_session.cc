#include "starling/net/security/tls_session.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <exception>

#include "starling/base/error.h"

namespace starling {

// Members of TlsSettings::Parts and TlsSession::Parts have these types.
namespace tls_parts {

struct FreeTls {
  void operator()(SSL_CTX* settings) const { SSL_CTX_free(settings); }
  void operator()(SSL* session) const { SSL_free(session); }
  void operator()(SSL_SESSION* psk) const { SSL_SESSION_free(psk); }
};

// What the callbacks of OpenSSL need of a session.
struct Callee {
  std::string identity;
  std::string statement;  // ours on a server, the server's on a client
  TlsSession::KeyFor key_for;
};

}  // namespace tls_parts

namespace {

using tls_parts::Callee;
using tls_parts::FreeTls;

// The extension in which a server states its text. Numbers from 0xff00 are for private use (RFC 8446, 11).
constexpr unsigned kStatementExtension = 0xff53;
constexpr std::array<unsigned char, 2> kSuite = {0x13, 0x02};  // TLS_AES_256_GCM_SHA384

void require_tls(bool ok, const char* what) {
  if (!ok)
    throw Error(
        ErrorCode::kInternal,
        fmt::format("OpenSSL: TLS: {} failed (error {:#x}); is the library whole?", what, ERR_get_error()));
}

Callee& callee_of(SSL* session) {
  return *static_cast<Callee*>(SSL_get_app_data(session));
}

// No exception may pass through OpenSSL.
std::optional<Digest> asked_key(Callee& callee, std::string_view identity) noexcept {
  try {
    return callee.key_for(identity);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// Returns a session that holds the pre-shared key, or null if OpenSSL fails.
SSL_SESSION* psk_session(SSL* session, const Digest& key) {
  std::unique_ptr<SSL_SESSION, FreeTls> psk(SSL_SESSION_new());
  const SSL_CIPHER* suite = SSL_CIPHER_find(session, kSuite.data());
  const bool made = psk && suite != nullptr &&
                    SSL_SESSION_set1_master_key(psk.get(), reinterpret_cast<const unsigned char*>(key.data()),
                                                key.size()) == 1 &&
                    SSL_SESSION_set_cipher(psk.get(), suite) == 1 &&
                    SSL_SESSION_set_protocol_version(psk.get(), TLS1_3_VERSION) == 1;
  return made ? psk.release() : nullptr;
}

// The client's pre-shared key. OpenSSL copies the identity.
int use_psk(SSL* session, const EVP_MD* /*md*/, const unsigned char** id, size_t* size, SSL_SESSION** psk) {
  Callee& callee = callee_of(session);
  auto key = asked_key(callee, callee.identity);
  if (!key) return 0;
  *id = reinterpret_cast<const unsigned char*>(callee.identity.data());
  *size = callee.identity.size();
  *psk = psk_session(session, *key);
  wipe(*key);
  return *psk != nullptr ? 1 : 0;
}

// The server's pre-shared key for the identity that the client sent. Without a key, the handshake fails,
// because the server has no certificate.
int find_psk(SSL* session, const unsigned char* id, size_t size, SSL_SESSION** psk) {
  auto key = asked_key(callee_of(session), {reinterpret_cast<const char*>(id), size});
  *psk = nullptr;
  if (!key) return 1;
  *psk = psk_session(session, *key);
  wipe(*key);
  return *psk != nullptr ? 1 : 0;
}

// The client asks for the statement by an empty extension. The server answers with its text.
int add_statement(SSL* session, unsigned /*type*/, unsigned message, const unsigned char** out, size_t* size,
                  X509* /*x*/, size_t /*chain*/, int* /*alert*/, void* /*argument*/) {
  const std::string& text = callee_of(session).statement;
  const bool states = (message & SSL_EXT_TLS1_3_ENCRYPTED_EXTENSIONS) != 0;
  *out = reinterpret_cast<const unsigned char*>(text.data());
  *size = states ? text.size() : 0;
  return 1;
}

int parse_statement(SSL* session, unsigned /*type*/, unsigned message, const unsigned char* in, size_t size,
                    X509* /*x*/, size_t /*chain*/, int* /*alert*/, void* /*argument*/) {
  if ((message & SSL_EXT_TLS1_3_ENCRYPTED_EXTENSIONS) == 0) return 1;
  try {
    callee_of(session).statement.assign(reinterpret_cast<const char*>(in), size);
    return 1;
  } catch (const std::exception&) {
    return 0;  // no exception may pass through OpenSSL
  }
}

// Says why a handshake failed, by the first entry in OpenSSL's queue of errors.
std::string failure_text(unsigned long error) {
  constexpr const char* kWrongKey =
      "wrong job key: the peer and this process could not prove to each other that they hold one key; give "
      "all ranks the same key file";
  const int reason = ERR_GET_REASON(error);
  switch (reason) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_DIGEST_CHECK_FAILED:
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
    case SSL_AD_REASON_OFFSET + SSL_AD_BAD_RECORD_MAC:
    case SSL_AD_REASON_OFFSET + SSL_AD_DECRYPT_ERROR:
    case SSL_AD_REASON_OFFSET + SSL_AD_ILLEGAL_PARAMETER:
      return kWrongKey;
    case SSL_AD_REASON_OFFSET + SSL_AD_HANDSHAKE_FAILURE:
      return "the peer refused this process: it belongs to another job, or is no Starling process; see its "
             "log";
    default:
      break;
  }
  const char* text = ERR_reason_error_string(error);
  return fmt::format("not a Starling peer: its TLS handshake fails ({})",
                     text != nullptr ? text : "no reason");
}

}  // namespace

struct TlsSettings::Parts {
  std::unique_ptr<SSL_CTX, tls_parts::FreeTls> settings;
};

TlsSettings::TlsSettings(Side side) : side_(side), parts_(std::make_unique<Parts>()) {
  parts_->settings.reset(SSL_CTX_new(side == Side::kClient ? TLS_client_method() : TLS_server_method()));
  SSL_CTX* s = parts_->settings.get();
  require_tls(s != nullptr, "SSL_CTX_new");
  require_tls(SSL_CTX_set_min_proto_version(s, TLS1_3_VERSION) == 1 &&
                  SSL_CTX_set_max_proto_version(s, TLS1_3_VERSION) == 1,
              "setting the version");
  require_tls(SSL_CTX_set_ciphersuites(s, "TLS_AES_256_GCM_SHA384") == 1, "setting the cipher suite");
  require_tls(SSL_CTX_set1_groups_list(s, "X25519") == 1, "setting the group");
  SSL_CTX_set_options(s, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // ALLOW_NO_DHE_KEX would give up forward secrecy. The records for compatibility with middleboxes are not
  // needed.
  SSL_CTX_clear_options(s, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_session_cache_mode(s, SSL_SESS_CACHE_OFF);
  require_tls(SSL_CTX_set_num_tickets(s, 0) == 1, "refusing tickets");
  require_tls(SSL_CTX_set_max_early_data(s, 0) == 1 && SSL_CTX_set_recv_max_early_data(s, 0) == 1,
              "refusing early data");
  if (side == Side::kClient) {
    // A client trusts no certificate, so that a server without the pre-shared key fails.
    SSL_CTX_set_verify(s, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(s, use_psk);
  } else {
    SSL_CTX_set_psk_find_session_callback(s, find_psk);
  }
  require_tls(SSL_CTX_add_custom_ext(s, kStatementExtension,
                                     SSL_EXT_CLIENT_HELLO | SSL_EXT_TLS1_3_ENCRYPTED_EXTENSIONS,
                                     add_statement, nullptr, nullptr, parse_statement, nullptr) == 1,
              "adding an extension");
}

TlsSettings::~TlsSettings() = default;

struct TlsSession::Parts {
  std::shared_ptr<const TlsSettings> settings;
  tls_parts::Callee callee;
  std::unique_ptr<SSL, tls_parts::FreeTls> session;
  BIO* incoming = nullptr;  // owned by the session
  BIO* outgoing = nullptr;  // owned by the session
};

TlsSession::TlsSession(std::shared_ptr<const TlsSettings> settings, std::string identity,
                       std::string statement, KeyFor key_for)
    : parts_(std::make_unique<Parts>()) {
  Parts& p = *parts_;
  p.settings = std::move(settings);
  p.callee = {std::move(identity), std::move(statement), std::move(key_for)};
  p.session.reset(SSL_new(p.settings->parts_->settings.get()));
  require_tls(p.session != nullptr, "SSL_new");
  require_tls(SSL_set_app_data(p.session.get(), &p.callee) == 1, "SSL_set_app_data");
  p.incoming = BIO_new(BIO_s_mem());
  p.outgoing = BIO_new(BIO_s_mem());
  if (p.incoming == nullptr || p.outgoing == nullptr) {
    BIO_free(p.incoming);
    BIO_free(p.outgoing);
    require_tls(false, "BIO_new");
  }
  SSL_set_bio(p.session.get(), p.incoming, p.outgoing);
  if (p.settings->side_ == TlsSettings::Side::kClient)
    SSL_set_connect_state(p.session.get());
  else
    SSL_set_accept_state(p.session.get());
}

TlsSession::~TlsSession() = default;

bool TlsSession::step(std::span<const std::byte> record, std::string& out) {
  Parts& p = *parts_;
  SSL* session = p.session.get();
  ERR_clear_error();
  if (!record.empty())
    require_tls(BIO_write(p.incoming, record.data(), static_cast<int>(record.size())) ==
                    static_cast<int>(record.size()),
                "BIO_write");
  const int result = SSL_do_handshake(session);
  const int status = SSL_get_error(session, result);
  const unsigned long error = ERR_peek_error();
  std::array<char, 1024> buffer;
  for (int got = 0; (got = BIO_read(p.outgoing, buffer.data(), static_cast<int>(buffer.size()))) > 0;)
    out.append(buffer.data(), static_cast<size_t>(got));
  ERR_clear_error();
  if (status == SSL_ERROR_WANT_READ) return false;
  if (status != SSL_ERROR_NONE) throw CommError(failure_text(error));
  // OpenSSL counts a pre-shared key as a session that is resumed. A handshake without one must not pass.
  if (SSL_session_reused(session) != 1 || SSL_version(session) != TLS1_3_VERSION)
    throw CommError("not a Starling peer: the peer's TLS handshake does not use the job key");
  if (BIO_pending(p.incoming) > 0 || SSL_pending(session) > 0)
    throw CommError("not a Starling peer: it sends more than a handshake");
  return true;
}

const std::string& TlsSession::statement() const {
  return parts_->callee.statement;
}

void TlsSession::export_secret(std::string_view label, std::span<std::byte> out) const {
  require_tls(SSL_export_keying_material(parts_->session.get(), reinterpret_cast<unsigned char*>(out.data()),
                                         out.size(), label.data(), label.size(), nullptr, 0, 0) == 1,
              "SSL_export_keying_material");
}

}  // namespace starling
