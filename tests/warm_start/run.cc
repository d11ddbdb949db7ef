// warm_run runs a program that was loaded before (library.c), so that a test does not wait until libtorch is
// loaded. Without such a server, it starts one, and other calls with equal programs and variables use it.
//
//   warm_run PROGRAM ARG…        Runs the program, and ends with its status. Its tests then look as if
//   PROGRAM
//                                had been called. If that is impossible, warm_run becomes PROGRAM itself.
//   warm_run --address PROGRAM   Prints the path of the server's socket.
//
// With STARLING_COLD=1 it always becomes PROGRAM itself, as in `make check-deep`.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr const char* kIdleMs = "20000";  // without a request or a fork, a server ends after this time
constexpr size_t kMostBytes = 100'000;    // of a request; the limit of a message is about 200,000

// Returns true for a variable that a library reads while it is loaded. Servers differ in these.
bool is_read_when_loaded(std::string_view variable) {
  for (const std::string_view prefix : {"OMP_", "GOMP_", "KMP_", "MKL_", "LD_", "GLIBC_", "MALLOC_", "TORCH_",
                                        "ATEN_", "DNNL_", "ONEDNN_", "LC_", "LANG"}) {
    if (variable.starts_with(prefix)) return true;
  }
  return false;
}

// Returns the folder of warm_run, which also has the library, the sockets of servers and their lock.
std::string folder() {
  char self[PATH_MAX] = {};
  if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) return "";
  return std::string(self).substr(0, std::string(self).rfind('/'));
}

// Returns the path of the socket of the program's server, or "" if there can be none.
std::string address_of(const std::string& program) {
  struct stat built{};
  if (stat(program.c_str(), &built) != 0) return "";
  std::set<std::string> loaded;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (is_read_when_loaded(*variable)) loaded.emplace(*variable);
  }
  std::string key = program + ' ' + std::to_string(built.st_size) + ' ' +
                    std::to_string(built.st_mtim.tv_sec) + '.' + std::to_string(built.st_mtim.tv_nsec) + ' ' +
                    std::to_string(geteuid());
  for (const std::string& variable : loaded) key += '\n' + variable;
  const std::string path = folder() + "/warm-" + std::to_string(std::hash<std::string>{}(key));
  return path.size() < sizeof(sockaddr_un::sun_path) ? path : "";
}

sockaddr_un socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

// Returns a socket that is connected with the server, or -1 if there is none.
int connect_to(const std::string& path) {
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const sockaddr_un address = socket_address(path);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return connection;
  close(connection);
  return -1;
}

// Starts a server, which listens when this function returns.
void start_server(const std::string& program, const std::string& path) {
  const std::string library = folder() + "/libwarm_start.so";
  if (access(library.c_str(), R_OK) != 0) return;
  unlink(path.c_str());
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  const sockaddr_un address = socket_address(path);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      listen(listener, 64) == 0) {
    const pid_t child = fork();
    if (child == 0) {
      if (setsid() < 0 || fork() != 0) _exit(0);  // the server is nobody's child, so nobody must wait for it
      const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
      for (int stream = 0; stream < 3; ++stream) dup2(nothing, stream);
      setenv("LD_PRELOAD", library.c_str(), 1);
      setenv("WARM_START_SOCKET", std::to_string(listener).c_str(), 1);
      setenv("WARM_START_IDLE", kIdleMs, 1);
      if (chdir("/") == 0) execl(program.c_str(), program.c_str(), nullptr);
      _exit(127);
    }
    waitpid(child, nullptr, 0);
  }
  close(listener);
}

// Returns a socket that is connected with a server of the program, or -1.
int server_of(const std::string& program, const std::string& path) {
  int connection = connect_to(path);
  if (connection >= 0) return connection;
  const int lock = open((folder() + "/warm.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) return -1;
  connection = connect_to(path);  // another process may have started it
  if (connection < 0) {
    start_server(program, path);
    connection = connect_to(path);
  }
  close(lock);
  return connection;
}

// Sends the request. Returns false if it is too long or the server has ended.
bool request(int connection, const std::vector<std::string>& words) {
  char folder[PATH_MAX];
  if (getcwd(folder, sizeof(folder)) == nullptr) return false;
  std::string text = std::string(folder) + '\0' + std::to_string(words.size()) + '\0';
  for (const std::string& word : words) text += word + '\0';
  for (char** variable = environ; *variable != nullptr; ++variable) text += std::string(*variable) + '\0';
  if (text.size() > kMostBytes) return false;
  iovec part = {text.data(), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* passed = CMSG_FIRSTHDR(&message);
  passed->cmsg_level = SOL_SOCKET;
  passed->cmsg_type = SCM_RIGHTS;
  passed->cmsg_len = CMSG_LEN(3 * sizeof(int));
  const int streams[] = {0, 1, 2};
  std::memcpy(CMSG_DATA(passed), streams, sizeof(streams));
  return sendmsg(connection, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

// Runs the program in the server. Returns false if no server took the request.
bool run(const std::string& program, const std::vector<std::string>& words, int* status) {
  const std::string path = address_of(program);
  const int connection = path.empty() ? -1 : server_of(program, path);
  pid_t pid = 0;
  if (connection < 0 || !request(connection, words) || recv(connection, &pid, sizeof(pid), 0) != sizeof(pid))
    return false;
  if (recv(connection, status, sizeof(*status), 0) != sizeof(*status)) *status = SIGKILL;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: warm_run PROGRAM ARG… | warm_run --address PROGRAM\n", stderr);
    return 2;
  }
  if (argc == 3 && std::strcmp(argv[1], "--address") == 0) {
    const std::string path = address_of(argv[2]);
    if (path.empty() || server_of(argv[2], path) < 0) return 1;
    std::puts(path.c_str());
    return 0;
  }
  const char* cold = getenv("STARLING_COLD");
  int status = 0;
  if ((cold == nullptr || std::strcmp(cold, "1") != 0) && run(argv[1], {argv + 1, argv + argc}, &status)) {
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
    return 1;
  }
  execv(argv[1], argv + 1);
  std::perror(argv[1]);
  return 127;
}
