"""The programs in examples/ports.

With Starling they differ in few lines, and they train to the weights of libtorch alone.
"""
import contextlib
import difflib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

from program import BUILD, ProgramTest, environment, main, ranks_of

PORTS = pathlib.Path(__file__).resolve().parent.parent / "examples/ports"
NAMES = sorted(p.parent.name for p in PORTS.glob("*/main.cc"))
# `make check-deep` builds the others, too (examples/CMakeLists.txt).
BUILT = NAMES if os.environ.get("STARLING_THOROUGH") == "1" else ["dist-mnist", "mnist"]
MOST_LINES = 15


class Ports(ProgramTest):
    def port(self, name, part, *args, fresh=True):
        if fresh:
            shutil.rmtree(self.path("run"), ignore_errors=True)
        program = str(BUILD / "examples" / f"port-{name}-{part}")
        words = [program, *(["--run-dir", self.path("run")] if part == "main" else []), *map(str, args)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, cwd=self.dir,
                              env=environment(OMP_NUM_THREADS=1))
        self.assertEqual(done.returncode, 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    def weights(self, out):
        """Returns the printed weights of one rank, as texts."""
        found = re.findall(r"^weights (.*)$", out, re.M)
        self.assertTrue(found, out)
        return found

    def test_a_port_differs_in_few_lines(self):
        self.assertEqual(len(NAMES), 6)
        for name in NAMES:
            plain, ours = ((PORTS / name / f"{part}.cc").read_text(encoding="utf-8").splitlines() for part in ("plain", "main"))
            changed = [line for line in difflib.ndiff(plain, ours) if line.startswith("+ ")]
            with self.subTest(port=name):
                self.assertLessEqual(len(changed), MOST_LINES, "\n".join(changed))

    def test_one_process_trains_to_the_weights_of_libtorch_alone(self):
        for name in BUILT:
            with self.subTest(port=name):
                self.assertEqual(self.weights(self.port(name, "main", "--threads", 1)), self.weights(self.port(name, "plain")))

    def test_the_processes_of_plain_dist_mnist_train_to_equal_weights(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [str(BUILD / "examples" / "port-dist-mnist-plain")]
        processes = [subprocess.Popen(words, cwd=self.dir, stdout=subprocess.PIPE, text=True, env=environment(
            OMP_NUM_THREADS=1, RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)) for rank in range(2)]
        for process in processes:
            self.addCleanup(self.end, process)
        outs = [process.communicate(timeout=240)[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], outs)
        self.assertEqual(self.weights(outs[0]), self.weights(outs[1]))
        self.assertGreater(float(re.search(r"accuracy ([0-9.]+)", outs[0])[1]), 0.9)

    def test_two_ranks_train_to_equal_weights(self):
        for name in BUILT:
            with self.subTest(port=name):
                out = self.port(name, "main", "-n", 2)
                log = pathlib.Path(self.path("run/log/rank-1.log"))
                self.assertEqual(self.weights(out), self.weights(log.read_text(encoding="utf-8")))

    def killed_and_resumed(self, name, *way):
        """Kills all processes of a run once it has a checkpoint.

        Compares the resumed run with an undisturbed one.
        """
        whole = self.weights(self.port(name, "main", "--threads", 1, *way))
        shutil.rmtree(self.path("run"))
        words = [str(BUILD / "examples" / f"port-{name}-main"), "--run-dir", self.path("run"), "--threads", "1", "--set", "checkpoint.every=3", *way]
        process = subprocess.Popen(words, cwd=self.dir, stdout=subprocess.DEVNULL, env=environment(OMP_NUM_THREADS=1))
        self.addCleanup(self.end, process)
        checkpoints = pathlib.Path(self.path("run/checkpoints"))
        while process.poll() is None and not list(checkpoints.glob("step-*/manifest.json")):
            time.sleep(0.002)
        ranks = ranks_of(process.pid).values() if way and process.poll() is None else []
        process.send_signal(signal.SIGKILL)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):  # it has noticed that its launcher is gone
                os.kill(pid, signal.SIGKILL)
        process.wait()
        self.assertTrue(list(checkpoints.glob("step-*/manifest.json")), os.listdir(self.dir))
        out = self.port(name, "main", "--threads", 1, "--set", "checkpoint.every=3", *way, fresh=False)
        self.assertIn("resuming after step", out)
        self.assertEqual(self.weights(out), whole)

    def test_a_killed_port_resumes_to_the_same_weights(self):
        for name in BUILT:
            with self.subTest(port=name):
                self.killed_and_resumed(name)

    def test_a_killed_port_of_two_ranks_resumes_to_the_same_weights(self):
        for name in BUILT:
            with self.subTest(port=name):
                self.killed_and_resumed(name, "-n", "2")

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
