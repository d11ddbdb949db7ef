// warm_run runs a program that was loaded before, so that a test does not wait until libtorch is loaded. It
// asks a fork server (library.c), and starts one if there is none. Calls with equal programs and variables
// share it.
//
//   warm_run PROGRAM ARG…        runs the program and ends with its status.
//   warm_run --address PROGRAM   prints the path of the server's socket.
//
// Where a server is impossible, or has not begun the program within 60 s, warm_run becomes PROGRAM itself.
// With STARLING_COLD=1 it always does, as in `make check-deep`.
//
// The program gets the arguments, the environment, the folder and the standard streams of its own client.
// While it is loaded, its folder is / and its streams are /dev/null. No signal is blocked. The program
// belongs to a session without a terminal. Clients with different effective user IDs, or with different mnt,
// net, user or pid namespaces, have different servers. A program has everything else from the client that
// started its server:
//
// * the umask, the nice value, the scheduling policy, the I/O priority and the CPU affinity
// * the cgroup, the uts, ipc, time and cgroup namespaces, and the root folder
// * the resource limits (ulimit) and the score of the out-of-memory killer
// * the real user ID, the groups, the capabilities and the filters of system calls
// * the set of ignored signals, except that SIGCHLD is not ignored
//
// A program that needs other values is started without warm_run.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
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
#include <thread>
#include <vector>

