// A library for LD_PRELOAD that starts a program many times after it was loaded once. Loading libtorch and
// registering its operators takes 0.2 s of processor time, most of what a short test takes.
//
// The program becomes a fork server: it stops before main() and serves requests on the descriptor 3, a socket of
// type SOCK_SEQPACKET that listens. It answers each request by a fork that runs main(). The server ends when
// there was neither a request nor a fork for WARM_START_IDLE milliseconds. The clients are run.cc and
// tests/warm_process.py:
//
//   request   one message: the standard streams as three descriptors; the text has the folder, then the number
//             of arguments, the arguments and the environment, each ended by a zero byte
//   answers   the process ID of the fork as an int; when it has ended, its wait status as an int
//
// The ended fork remains a zombie until the client closes the connection, so its process ID stays its own. If
// the client closes the connection before, the server kills the fork and its process group.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kMostForks = 256, kMostBytes = 1 << 18, kSocket = 3, kListener = kMostForks, kEnded = kMostForks + 1 };

typedef int (*Main)(int, char**, char**);

static Main program_main;
static int forks_alive = 0;
static struct {
  pid_t pid;
  int reported;  // its status was sent
} forks[kMostForks];
// The connections of the forks, then the socket that listens, then the pipe to which note_end() writes.
static struct pollfd watched[kMostForks + 2];
static int ended[2];

static void note_end(int signal) {
  (void)signal;
  if (write(ended[1], "", 1) < 0) return;  // a full pipe wakes the server as well
}

// Sends the wait status of each fork that has ended, and leaves it a zombie.
static void report(void) {
  char ignored[64];
  while (read(ended[0], ignored, sizeof(ignored)) == sizeof(ignored)) {
  }
  for (int i = 0; i < forks_alive; ++i) {
    siginfo_t info = {0};
    if (forks[i].reported || waitid(P_PID, (id_t)forks[i].pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0) continue;
    if (info.si_pid != forks[i].pid) continue;
    const int dumped = info.si_code == CLD_DUMPED ? 0x80 : 0;
    const int status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status | dumped;
    send(watched[i].fd, &status, sizeof(status), MSG_NOSIGNAL);
    forks[i].reported = 1;
  }
}

// Forgets fork i, whose client has closed the connection.
static void forget(int i) {
  if (!forks[i].reported) kill(-forks[i].pid, SIGKILL);
  waitpid(forks[i].pid, NULL, 0);
  close(watched[i].fd);
  forks[i] = forks[--forks_alive];
  watched[i] = watched[forks_alive];
  watched[forks_alive].fd = -1;
}

// Receives a request into `text`. Returns the bytes of the text, or -1 for no request.
static ssize_t receive(int connection, char* text, int streams[3]) {
  const struct timeval patience = {5, 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  char control[CMSG_SPACE(3 * sizeof(int))] = {0};
  struct iovec part = {text, kMostBytes};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
  const ssize_t bytes = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
  const struct cmsghdr* passed = CMSG_FIRSTHDR(&message);
  if (bytes <= 0 || text[bytes - 1] != 0 || passed == NULL || passed->cmsg_len != CMSG_LEN(3 * sizeof(int))) return -1;
  memcpy(streams, CMSG_DATA(passed), 3 * sizeof(int));
  return bytes;
}

// Runs the program in a fork. The fork has a process group of its own, as a command of a shell has.
static void run(char* text, ssize_t bytes, const int streams[3], pid_t server) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != server) _exit(127);
  setpgid(0, 0);
  signal(SIGCHLD, SIG_DFL);
  for (int i = 0; i < 3; ++i) dup2(streams[i], i);
  for (int i = 0; i < forks_alive; ++i) close(watched[i].fd);
  close(kSocket);
  if (close_range(3, ~0U, 0) != 0) close(ended[0]), close(ended[1]);
  char** words = calloc((size_t)bytes + 2, sizeof(char*));
  int count = 0;
  for (char* word = text; word < text + bytes; word += strlen(word) + 1) words[count++] = word;
  if (count < 2 || chdir(words[0]) != 0) _exit(127);
  const int arguments = atoi(words[1]);
  // words[2 …] are the arguments. A null must follow them, so the environment moves by one place.
  char** variables = words + 2 + arguments;
  memmove(variables + 1, variables, (size_t)(count - 2 - arguments) * sizeof(char*));
  *variables = NULL;
  environ = variables + 1;
  exit(program_main(arguments, words + 2, environ));
}

static void end(void) {
  struct sockaddr_un address;
  socklen_t bytes = sizeof(address);
  if (getsockname(kSocket, (struct sockaddr*)&address, &bytes) == 0) unlink(address.sun_path);
  _exit(0);
}

static void serve(void) {
  static char text[kMostBytes];
  int streams[3];
  const int connection = accept4(kSocket, NULL, NULL, SOCK_CLOEXEC);
  if (connection < 0) return;
  const ssize_t bytes = forks_alive < kMostForks ? receive(connection, text, streams) : -1;
  const pid_t server = getpid(), pid = bytes < 0 ? -1 : fork();
  if (pid == 0) run(text, bytes, streams, server);
  for (int i = 0; bytes >= 0 && i < 3; ++i) close(streams[i]);
  if (pid < 0) {
    close(connection);
    return;
  }
  setpgid(pid, pid);
  send(connection, &pid, sizeof(pid), MSG_NOSIGNAL);
  forks[forks_alive].pid = pid;
  forks[forks_alive].reported = 0;
  watched[forks_alive++] = (struct pollfd){connection, 0, 0};  // only hang-ups
}

static int serve_requests(int argc, char** argv, char** envp) {
  (void)argc, (void)argv, (void)envp;
  const int idle = atoi(getenv("WARM_START_IDLE"));
  if (pipe2(ended, O_CLOEXEC | O_NONBLOCK) != 0) return 1;
  for (int i = 0; i < kMostForks; ++i) watched[i].fd = -1;
  watched[kListener] = (struct pollfd){kSocket, POLLIN, 0};
  watched[kEnded] = (struct pollfd){ended[0], POLLIN, 0};
  signal(SIGCHLD, note_end);
  for (;;) {
    const int ready = poll(watched, kMostForks + 2, forks_alive > 0 ? -1 : idle);
    if (ready == 0 || (watched[kListener].revents & (POLLERR | POLLNVAL)) != 0) end();
    if (ready < 0) continue;  // interrupted by SIGCHLD, whose byte is in the pipe
    if (watched[kEnded].revents != 0) report();
    for (int i = forks_alive - 1; i >= 0; --i) {
      if (watched[i].revents != 0) forget(i);
    }
    if (watched[kListener].revents != 0) serve();
  }
}

// glibc calls this function in place of its own, after the static objects of the shared libraries were made.
int __libc_start_main(Main main, int argc, char** argv, void (*init)(void), void (*fini)(void), void (*end_loader)(void),
                      void* stack) {
  int (*next)(Main, int, char**, void (*)(void), void (*)(void), void (*)(void), void*) = dlsym(RTLD_NEXT, "__libc_start_main");
  const int serves = getenv("WARM_START_IDLE") != NULL;
  program_main = main;
  return next(serves ? serve_requests : main, argc, argv, init, fini, end_loader, stack);
}
