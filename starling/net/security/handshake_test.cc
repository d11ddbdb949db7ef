#include "starling/net/security/handshake.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/security/tls_session.h"
#include "starling/testing/test_identity.h"

namespace starling {
namespace {

constexpr size_t kPrefix = 13;

JobIdentity identity(const std::string& job = "job-1") {
  return test_identity(job, DataSecurity::kNone, 42);
}
Parties parties(int target = 0, const std::string& group = "comm/0/world/") {
  return {.service = "ranks",
          .group = group,
          .target = "rank " + std::to_string(target),
          .caller = "rank 5 messages"};
}
Handshake client_of(const JobIdentity& id = identity(), const Parties& calls = parties()) {
  return {HandshakeRole::kClient, id, calls};
}
Handshake server_of(const JobIdentity& id = identity(), const Parties& is = parties()) {
  return {HandshakeRole::kServer, id, is};
}

// Feeds as many of `bytes` as the state machine wants. Returns the other bytes.
std::string feed(Handshake& to, const std::string& bytes) {
  size_t used = 0;
  while (used < bytes.size() && to.wanted() > 0) {
    const size_t count = std::min(to.wanted(), bytes.size() - used);
    to.feed(std::as_bytes(std::span(bytes).subspan(used, count)));
    used += count;
  }
  return bytes.substr(used);
}

std::string take(Handshake& from) {
  const std::string bytes = from.output();
  from.clear_output();
  return bytes;
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const CommError& e) {
    return e.what();
  }
  return "";
}
std::string refusal(Handshake& to, const std::string& bytes) {
  return refusal([&] { feed(to, bytes); });
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void shake(Handshake& client, Handshake& server) {
  feed(server, take(client));
  feed(client, take(server));
  feed(server, take(client));
}

TEST(Handshake, BothSidesAgreeOnKeysAndTheListenerKnowsTheCaller) {
  Handshake client = client_of(), server = server_of();
  const std::string first = take(client);
  feed(server, first);
  const std::string second = take(server);
  feed(client, second);
  EXPECT_TRUE(client.done());
  EXPECT_FALSE(server.done());
  const std::string third = take(client);
  EXPECT_EQ(feed(server, third + "frame"), "frame");  // it never reads past the end of the handshake
  ASSERT_TRUE(server.done());
  EXPECT_EQ(client.keys().sending, server.keys().receiving);
  EXPECT_EQ(client.keys().receiving, server.keys().sending);
  EXPECT_NE(client.keys().sending, client.keys().receiving);
  EXPECT_EQ(client.keys().further, server.keys().further);
  EXPECT_NE(client.keys().further, server.keys().sending);
  EXPECT_EQ(server.keys().caller, "rank 5 messages");
  EXPECT_EQ(client.keys().caller, "");
  EXPECT_TRUE(take(server).empty());  // no ticket
  RecordProperty("bytes", std::to_string(first.size()) + " " + std::to_string(second.size()) + " " +
                              std::to_string(third.size()));
  // The claims and the key never travel in clear from the server, and the key travels not at all.
  EXPECT_TRUE(contains(first, "to=rank%200"));
  EXPECT_FALSE(contains(second, "rank%200"));
}

TEST(Handshake, WorksByteByByteAndKeysDifferBetweenConnections) {
  Digest last{};
  for (int round = 0; round < 2; ++round) {
    Handshake client = client_of(), server = server_of();
    for (const char c : take(client)) feed(server, std::string(1, c));
    for (const char c : take(server)) feed(client, std::string(1, c));
    for (const char c : take(client)) feed(server, std::string(1, c));
    EXPECT_NE(server.keys().sending, last);
    last = server.keys().sending;
  }
}

TEST(Handshake, RefusesAWrongKeyOnBothSides) {
  Handshake client = client_of({make_job_key(), "job-1"}), server = server_of();
  EXPECT_TRUE(contains(refusal(server, take(client)), "wrong job key"));
  EXPECT_TRUE(contains(refusal(client, take(server)), "wrong job key"));
  EXPECT_FALSE(client.done());
  EXPECT_FALSE(server.done());
}

// A process between the two that has another key speaks to the client in the listener's place.
TEST(Handshake, AServerWithoutTheKeyIsRefusedByTheClient) {
  Handshake client = client_of();
  const std::string greeting = take(client);
  const auto of_server = std::make_shared<const TlsSettings>(TlsSettings::Side::kServer);
  // It accepts every client: it knows no binder. So it must fail at the client's binder already.
  TlsSession fake(of_server, "", "starling-3", [](std::string_view) { return Digest{}; });
  std::string answer;
  EXPECT_TRUE(
      contains(refusal([&] { fake.step(std::as_bytes(std::span(greeting).subspan(kPrefix)), answer); }),
               "wrong job key"));

  // A server with a certificate of its own and no pre-shared key.
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), 2);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> settings(SSL_CTX_new(TLS_server_method()),
                                                                   SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_use_certificate(settings.get(), certificate.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(settings.get(), key.get()), 1);
  const std::unique_ptr<SSL, decltype(&SSL_free)> impostor(SSL_new(settings.get()), SSL_free);
  BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
  SSL_set_bio(impostor.get(), in, out);
  SSL_set_accept_state(impostor.get());
  BIO_write(in, greeting.data() + kPrefix, static_cast<int>(greeting.size() - kPrefix));
  SSL_do_handshake(impostor.get());
  std::string flight(8192, '\0');
  flight.resize(static_cast<size_t>(std::max(0, BIO_read(out, flight.data(), 8192))));
  ASSERT_GT(flight.size(), 200u);  // its hello and its certificate
  const std::string refused = refusal(client, std::string("STARLING\3\0S\0\0", kPrefix) + flight);
  EXPECT_TRUE(contains(refused, "not a Starling peer")) << refused;
  EXPECT_FALSE(client.done());
}

TEST(Handshake, AnEndIsExplained) {
  Handshake client = client_of();
  EXPECT_TRUE(contains(client.meaning_of_end(), "without a greeting"));
  Handshake server = server_of();
  feed(server, take(client));
  EXPECT_TRUE(contains(server.meaning_of_end(), "in the middle of the handshake"));
}

TEST(Handshake, NamesBothVersionsOnBothSides) {
  Handshake client(HandshakeRole::kClient, identity(), parties(), nullptr, 4);
  Handshake server = server_of();
  EXPECT_TRUE(contains(refusal(server, take(client)), "protocol version 4, ours is 3"));
  EXPECT_TRUE(contains(refusal(client, take(server)), "protocol version 3, ours is 4"));
}

// Version 2 had a greeting of 13 fixed bytes, the job id and a nonce, and no TLS.
TEST(Handshake, NamesBothVersionsToAProcessOfVersion2) {
  const std::string old = std::string("STARLING\2\0C\5\0job-1", 18) + std::string(32, 'n');
  Handshake server = server_of();
  EXPECT_TRUE(contains(refusal(server, old), "protocol version 2, ours is 3"));
  EXPECT_EQ(take(server),
            std::string("STARLING\3\0S\0\0", kPrefix));  // all that version 2 reads before it refuses
  Handshake client = client_of();
  EXPECT_EQ(client.output().substr(0, kPrefix), std::string("STARLING\3\0C\0\0", kPrefix));
  std::string answer = old;
  answer[10] = 'S';
  EXPECT_TRUE(contains(refusal(client, answer), "protocol version 2, ours is 3"));
}

TEST(Handshake, DifferentSettingsAreNamedOnBothSidesAfterTheProofs) {
  JobIdentity encrypting = identity();
  encrypting.security = DataSecurity::kEncrypt;
  Handshake client = client_of(encrypting), server = server_of();
  shake(client, server);
  ASSERT_TRUE(client.done());
  ASSERT_TRUE(server.done());
  EXPECT_TRUE(contains(refusal([&] { client.keys(); }),
                       "the peer uses --net-security none and this process uses encrypt"));
  EXPECT_TRUE(contains(refusal([&] { server.keys(); }),
                       "the peer uses --net-security encrypt and this process uses none"));
}

TEST(Handshake, NobodyBetweenTheTwoCanChangeTheClaim) {
  JobIdentity encrypting = identity();
  encrypting.security = DataSecurity::kEncrypt;
  for (const auto& [was, becomes] :
       std::vector<std::pair<std::string, std::string>>{{"security=encrypt", "security=none   "},
                                                        {"comm/0/world/", "comm/1/world/"},
                                                        {"to=rank%200", "to=rank%201"},
                                                        {"from=rank%205", "from=rank%206"}}) {
    Handshake client = client_of(encrypting), server = server_of();
    std::string greeting = take(client);
    const size_t at = greeting.find(was);
    ASSERT_NE(at, std::string::npos) << was;
    ASSERT_EQ(was.size(), becomes.size());
    greeting.replace(at, was.size(), becomes);
    EXPECT_NE(refusal(server, greeting), "") << becomes;
    EXPECT_NE(refusal(client, take(server)), "") << becomes;
    EXPECT_FALSE(server.done() || client.done());
  }
}

TEST(Handshake, AnotherTargetGroupOrServiceIsNamedOnBothSides) {
  Parties store = parties();
  store.service = "store";
  for (const auto& [is, text] : std::vector<std::pair<Parties, std::string>>{
           {parties(1), "called rank 0 of comm/0/world/ (service ranks) and reached rank 1 of comm/0/world/"},
           {parties(0, "comm/1/world/"), "reached rank 0 of comm/1/world/ (service ranks)"},
           {store, "(service ranks) and reached rank 0 of comm/0/world/ (service store)"}}) {
    Handshake client = client_of(), server = server_of(identity(), is);
    shake(client, server);
    ASSERT_TRUE(client.done() && server.done());
    for (const Handshake* side : {&client, &server}) {
      const std::string refused = refusal([&] { side->keys(); });
      EXPECT_TRUE(contains(refused, text)) << refused;
    }
  }
}

TEST(Handshake, RefusesAReplay) {
  Handshake client = client_of(), server = server_of();
  const std::string first = take(client);
  feed(server, first);
  const std::string answer = take(server);
  feed(client, answer);
  const std::string last = take(client);
  Handshake later = server_of();  // the client's messages again
  feed(later, first);
  EXPECT_TRUE(contains(refusal(later, last), "wrong job key"));
  Handshake second = client_of();  // the server's messages again
  EXPECT_NE(refusal(second, answer), "");
  EXPECT_FALSE(later.done() || second.done());
}

TEST(Handshake, RefusesReflections) {
  Handshake client = client_of();
  EXPECT_TRUE(contains(refusal(client, client.output()), "the role of this side"));

  // The client's own hello comes back under the other role.
  Handshake second = client_of();
  std::string forged = second.output();
  forged[10] = 'S';
  EXPECT_NE(refusal(second, forged), "");

  // A server gets its own messages back.
  Handshake third = client_of(), server = server_of();
  feed(server, take(third));
  const std::string answer = take(server);
  EXPECT_NE(refusal(server, answer.substr(kPrefix)), "");
  EXPECT_FALSE(second.done() || server.done());

  // A process that both listens and calls is led to itself: it is not whom it called.
  Handshake caller = client_of(identity(), parties(1)), itself = server_of(identity(), parties(5));
  shake(caller, itself);
  EXPECT_TRUE(contains(refusal([&] { caller.keys(); }), "reached rank 5"));
  EXPECT_TRUE(contains(refusal([&] { itself.keys(); }), "called rank 1"));
}

TEST(Handshake, EveryChangedByteIsRefused) {
  const auto of_server = make_tls_settings(HandshakeRole::kServer);
  const auto of_client = make_tls_settings(HandshakeRole::kClient);
  Handshake probe = client_of(), listener = server_of();
  const size_t first = probe.output().size();
  feed(listener, take(probe));
  const size_t second = listener.output().size();
  feed(probe, take(listener));
  const size_t third = probe.output().size();
  for (size_t i = 0; i < first + second + third; ++i) {
    Handshake client(HandshakeRole::kClient, identity(), parties(), of_client);
    Handshake server(HandshakeRole::kServer, identity(), parties(), of_server);
    std::array<std::string, 3> flights;
    const std::string reason = refusal([&] {
      for (size_t f = 0; f < flights.size(); ++f) {
        flights[f] = take(f == 1 ? server : client);
        const size_t begin = f == 0 ? 0 : f == 1 ? first : first + second;
        if (i >= begin && i - begin < flights[f].size()) flights[f][i - begin] ^= 1;
        feed(f == 1 ? client : server, flights[f]);
      }
    });
    // If a length grew, a side just waits for bytes that never come.
    EXPECT_TRUE(!reason.empty() || !server.done()) << "byte " << i;
    EXPECT_FALSE(server.done()) << "byte " << i;
    if (i < first + second) {
      EXPECT_FALSE(client.done()) << "byte " << i;
    }
  }
}

TEST(Handshake, RefusesGarbageAtItsFirstByteAndAnotherJob) {
  Handshake server = server_of();
  EXPECT_TRUE(contains(refusal(server, "G"), "not a Starling peer"));
  Handshake http = server_of();
  EXPECT_TRUE(contains(refusal(http, "GET / HTTP/1.1\r\n\r\n"), "not a Starling peer"));
  Handshake other = client_of(identity("job-2")), ours = server_of();
  EXPECT_TRUE(contains(refusal(ours, take(other)), "job 'job-2', this process to 'job-1'"));
  EXPECT_TRUE(contains(refusal(other, take(ours)), "it belongs to another job"));
  const std::string prefix("STARLING\3\0C\0\0", kPrefix);
  Handshake plain = server_of();
  EXPECT_TRUE(contains(refusal(plain, prefix + "GET /"), "did not send a TLS record"));
  Handshake oversize = server_of();
  EXPECT_TRUE(
      contains(refusal(oversize, prefix + std::string("\x16\x03\x01\x10\x00", 5)), "more than 4096 bytes"));
  Handshake nonsense = server_of();
  EXPECT_TRUE(
      contains(refusal(nonsense, prefix + std::string("\x16\x03\x01\x00\x04zzzz", 9)), "TLS handshake"));
}

// Version 1.2 of TLS, a resumed session, early data and a handshake without the key are not offered or taken.
TEST(Handshake, AClientOfAnotherKindOfTlsIsRefused) {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> settings(SSL_CTX_new(TLS_client_method()),
                                                                     SSL_CTX_free);
    SSL_CTX_set_max_proto_version(settings.get(), version);
    const std::unique_ptr<SSL, decltype(&SSL_free)> stranger(SSL_new(settings.get()), SSL_free);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    SSL_set_bio(stranger.get(), in, out);
    SSL_set_connect_state(stranger.get());
    SSL_do_handshake(stranger.get());
    std::string hello(4000, '\0');
    hello.resize(static_cast<size_t>(std::max(0, BIO_read(out, hello.data(), 4000))));
    Handshake server = server_of();
    EXPECT_NE(refusal(server, std::string("STARLING\3\0C\0\0", kPrefix) + hello), "") << version;
    EXPECT_FALSE(server.done());
  }
}

