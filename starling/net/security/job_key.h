// The job key: 256 secret bits that every process of a job holds and every connection proves.
//
// It travels in a file of mode 0600 or through an inherited descriptor. It never appears on a command line or
// in the text of the environment.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "starling/base/unique_fd.h"
#include "starling/net/security/data_security.h"

namespace starling {

// JobKey holds the key. Each copy wipes its bytes when it is destroyed.
class JobKey {
 public:
  static constexpr size_t kBytes = 32;

  // Copies the bytes.
  explicit JobKey(std::span<const std::byte, kBytes> bytes);
  JobKey(const JobKey&) = default;
  JobKey& operator=(const JobKey&) = default;
  ~JobKey();

  // The secret bytes.
  std::span<const std::byte, kBytes> bytes() const { return bytes_; }

 private:
  std::array<std::byte, kBytes> bytes_;
};

// A host that has not answered for this time counts as down, unless comm.dead_after_s says otherwise.
constexpr std::chrono::milliseconds kDeadAfter{4'000};

// JobIdentity is what a process shows to its peers. Both ends of a connection must have equal values, except
// dead_after.
struct JobIdentity {
  JobKey key;
  std::string job_id;                           // not secret: 1 to 128 printable characters
  DataSecurity security = DataSecurity::kNone;  // how data between hosts is protected
  // A peer's host that has not answered for this time counts as down (net/stream/socket.h).
  std::chrono::milliseconds dead_after = kDeadAfter;
};

// Returns a new random key.
JobKey make_job_key();

// Returns "starling-" and 32 random hexadecimal digits. Nobody can guess or take the name, so it suits an
// abstract Unix socket and the job that uses it. Errors: Error (kInternal) if OpenSSL fails.
std::string fresh_name();

// Reads a key file, which holds 64 hexadecimal digits and a newline.
// Errors: ConfigError if the file is missing, belongs to another user, can be used by others, or does not
// hold a key. The message names the repair, for example the chmod.
JobKey read_job_key_file(const std::string& path);
// Makes the file with mode 0600. Errors: ConfigError if the file exists already or cannot be written.
void write_job_key_file(const std::string& path, const JobKey& key);

// Returns a descriptor that holds the key's 32 bytes, for a child to inherit. The launcher clears
// close-on-exec in the child and passes the number in the child's environment. Duplicates share the position
// in the file, so each reader needs a descriptor from a call of its own. Errors: ConfigError if the system
// refuses.
UniqueFd make_job_key_fd(const JobKey& key);
// Reads the key from an inherited descriptor and closes it. Errors: ConfigError if the descriptor does not
// hold a key.
JobKey read_job_key_fd(int fd);

}  // namespace starling
