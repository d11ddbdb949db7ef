// A library for LD_PRELOAD that starts a program many times after it was loaded once. Loading libtorch and
// registering its operators takes 0.2 s of processor time, most of what a short test takes.
//
// The program stops before main() and serves requests on the socket WARM_START_SOCKET (a file descriptor, of
// type SOCK_SEQPACKET, that listens). Each request is answered by a fork that runs main(). The server ends when
// there was neither a request nor a running fork for WARM_START_IDLE milliseconds. Those who ask are run.cc and
// tests/warm_process.py:
//
//   request   one message: the standard streams as three descriptors; the text has the folder, then the number
//             of arguments, the arguments and the environment, each ended by a zero byte
//   answers   the process ID of the fork as an int; when it has ended, its wait status as an int
//
// A fork is killed if whoever asked closes the connection.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kMostForks = 256, kMostBytes = 1 << 18, kListener = kMostForks, kEnded = kMostForks + 1 };

typedef int (*Main)(int, char**, char**);

static Main program_main;
static int running = 0;
static pid_t forks[kMostForks];
// The connections of the forks, then the socket that listens, then the pipe to which note_end() writes.
static struct pollfd watched[kMostForks + 2];
static int ended[2];

static void note_end(int signal) {
  (void)signal;
  if (write(ended[1], "", 1) < 0) return;  // a full pipe wakes the server as well
}

// Sends the wait status of each fork that has ended.
static void reap(void) {
  char ignored[64];
  while (read(ended[0], ignored, sizeof(ignored)) == sizeof(ignored)) {
  }
  for (int i = 0; i < running;) {
    int status = 0;
    if (waitpid(forks[i], &status, WNOHANG) != forks[i]) {
      ++i;
      continue;
    }
    const int connection = watched[i].fd < 0 ? ~watched[i].fd : watched[i].fd;
    send(connection, &status, sizeof(status), MSG_NOSIGNAL);
    close(connection);
    forks[i] = forks[--running];
    watched[i] = watched[running];
    watched[running].fd = -1;
  }
}

// Receives a request into `text`. Returns the bytes of the text, or -1 for no request.
static ssize_t receive(int connection, char* text, int streams[3]) {
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
static void run(char* text, ssize_t bytes, const int streams[3]) {
  setpgid(0, 0);
  signal(SIGCHLD, SIG_DFL);
  for (int i = 0; i < 3; ++i) dup2(streams[i], i);
  close_range(3, ~0U, 0);
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

static void serve(void) {
  static char text[kMostBytes];
  int streams[3];
  const int connection = accept4(watched[kListener].fd, NULL, NULL, SOCK_CLOEXEC);
  if (connection < 0) return;
  const ssize_t bytes = running < kMostForks ? receive(connection, text, streams) : -1;
  const pid_t pid = bytes < 0 ? -1 : fork();
  if (pid == 0) run(text, bytes, streams);
  for (int i = 0; bytes >= 0 && i < 3; ++i) close(streams[i]);
  if (pid < 0) {
    close(connection);
    return;
  }
  send(connection, &pid, sizeof(pid), MSG_NOSIGNAL);
  forks[running] = pid;
  watched[running++] = (struct pollfd){connection, 0, 0};  // only hang-ups
}

static void end(void) {
  struct sockaddr_un address;
  socklen_t bytes = sizeof(address);
  if (getsockname(watched[kListener].fd, (struct sockaddr*)&address, &bytes) == 0) unlink(address.sun_path);
  _exit(0);
}

static int serve_requests(int argc, char** argv, char** envp) {
  (void)argc, (void)argv, (void)envp;
  const int idle = atoi(getenv("WARM_START_IDLE"));
  if (pipe2(ended, O_CLOEXEC | O_NONBLOCK) != 0) return 1;
  for (int i = 0; i < kMostForks; ++i) watched[i].fd = -1;
  watched[kListener] = (struct pollfd){atoi(getenv("WARM_START_SOCKET")), POLLIN, 0};
  watched[kEnded] = (struct pollfd){ended[0], POLLIN, 0};
  signal(SIGCHLD, note_end);
  for (;;) {
    const int ready = poll(watched, kMostForks + 2, running > 0 ? -1 : idle);
    if (ready == 0) end();
    if (ready < 0) continue;  // interrupted by SIGCHLD, whose byte is in the pipe
    for (int i = 0; i < running; ++i) {
      if (watched[i].revents == 0) continue;
      kill(forks[i], SIGKILL);
      watched[i].fd = ~watched[i].fd;  // negative: not watched any more
    }
    if (watched[kEnded].revents != 0) reap();
    if (watched[kListener].revents != 0) serve();
  }
}

// glibc calls this function in place of its own, after the static objects of the shared libraries were made.
int __libc_start_main(Main main, int argc, char** argv, void (*init)(void), void (*fini)(void), void (*end_loader)(void),
                      void* stack) {
  int (*next)(Main, int, char**, void (*)(void), void (*)(void), void (*)(void), void*) = dlsym(RTLD_NEXT, "__libc_start_main");
  const int serves = getenv("WARM_START_SOCKET") != NULL;
  program_main = main;
  return next(serves ? serve_requests : main, argc, argv, init, fini, end_loader, stack);
}