TEST(Handshake, TruncationLeavesItIncomplete) {
  Handshake client = client_of(), server = server_of();
  const std::string greeting = take(client);
  feed(server, greeting.substr(0, greeting.size() - 1));
  EXPECT_EQ(server.wanted(), 1u);
  EXPECT_EQ(server.output().size(), kPrefix);
  // These are the longest claims that are ever sent.
  const std::string longest(500, '+');
  const JobIdentity id = identity(std::string(kMaxJobIdBytes, '+'));
  const Parties all{std::string(200, '+'), std::string(200, '+'), std::string(200, '+'),
                    std::string(200, '+')};
  for (const Parties& far : {all, Parties{longest, longest, longest, longest}}) {
    Handshake a = client_of(id, far), b = server_of(id, far);
    EXPECT_LE(a.output().size(), kMaxUnauthenticatedBytes);
    shake(a, b);
    EXPECT_EQ(a.keys().sending, b.keys().receiving);
  }
}

TEST(Handshake, RefusesABadJobId) {
  for (const std::string& id : {std::string(), std::string("a b"), std::string(129, 'a')})
    for (const HandshakeRole role : {HandshakeRole::kClient, HandshakeRole::kServer})
      EXPECT_THROW(Handshake(role, identity(id), parties()), ConfigError);
}

