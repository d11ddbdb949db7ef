// Parties names the two sides of a connection and the service that the connection is for.
//
// The handshake (handshake.h) proves the parties together with the job key. So a connection that an attacker
// between two hosts redirects to another process of the same job is refused.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "starling/net/security/data_security.h"

namespace starling {

// On the calling side, Parties names both sides. On the listening side, it names the listener, and `caller`
// is empty. A listener accepts every caller that calls its service, group and target. The texts may hold any
// bytes. A text of more than 200 bytes is shortened to its hash.
struct Parties {
  std::string service;      // "ranks", "store" or "data"
  std::string group = {};   // the name and the generation of a group of ranks; empty for other services
  std::string target = {};  // the called side: "rank 3"
  std::string caller = {};  // the calling side: "rank 5 messages"
};

// The parties of the store of a job, for its server and its clients.
Parties store_parties();

// Returns the called side for messages: "rank 3 of comm/0/world/ (service ranks)".
std::string describe_target(const Parties& parties);
// Whether a caller with the parties `called` means the listener with the parties `reached`.
bool is_called(const Parties& called, const Parties& reached);

// Claim is what each side of a connection says of itself and proves.
struct Claim {
  std::string job_id;
  DataSecurity security = DataSecurity::kNone;
  Parties parties;
};

// Returns "starling-3 job=J security=none service=ranks group=… from=… to=…". Bytes other than letters,
// digits and -_./:@ become %XX. The text has at most kMaxClaimBytes bytes if the job id is valid.
std::string encode_claim(const Claim& claim);
// Returns the claim in a text of encode_claim(). Returns nothing if the text has another form.
std::optional<Claim> decode_claim(std::string_view text);

constexpr size_t kMaxClaimBytes = 3072;

}  // namespace starling
