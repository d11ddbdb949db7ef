// A library for LD_PRELOAD that stands for a disk that stalls: while the file STALLED_DISK_WHILE exists,
// fsync() and write() do not return for files whose path contains STALLED_DISK_PATH.
// tests/stalled_disk_test.py uses it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void wait_while_stalled(int fd) {
  const char* stalled = getenv("STALLED_DISK_WHILE");
  const char* part = getenv("STALLED_DISK_PATH");
  if (stalled == NULL || part == NULL) return;
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  path[length < 0 ? 0 : length] = 0;
  const struct timespec pause = {0, 20000000};
  while (strstr(path, part) != NULL && access(stalled, F_OK) == 0) nanosleep(&pause, NULL);
}

int fsync(int fd) {
  wait_while_stalled(fd);
  int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return next(fd);
}

ssize_t write(int fd, const void* data, size_t count) {
  wait_while_stalled(fd);
  ssize_t (*next)(int, const void*, size_t) = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  return next(fd, data, count);
}
