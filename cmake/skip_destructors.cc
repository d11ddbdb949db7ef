// Ends the program before the static objects of its shared libraries are destroyed. libtorch's unregister
// every operator, which takes 0.1 s of processor time, a third of what a command takes that prints one line.
//
// The static objects of the program itself are destroyed. The functions of all files with the attribute
// `destructor` are skipped too. Some profilers and coverage write their files there: for them build with
// -DSTARLING_SKIP_DESTRUCTORS=OFF. Starling's programs are linked with this file, and users'
// programs are not, because they may need these functions.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace {

// exit() calls this function after the handlers that the program has registered, and before those of its
// shared libraries, which were registered when they were loaded.
void end_program(int status, void* /*unused*/) {
  std::cout.flush();
  std::cerr.flush();
  std::clog.flush();
  std::fflush(nullptr);
  ::_exit(status);
}

// 101 is the first priority of a program, so the static objects of the program are made later and destroyed
// earlier.
[[gnu::constructor(101)]] void call_at_exit() {
  ::on_exit(end_program, nullptr);
}

}  // namespace