TEST(Parties, ClaimsComeBackAsTheyWere) {
  const Claim claim{"job-1", DataSecurity::kAuth, {"ranks", "a b=%\n\xff", "rank 3", ""}};
  const std::string text = encode_claim(claim);
  EXPECT_EQ(text,
            "starling-3 job=job-1 security=auth service=ranks group=a%20b%3D%25%0A%FF from= to=rank%203");
  const auto back = decode_claim(text);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(encode_claim(*back), text);
  EXPECT_EQ(back->parties.group, claim.parties.group);
  for (const char* bad : {"", "starling-3", "starling-2 job=j security=none service=s group=g from=f to=t",
                          "starling-3 job=j security=odd service=s group=g from=f to=t",
                          "starling-3 job=j security=none service=s group=g to=t from=f",
                          "starling-3 job=j security=none service=s group=g from=f to=t ",
                          "starling-3 job=j security=none service=s group=g from=f to=t more=1",
                          "starling-3 job=j security=none service=%2 group=g from=f to=t",
                          "starling-3 job=j security=none service=%41 group=g from=f to=t",
                          "starling-3 job=j security=none service=a\tb group=g from=f to=t"})
    EXPECT_FALSE(decode_claim(bad).has_value()) << bad;
}

TEST(Parties, LongTextsDifferByTheirHashes) {
  const std::string a(300, 'a'), b = std::string(299, 'a') + "b";
  EXPECT_TRUE(is_called({.service = a}, {.service = a}));
  EXPECT_FALSE(is_called({.service = a}, {.service = b}));
}

}  // namespace
}  // namespace starling
