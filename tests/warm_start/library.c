// A library for LD_PRELOAD that starts a program many times after it was loaded once. Loading libtorch and
// registering its operators takes 0.2 s of processor time, most of what a short test takes.
//
// The program becomes a fork server: it stops before main() and serves requests on the descriptor 3, a socket
// of type SOCK_SEQPACKET that listens. It answers each request by a fork that runs main(). The server ends
// when there was neither a request nor a fork for WARM_START_IDLE milliseconds. The clients are run.cc and
// tests/warm_process.py:
//
//   request   one message: the standard streams as three descriptors; the text has the folder, the number of
//             arguments, the arguments and the environment, each ended by a zero byte
//   answer    the process ID of the fork as an int
//   go        one byte, after which the fork begins main()
//   answer    the wait status of the fork as an int, when the fork has ended
//
// A client that has sent `go` never runs the program by itself. A fork that has not received `go` never
// begins main(). So a program runs only once, even if the server answers after its client has given up.
//
// The ended fork remains a zombie until the client closes the connection, so its process ID stays its own. If
// the client closes the connection before, the server kills the fork and its process group.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
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
static int forks_alive = 0;  // the forks whose clients have not closed the connection
static struct {
  pid_t pid;
  int reported;  // its status was sent
} forks[kMostForks];
static pid_t killed[kMostForks];  // the forks that were killed and have not ended yet
static int forks_killed = 0;
// The connections of the forks, then the socket that listens, then the pipe to which note_end() writes.
static struct pollfd watched[kMostForks + 2];
static int ended[2];

static void note_end(int signal) {
  (void)signal;
  const int before = errno;
  if (write(ended[1], "", 1) < 0) errno = before;  // a full pipe wakes the server as well
}

// Sends the wait status of each fork that has ended, and leaves it a zombie.
static void report(void) {
  char ignored[64];
  while (read(ended[0], ignored, sizeof(ignored)) == sizeof(ignored)) {
  }
  for (int i = 0; i < forks_alive; ++i) {
    siginfo_t info = {0};
    const int options = WEXITED | WNOHANG | WNOWAIT;
    if (forks[i].reported || waitid(P_PID, (id_t)forks[i].pid, &info, options) != 0) continue;
    if (info.si_pid != forks[i].pid) continue;
    const int dumped = info.si_code == CLD_DUMPED ? 0x80 : 0;
    const int status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status | dumped;
    send(watched[i].fd, &status, sizeof(status), MSG_NOSIGNAL);
    forks[i].reported = 1;
  }
}

// Removes the killed forks that have ended. A fork that waits for a disk may end much later. The server does
// not wait for such a fork.
static void reap(void) {
  for (int i = forks_killed - 1; i >= 0; --i) {
    if (waitpid(killed[i], NULL, WNOHANG) != 0) killed[i] = killed[--forks_killed];
  }
}

// Forgets fork i, whose client has closed the connection.
static void forget(int i) {
  if (!forks[i].reported) {
    kill(-forks[i].pid, SIGKILL);
    kill(forks[i].pid, SIGKILL);  // the fork may have left its process group
  }
  killed[forks_killed++] = forks[i].pid;
  close(watched[i].fd);
  forks[i] = forks[--forks_alive];
  watched[i] = watched[forks_alive];
  watched[forks_alive].fd = -1;
  reap();
}

