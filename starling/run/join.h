// join(): a run inside a program that has its own life, such as a simulation, a game or a service.
//
//   try {
//     starling::Run run = starling::join({{"train.epochs", 20}});
//     run.fit(starling::model<Net>(), starling::cross_entropy, samples);
//   } catch (const starling::Error& error) {
//     log(error.what());  // the program goes on
//   }
#pragma once

#include "starling/run/run.h"
#include "starling/spec/extensions.h"

namespace starling {

// Makes this process a rank of a job and returns its run. Unlike init(), it takes no command line, changes no
// signal handler and no signal mask, never ends the process and prints nothing on standard output. Warnings
// go to standard error.
//
// Rank: the environment of our launcher (`starling launch -n 4 PROGRAM`), torchrun, mpiexec or srun says
// which rank the process is. Without one of them, the run has one rank. join() starts no processes.
//
// Faults: join() and every function of the Run throw starling::Error, for a wrong setting ConfigError. An
// exception of another type, such as one that the loss throws, becomes an Error with its message. After a
// fault of the training, destroy the Run: the other ranks then learn that this rank is lost.
//
// Threads: one thread calls join() and uses the Run, and it need not be the main thread. Any thread may call
// Run::request_stop(), for example for the program's own handling of Ctrl-C.
//
// Settings: the keys of the configuration that apply to a program, as for init(). They are the only source of
// the configuration: no file and no environment variable sets a key.
//
// Files: a run folder with logs and checkpoints is made if run.dir is set, or if our launcher names a folder.
//
// Servers: with an exchange that has servers, the last exchange.servers processes of the job are servers.
// Run::is_server() is then true, and fit() or Run::serve() serves until the workers have finished.
//
// Process: one Run at a time. A process alone may join again after its Run is destroyed. A process of a job
// joins once, because the ranks of a job meet once. As under init(), the run sets the number of libtorch's
// threads (train.threads) and what malloc keeps. MPI may be initialized already: comm.engine = "mpi" then
// uses it and leaves its end to the program.
Run join(const Settings& settings = {}, const Extensions& extensions = {});

}  // namespace starling
