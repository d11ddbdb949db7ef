#include "starling/net/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "starling/base/error.h"
#include "starling/testing/test_identity.h"

namespace starling {
namespace {

JobIdentity identity(const std::string& job = "job-1") {
  return test_identity(job, DataSecurity::kNone, 42);
}

// Feeds `bytes` as far as the machine wants them; returns what is left over.
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

std::string refusal(Handshake& to, const std::string& bytes) {
  try {
    feed(to, bytes);
  } catch (const CommError& e) {
    return e.what();
  }
  return "";
}

TEST(Handshake, BothSidesAgreeOnKeys) {
  Handshake client(HandshakeRole::kClient, identity()), server(HandshakeRole::kServer, identity());
  feed(server, take(client));
  feed(client, take(server));
  EXPECT_TRUE(client.done());
  EXPECT_FALSE(server.done());
  EXPECT_EQ(feed(server, take(client) + "frame"), "frame");  // never reads past its end
  ASSERT_TRUE(server.done());
  EXPECT_EQ(client.keys().sending, server.keys().receiving);
  EXPECT_EQ(client.keys().receiving, server.keys().sending);
  EXPECT_NE(client.keys().sending, client.keys().receiving);
}

TEST(Handshake, WorksByteByByteAndKeysDifferBetweenConnections) {
  Digest last{};
  for (int round = 0; round < 2; ++round) {
    Handshake client(HandshakeRole::kClient, identity()), server(HandshakeRole::kServer, identity());
    for (char c : take(client)) feed(server, std::string(1, c));
    for (char c : take(server)) feed(client, std::string(1, c));
    for (char c : take(client)) feed(server, std::string(1, c));
    EXPECT_NE(server.keys().sending, last);
    last = server.keys().sending;
  }
}

TEST(Handshake, RefusesAWrongKeyOnBothSides) {
  JobIdentity mallory{make_job_key(), "job-1"};
  Handshake client(HandshakeRole::kClient, mallory), server(HandshakeRole::kServer, identity());
  feed(server, take(client));
  EXPECT_NE(refusal(client, take(server)).find("wrong job key"), std::string::npos);
  EXPECT_FALSE(client.done());
  EXPECT_NE(refusal(server, std::string(32, 'x')).find("wrong job key"), std::string::npos);
  EXPECT_FALSE(server.done());
}

TEST(Handshake, EndAfterOurProofMeansAnotherKey) {
  Handshake client(HandshakeRole::kClient, identity()), server(HandshakeRole::kServer, identity());
  feed(server, take(client));
  EXPECT_NE(std::string(server.meaning_of_end()).find("job key differs"), std::string::npos);
}

TEST(Handshake, NamesBothVersionsOnBothSides) {
  Handshake client(HandshakeRole::kClient, identity(), 1), server(HandshakeRole::kServer, identity(), 2);
  EXPECT_NE(refusal(server, take(client)).find("protocol version 1, ours is 2"), std::string::npos);
  EXPECT_NE(refusal(client, take(server)).find("protocol version 2, ours is 1"), std::string::npos);
}

TEST(Handshake, DifferentSettingsAreNamedOnBothSidesAfterTheProofs) {
  JobIdentity encrypting = identity();
  encrypting.security = DataSecurity::kEncrypt;
  Handshake client(HandshakeRole::kClient, encrypting), server(HandshakeRole::kServer, identity());
  feed(server, take(client));
  feed(client, take(server));
  feed(server, take(client));
  ASSERT_TRUE(client.done());
  ASSERT_TRUE(server.done());
  const auto error_of = [](const Handshake& side) {
    try {
      side.keys();
    } catch (const CommError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(error_of(client).find("the peer has --net-security none, we have encrypt"), std::string::npos);
  EXPECT_NE(error_of(server).find("the peer has --net-security encrypt, we have none"), std::string::npos);
}

TEST(Handshake, NobodyBetweenTheTwoCanLowerTheSetting) {
  JobIdentity encrypting = identity();
  encrypting.security = DataSecurity::kEncrypt;
  constexpr size_t kSecurityByte = 12;
  Handshake client(HandshakeRole::kClient, encrypting), server(HandshakeRole::kServer, identity());
  std::string greeting = take(client);
  ASSERT_EQ(greeting[kSecurityByte], 2);
  greeting[kSecurityByte] = 0;
  feed(server, greeting);
  std::string answer = take(server);
  answer[kSecurityByte] = 2;
  EXPECT_NE(refusal(client, answer).find("wrong job key"), std::string::npos);
  Handshake other(HandshakeRole::kServer, identity());
  greeting[kSecurityByte] = 9;
  EXPECT_NE(refusal(other, greeting).find("security setting 9"), std::string::npos);
}

TEST(Handshake, RefusesAReplayedProof) {
  Handshake client(HandshakeRole::kClient, identity()), server(HandshakeRole::kServer, identity());
  const std::string greeting = take(client);
  feed(server, greeting);
  feed(client, take(server));
  const std::string proof = take(client);
  Handshake later(HandshakeRole::kServer, identity());
  feed(later, greeting);
  EXPECT_NE(refusal(later, proof).find("wrong job key"), std::string::npos);
}

TEST(Handshake, RefusesReflections) {
  Handshake client(HandshakeRole::kClient, identity());
  EXPECT_NE(refusal(client, client.output()).find("our own role"), std::string::npos);

  // A reflected nonce under the other role, with the answer of a real server behind it.
  Handshake second(HandshakeRole::kClient, identity());
  std::string forged = second.output();
  forged[10] = 'S';
  EXPECT_NE(refusal(second, forged + std::string(32, 'x')).find("own nonce"), std::string::npos);

  // The server's own proof sent back to it as the client's.
  Handshake third(HandshakeRole::kClient, identity()), server(HandshakeRole::kServer, identity());
  feed(server, take(third));
  const std::string answer = take(server);
  EXPECT_NE(refusal(server, answer.substr(answer.size() - 32)).find("wrong job key"), std::string::npos);
}

TEST(Handshake, EveryChangedByteIsRefused) {
  Handshake probe(HandshakeRole::kClient, identity());
  const size_t size = probe.output().size();
  for (size_t i = 0; i < size; ++i) {
    Handshake client(HandshakeRole::kClient, identity()), server(HandshakeRole::kServer, identity());
    std::string greeting = take(client);
    greeting[i] ^= 1;
    std::string reason = refusal(server, greeting);
    if (reason.empty() && server.wanted() > 0 && !server.output().empty())
      reason = refusal(client, take(server));
    // A longer job id just leaves the server waiting for bytes that never come.
    EXPECT_TRUE(!reason.empty() || server.wanted() > 0) << "byte " << i;
    EXPECT_FALSE(client.done()) << "byte " << i;
    EXPECT_FALSE(server.done()) << "byte " << i;
  }
}

TEST(Handshake, RefusesGarbageAtItsFirstByteAndAnotherJob) {
  Handshake server(HandshakeRole::kServer, identity());
  EXPECT_NE(refusal(server, "G").find("not a Starling peer"), std::string::npos);
  Handshake http(HandshakeRole::kServer, identity());
  EXPECT_NE(refusal(http, "GET / HTTP/1.1\r\n\r\n").find("not a Starling peer"), std::string::npos);
  Handshake other(HandshakeRole::kClient, identity("job-2")), ours(HandshakeRole::kServer, identity());
  EXPECT_NE(refusal(ours, take(other)).find("job 'job-2', we to 'job-1'"), std::string::npos);
  Handshake oversize(HandshakeRole::kServer, identity());
  EXPECT_NE(refusal(oversize, std::string("STARLING\2\0C\xff\0", 13)).find("job id of 255 bytes"),
            std::string::npos);
}

TEST(Handshake, TruncationLeavesItIncomplete) {
  Handshake client(HandshakeRole::kClient, identity()), server(HandshakeRole::kServer, identity());
  const std::string greeting = take(client);
  feed(server, greeting.substr(0, greeting.size() - 1));
  EXPECT_EQ(server.wanted(), 1u);
  EXPECT_TRUE(server.output().empty());
  // The longest greeting and proof that are ever asked for.
  Handshake longest(HandshakeRole::kClient, identity(std::string(kMaxJobIdBytes, 'j')));
  EXPECT_LE(longest.output().size() + sizeof(Digest), kMaxUnauthenticatedBytes);
}

TEST(Handshake, RefusesABadJobId) {
  EXPECT_THROW(Handshake(HandshakeRole::kClient, identity("")), ConfigError);
  EXPECT_THROW(Handshake(HandshakeRole::kClient, identity("a b")), ConfigError);
  EXPECT_THROW(Handshake(HandshakeRole::kClient, identity(std::string(129, 'a'))), ConfigError);
}

}  // namespace
}  // namespace starling
