"""A run inside a program with a main loop, threads and signal handlers of its own.

The tests use starling::join() and examples/embed.
"""
import os
import pathlib
import signal
import subprocess

from program import BUILD, STARLING, ProgramTest, environment, main, places_of_ranks

EMBED = str(BUILD / "examples" / "embed")
EPOCHS = 25  # 200 steps of 32 among 256 samples


class Embed(ProgramTest):
    def begin(self, *args, processes=1):
        """Starts the host programs as torchrun does, or one alone."""
        hosts = []
        for place in [{}] if processes == 1 else places_of_ranks(processes):
            host = subprocess.Popen([EMBED, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.dir,
                                    env=environment(**place))
            self.addCleanup(self.end, host)
            hosts.append(host)
        return hosts

    def lines(self, host, refused="optimizer.lr", before=()):
        """Waits for a host, which must end with status 0.

        Returns its lines without those that every host prints.
        """
        out, err = host.communicate(timeout=120)
        self.assertEqual(host.returncode, 0, f"{out}\n{err}")
        lines = [*before, *out.splitlines()]
        self.assertEqual([line for line in lines if not line.startswith("host: ")], [], "the library wrote to standard output")
        self.assertEqual(lines[0], f"host: refused: starling::join: {refused}: optimizer.lr is a number, not `fast`")
        self.assertEqual(lines[-1], "host: the signals are unchanged")
        return [line.removeprefix("host: ") for line in lines[1:-1]]

    def test_one_rank(self):
        (host,) = self.begin()
        self.assertEqual(self.lines(host), ["the first epoch is drawn", f"the main loop has drawn {EPOCHS} epochs", "trained rank 0"])
        self.assertEqual(os.listdir(self.dir), [], "a run folder was made unasked")

    def test_two_ranks(self):
        hosts = self.begin("run.dir=run", "checkpoint.every=100", processes=2)
        for rank, host in enumerate(hosts):
            self.assertEqual(self.lines(host),
                             ["the first epoch is drawn", f"the main loop has drawn {EPOCHS} epochs", f"trained rank {rank}"])
        self.assertEqual(sorted(p.name for p in pathlib.Path(self.path("run/checkpoints")).iterdir()), ["step-000100", "step-000200"])

    def test_signals_of_the_host_interrupt_no_rank(self):
        hosts = self.begin("--timer", "run.dir=run", "checkpoint.every=20", "comm.shared_memory=false", "exchange.codec=fp16", processes=2)
        for rank, host in enumerate(hosts):
            self.assertEqual(self.lines(host), ["the first epoch is drawn", "the timer ticks", f"the main loop has drawn {EPOCHS} epochs",
                                                f"trained rank {rank}"])

    def test_servers_serve(self):
        hosts = self.begin("exchange.name=parameter-server", "exchange.servers=1", processes=3)
        for rank in (0, 1):
            self.assertEqual(self.lines(hosts[rank])[-1], f"trained rank {rank}")
        self.assertEqual(self.lines(hosts[2]), ["the main loop has drawn 0 epochs", "served"])

    def test_under_our_launcher(self):
        done = subprocess.run([STARLING, "launch", "-n", "2", EMBED], capture_output=True, text=True, timeout=120, cwd=self.dir,
                              env=environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("host: trained rank 0", done.stdout)
        self.assertEqual(done.stdout.count("host: the signals are unchanged"), done.stdout.count("host: trained rank"))

    def test_a_fault_of_one_rank_is_thrown_on_all(self):
        hosts = self.begin("--faulty-rank", 1, processes=2)
        self.assertEqual(self.lines(hosts[1])[-1], "fault: observations: the sensor is gone")
        self.assertRegex(self.lines(hosts[0])[-1], "^fault: .*rank 1")

    def test_wrong_settings_are_thrown(self):
        for setting, message in (("train.ranks=2", "fault: train.ranks: the run needs 2 processes, and starling::join starts none: start the "
                                  "program by `starling launch -n 2 PROGRAM`, torchrun, mpiexec or srun"),
                                 ("model.name=resnet18", "fault: the program: model.name does not apply, because this program brings its own "
                                  "model: leave it out"),
                                 ("exchange.codec=zip", "fault: --codec: there is no codec 'zip'"),
                                 ("train.batch=3", "fault: starling::join: train.batch: unknown key train.batch: did you mean "
                                  "train.global_batch?")):
            with self.subTest(setting=setting):
                (host,) = self.begin(setting)
                self.assertEqual(self.lines(host)[-1][:len(message)], message)

    def test_the_host_handles_its_signals(self):
        hosts = self.begin("--forever", "run.dir=run", processes=2)
        first = [[host.stdout.readline() for _ in range(2)] for host in hosts]
        for lines in first:
            self.assertEqual(lines[1], "host: the first epoch is drawn\n")
        hosts[1].send_signal(signal.SIGINT)
        for rank, host in enumerate(hosts):
            before = [line.rstrip("\n") for line in first[rank]]
            self.assertEqual(self.lines(host, before=before)[-1], f"interrupted rank {rank}")
        self.assertEqual(len(list(pathlib.Path(self.path("run/checkpoints")).iterdir())), 1)


if __name__ == "__main__":
    main()
