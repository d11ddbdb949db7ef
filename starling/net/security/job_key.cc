#include "starling/net/security/job_key.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>

#include "starling/base/error.h"
#include "starling/net/security/crypto.h"

namespace starling {
namespace {

constexpr size_t kFileDigits = 2 * JobKey::kBytes;

std::string system_reason(int error) {
  return std::generic_category().message(error);
}

// Reads until `out` is full or the file ends. Returns the number of bytes read, or nothing after an error
// (see errno).
std::optional<size_t> read_up_to(int fd, std::span<char> out) {
  size_t have = 0;
  while (have < out.size()) {
    const ssize_t got = ::read(fd, out.data() + have, out.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  return have;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void check_private(const std::string& path, int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) throw ConfigError(path, system_reason(errno));
  if (!S_ISREG(info.st_mode)) throw ConfigError(path, "the job key must be in a regular file");
  if (info.st_uid != ::geteuid())
    throw ConfigError(
        path,
        fmt::format("the job key file belongs to user {}, and this process runs as {}; make your own copy: "
                    "install -m 600 {} ~/starling.key",
                    info.st_uid, ::geteuid(), path));
  if ((info.st_mode & 077) != 0)
    throw ConfigError(path,
                      fmt::format("the job key file can be used by others (mode {:04o}); make it private: "
                                  "chmod 600 {}",
                                  info.st_mode & 07777, path));
}

void write_all(int fd, std::span<const char> bytes, const std::string& where) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw ConfigError(where, "the job key cannot be written: " + system_reason(errno));
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

}  // namespace

JobKey::JobKey(std::span<const std::byte, kBytes> bytes) {
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

JobKey::~JobKey() {
  wipe(bytes_);
}

JobKey make_job_key() {
  std::array<std::byte, JobKey::kBytes> bytes;
  fill_random(bytes);
  JobKey key(bytes);
  wipe(bytes);
  return key;
}

std::string fresh_name() {
  const JobKey random = make_job_key();
  std::string name = "starling-";
  for (const std::byte b : random.bytes().first(JobKey::kBytes / 2))
    name += fmt::format("{:02x}", static_cast<int>(b));
  return name;
}

JobKey read_job_key_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) throw ConfigError(path, "the job key file cannot be opened: " + system_reason(errno));
  check_private(path, fd.get());
  std::array<char, kFileDigits + 2> text;
  const auto size = read_up_to(fd.get(), text);
  if (!size) throw ConfigError(path, "the job key file cannot be read: " + system_reason(errno));
  const bool right_size = *size == kFileDigits || (*size == kFileDigits + 1 && text[kFileDigits] == '\n');
  std::array<std::byte, JobKey::kBytes> bytes;
  bool right = right_size;
  for (size_t i = 0; right && i < bytes.size(); ++i) {
    const int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
    right = high >= 0 && low >= 0;
    bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  wipe(std::as_writable_bytes(std::span(text)));
  if (!right) {
    wipe(bytes);
    throw ConfigError(path, fmt::format("not a job key: {} hexadecimal digits are expected", kFileDigits));
  }
  JobKey key(bytes);
  wipe(bytes);
  return key;
}

void write_job_key_file(const std::string& path, const JobKey& key) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) {
    const std::string why =
        errno == EEXIST ? "it exists already; remove it or name another file" : system_reason(errno);
    throw ConfigError(path, "the job key file cannot be made: " + why);
  }
  std::array<char, kFileDigits + 1> text;
  for (size_t i = 0; i < JobKey::kBytes; ++i)
    fmt::format_to_n(&text[2 * i], 2, "{:02x}", static_cast<int>(key.bytes()[i]));
  text[kFileDigits] = '\n';
  write_all(fd.get(), text, path);
  wipe(std::as_writable_bytes(std::span(text)));
  if (::fsync(fd.get()) != 0)
    throw ConfigError(path, "the job key cannot be written: " + system_reason(errno));
}

UniqueFd make_job_key_fd(const JobKey& key) {
  UniqueFd fd(::memfd_create("starling job key", MFD_CLOEXEC));
  if (!fd.valid()) throw ConfigError("job key", "memfd_create: " + system_reason(errno));
  const auto bytes = key.bytes();
  write_all(fd.get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "job key");
  if (::lseek(fd.get(), 0, SEEK_SET) != 0) throw ConfigError("job key", "lseek: " + system_reason(errno));
  return fd;
}

JobKey read_job_key_fd(int fd) {
  const UniqueFd owned(fd);
  std::array<char, JobKey::kBytes + 1> bytes;
  const auto size = read_up_to(fd, bytes);
  if (!size || *size != JobKey::kBytes)
    throw ConfigError("job key",
                      fmt::format("the inherited descriptor {} does not hold a job key ({}); it is made by "
                                  "`starling launch` and can be read once",
                                  fd, size ? fmt::format("{} bytes", *size) : system_reason(errno)));
  JobKey key(std::as_bytes(std::span(bytes)).first<JobKey::kBytes>());
  wipe(std::as_writable_bytes(std::span(bytes)));
  return key;
}

}  // namespace starling
