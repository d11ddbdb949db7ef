// The job key: 256 secret bits that every process of a job holds and every connection proves. It travels in a file of
// mode 0600 or through an inherited descriptor, never on a command line and never in the environment's text.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "starling/base/unique_fd.h"
#include "starling/net/data_security.h"

namespace starling {

// Copies are allowed; each wipes its bytes when it goes.
class JobKey {
 public:
  static constexpr size_t kBytes = 32;

  explicit JobKey(std::span<const std::byte, kBytes> bytes);
  JobKey(const JobKey&) = default;
  JobKey& operator=(const JobKey&) = default;
  ~JobKey();

  std::span<const std::byte, kBytes> bytes() const { return bytes_; }

 private:
  std::array<std::byte, kBytes> bytes_;
};

// Who we are to our peers: a key, and the id of the job, which is not secret ([1, 128] printable characters); and how data
// between hosts is protected, on which both ends must agree.
struct JobIdentity {
  JobKey key;
  std::string job_id;
  DataSecurity security = DataSecurity::kNone;
};

JobKey make_job_key();

// The file holds 64 hexadecimal digits and a newline. ConfigError where it is missing, belongs to another user, can be
// read by others (with the chmod that cures it), or does not hold a key.
JobKey read_job_key_file(const std::string& path);
// Makes the file with mode 0600; ConfigError if it exists already.
void write_job_key_file(const std::string& path, const JobKey& key);

// A descriptor that holds the key's 32 bytes, for a child to inherit: the launcher clears close-on-exec in the child
// and passes the number in its environment. Each reader needs a descriptor of its own (the position is shared).
UniqueFd make_job_key_fd(const JobKey& key);
// Reads the key from an inherited descriptor and closes it. ConfigError if it does not hold one.
JobKey read_job_key_fd(int fd);

}  // namespace starling