static int is_complete(const struct msghdr* message, const char* text, ssize_t bytes) {
  return bytes > 0 && text[bytes - 1] == 0 && (message->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
}

// Receives a request into `text`. Returns the bytes of the text, or -1 for no request. A refused request
// leaves no descriptor open.
static ssize_t receive(int connection, char* text, int streams[3]) {
  const struct timeval patience = {5, 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {0};
  struct iovec part = {text, kMostBytes};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
  ssize_t bytes = 0;
  do {
    bytes = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
  } while (bytes < 0 && errno == EINTR);  // SIGCHLD interrupts a call that has a time limit
  if (bytes < 0) return -1;
  int passed = 0;
  for (struct cmsghdr* header = CMSG_FIRSTHDR(&message); header != NULL;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= header->cmsg_len; at += sizeof(int), ++passed) {
      int descriptor = -1;
      memcpy(&descriptor, (char*)header + at, sizeof(int));
      // CMSG_SPACE rounds up, so the buffer has room for a fourth descriptor.
      if (passed < 3) streams[passed] = descriptor;
      if (passed >= 3) close(descriptor);
    }
  }
  if (is_complete(&message, text, bytes) && passed == 3) return bytes;
  for (int i = 0; i < passed && i < 3; ++i) close(streams[i]);
  return -1;
}

// Waits in a fork for the byte `go`. If the client closes the connection, the fork ends.
static void await_go(int connection) {
  const struct timeval no_limit = {0, 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &no_limit, sizeof(no_limit));
  char go = 0;
  ssize_t bytes = 0;
  do {
    bytes = recv(connection, &go, 1, 0);
  } while (bytes < 0 && errno == EINTR);
  if (bytes != 1) _exit(127);
}

// Runs the program in a fork. The fork has a process group of its own, as a command of a shell has.
static void run(int connection, char* text, ssize_t bytes, const int streams[3], pid_t server) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != server) _exit(127);
  setpgid(0, 0);
  signal(SIGCHLD, SIG_DFL);
  for (int i = 0; i < forks_alive; ++i) close(watched[i].fd);
  close(kSocket);
  await_go(connection);
  for (int i = 0; i < 3; ++i) dup2(streams[i], i);
  if (close_range(3, ~0U, 0) != 0) {
    for (int i = 0; i < 3; ++i) close(streams[i]);
    close(connection), close(ended[0]), close(ended[1]);
  }
  char** words = calloc((size_t)bytes + 2, sizeof(char*));
  if (words == NULL) _exit(127);
  int count = 0;
  for (char* word = text; word < text + bytes; word += strlen(word) + 1) words[count++] = word;
  if (count < 2 || chdir(words[0]) != 0) _exit(127);
  const int arguments = atoi(words[1]);
  if (arguments < 0 || arguments > count - 2) _exit(127);
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

static int is_open(int connection) {
  struct pollfd peer = {connection, 0, 0};
  return poll(&peer, 1, 0) == 0;
}

static void serve(void) {
  static char text[kMostBytes];
  int streams[3];
  const int connection = accept4(kSocket, NULL, NULL, SOCK_CLOEXEC);
  if (connection < 0) return;
  const ssize_t bytes = forks_alive + forks_killed < kMostForks ? receive(connection, text, streams) : -1;
  // A client that has given up while its request was queued needs no fork.
  const pid_t server = getpid(), pid = bytes < 0 || !is_open(connection) ? -1 : fork();
  if (pid == 0) run(connection, text, bytes, streams, server);
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
    const int ready = poll(watched, kMostForks + 2, forks_alive + forks_killed > 0 ? -1 : idle);
    if (ready == 0 || (watched[kListener].revents & (POLLERR | POLLNVAL)) != 0) end();
    if (ready < 0) continue;  // interrupted by SIGCHLD, whose byte is in the pipe
    if (watched[kEnded].revents != 0) report(), reap();
    for (int i = forks_alive - 1; i >= 0; --i) {
      if (watched[i].revents != 0) forget(i);
    }
    if (watched[kListener].revents != 0) serve();
  }
}

// glibc calls this function in place of its own, after the static objects of the shared libraries were made.
int __libc_start_main(Main main, int argc, char** argv, void (*init)(void), void (*fini)(void),
                      void (*end_loader)(void), void* stack) {
  int (*next)(Main, int, char**, void (*)(void), void (*)(void), void (*)(void), void*) =
      dlsym(RTLD_NEXT, "__libc_start_main");
  const int serves = getenv("WARM_START_IDLE") != NULL;
  program_main = main;
  return next(serves ? serve_requests : main, argc, argv, init, fini, end_loader, stack);
}