namespace {

constexpr const char* kIdleMs = "20000";  // without a request or a fork, a server ends after this time
constexpr size_t kMostBytes = 100'000;    // of a request; the limit of a message is about 200,000
constexpr int kSocket = 3;                // the server's descriptor of its socket (library.c)

// Returns the time until which a server must have begun the program. warm_run then gives up the server.
std::chrono::steady_clock::time_point deadline() {
  static const auto time = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  return time;
}

// Sets the socket's option SO_SNDTIMEO or SO_RCVTIMEO to the time that is left until the deadline.
// SO_SNDTIMEO also limits connect(), which waits while the server's queue is full.
void limit_time(int socket, int option) {
  const auto left = deadline() - std::chrono::steady_clock::now();
  // The limit 0 would mean no limit.
  const auto ms = std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
  const timeval limit{ms / 1000, ms % 1000 * 1000};
  setsockopt(socket, SOL_SOCKET, option, &limit, sizeof(limit));
}

// Returns true for a variable that a library reads while it is loaded. Servers differ in these.
bool is_read_when_loaded(std::string_view variable) {
  for (const std::string_view prefix :
       {"OMP_",     "GOMP_",  "KMP_",  "MKL_",  "LD_",     "GLIBC_",  "MALLOC_", "TORCH_",
        "PYTORCH_", "C10_",   "ATEN_", "DNNL_", "ONEDNN_", "KINETO_", "CUDA_",   "UCX_",
        "OMPI_",    "GTEST_", "LC_",   "LANG",  "PATH=",   "HOME="}) {
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

std::string library() {
  return folder() + "/libwarm_start.so";
}

// Returns the variables of this process that a server gets.
std::vector<std::string> variables_of_server() {
  std::set<std::string> loaded;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (is_read_when_loaded(*variable)) loaded.emplace(*variable);
  }
  return {loaded.begin(), loaded.end()};
}

// Returns what tells a file from a later one of the same name.
std::string version_of(const std::string& file) {
  struct stat built{};
  if (stat(file.c_str(), &built) != 0) return "";
  return std::to_string(built.st_size) + ' ' + std::to_string(built.st_mtim.tv_sec) + '.' +
         std::to_string(built.st_mtim.tv_nsec);
}

// Returns the path of the socket of the program's server, or "" if there can be none.
std::string address_of(const std::string& program) {
  const std::string program_version = version_of(program), library_version = version_of(library());
  if (getenv("LD_PRELOAD") != nullptr || program_version.empty() || library_version.empty()) return "";
  std::string key = program + ' ' + program_version + ' ' + library_version + ' ' + std::to_string(geteuid());
  for (const char* name : {"mnt", "net", "user", "pid"}) {
    char space[64] = {};
    if (readlink((std::string("/proc/self/ns/") + name).c_str(), space, sizeof(space) - 1) > 0)
      key += std::string(" ") + space;
  }
  for (const std::string& variable : variables_of_server()) key += '\n' + variable;
  const std::string path = folder() + "/warm-" + std::to_string(std::hash<std::string>{}(key));
  return path.size() < sizeof(sockaddr_un::sun_path) ? path : "";
}

sockaddr_un socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

// Returns a socket that is connected with the server. Returns -1 with errno EAGAIN if the server's queue was
// full until the deadline, or -1 with another value if there is no server.
int connect_to(const std::string& path) {
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  limit_time(connection, SO_SNDTIMEO);
  const sockaddr_un address = socket_address(path);
  int status = 0;
  do {
    status = connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (status != 0 && errno == EINTR);  // SIGCONT interrupts a call that has a time limit
  if (status == 0) return connection;
  const int reason = errno;
  close(connection);
  errno = reason;
  return -1;
}

// Becomes a server with the socket `listener`.
[[noreturn]] void become_server(const std::string& program, int listener) {
  std::vector<std::string> variables = variables_of_server();
  variables.push_back("LD_PRELOAD=" + library());
  variables.push_back(std::string("WARM_START_IDLE=") + kIdleMs);
  std::vector<char*> pointers;
  for (std::string& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  const int nothing = open("/dev/null", O_RDWR);
  for (int stream = 0; stream < 3; ++stream) dup2(nothing, stream);
  if (listener != kSocket) dup2(listener, kSocket);
  close_range(kSocket + 1, ~0U, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);  // the server needs SIGCHLD
  if (chdir("/") == 0) execle(program.c_str(), program.c_str(), nullptr, pointers.data());
  _exit(127);
}

// Starts a server, which listens when this function returns.
void start_server(const std::string& program, const std::string& path) {
  unlink(path.c_str());
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  const sockaddr_un address = socket_address(path);
  const mode_t before = umask(077);
  const bool bound = bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  umask(before);
  if (bound && listen(listener, 64) == 0) {
    const pid_t child = fork();
    if (child == 0) {
      // The server gets another parent, so that no process must wait for it.
      if (setsid() < 0 || fork() != 0) _exit(0);
      become_server(program, listener);
    }
    waitpid(child, nullptr, 0);
  }
  close(listener);
}

// Takes the lock. Returns false if the deadline passes before.
bool take(int lock) {
  while (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return false;
    if (std::chrono::steady_clock::now() > deadline()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// Returns a socket that is connected with a server of the program, or -1.
int server_of(const std::string& program, const std::string& path) {
  int connection = connect_to(path);
  if (connection >= 0 || errno == EAGAIN) return connection;
  const int lock = open((folder() + "/warm.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return -1;
  if (!take(lock)) {
    close(lock);
    return -1;
  }
  connection = connect_to(path);  // another process may have started it
  if (connection < 0 && errno != EAGAIN) {
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

// Receives a number. Returns false if the server has ended or the time is over.
bool receive(int connection, int* number) {
  ssize_t bytes = 0;
  do {
    bytes = recv(connection, number, sizeof(*number), 0);
  } while (bytes < 0 && errno == EINTR);  // as in connect_to()
  return bytes == sizeof(*number);
}

// Asks the server to run the program. Returns false if the program will not run there. The server waits for
// the byte before it begins main(), so a program whose client has given up never runs a second time.
bool begin(int connection, const std::vector<std::string>& words) {
  pid_t pid = 0;
  limit_time(connection, SO_RCVTIMEO);
  return request(connection, words) && receive(connection, &pid) &&
         send(connection, "", 1, MSG_NOSIGNAL) == 1;
}

// Runs the program in the server. Returns false if no server took the request. The program may run as long as
// it likes: ctest ends this process when the test's time is over, and the server then kills the program.
bool run(const std::string& program, const std::vector<std::string>& words, int* status) {
  const std::string path = address_of(program);
  const int connection = path.empty() ? -1 : server_of(program, path);
  if (connection < 0 || !begin(connection, words)) return false;
  const timeval no_limit{};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &no_limit, sizeof(no_limit));
  if (!receive(connection, status)) {
    std::fprintf(stderr, "warm_run: the fork server of %s has ended\n", program.c_str());
    *status = SIGKILL;
  }
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
    const rlimit no_core{};  // the program has written one
    setrlimit(RLIMIT_CORE, &no_core);
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
    return 1;
  }
  execv(argv[1], argv + 1);
  std::perror(argv[1]);
  return 127;
}
