"""Runs the program `starling` for the tests, with real processes, real sockets and a time limit."""
import array
import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import warm_process

BUILD = pathlib.Path(os.environ.get("STARLING_BUILD", "build/release")).resolve()
STARLING = str(BUILD / "starling")
# train.gemm is fixed. A choice by measurement may differ between two runs that a test compares bit by bit.
SMALL = ["--set", "model.widths=[784,64,10]", "--model", "mlp", "--data", "digits", "--set", "data.samples=512",
         "--set", "data.test_samples=128", "--set", "train.gemm=mkl", "--set", "optimizer.lr=0.05", "--set", "schedule.name=constant",
         "--set", "schedule.warmup_share=0", "--set", "optimizer.weight_decay=0"]


def some(cases, count):
    """Returns `count` of the cases, spread evenly over their list, and all of them if STARLING_THOROUGH is 1.

    For a test that trains once for each combination of flags. `make check-deep` sets the variable.
    """
    cases = list(cases)
    if os.environ.get("STARLING_THOROUGH") == "1" or len(cases) <= count:
        return cases
    return [cases[i * len(cases) // count] for i in range(count)]


def environment(**extra):
    kept = {k: v for k, v in os.environ.items()
            if not re.match(r"(STARLING_|SLURM_|OMPI_|PMI_|PMIX_|MPI_|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|TORCHELASTIC_|OMP_|GOMP_)", k)}
    kept["GOMP_SPINCOUNT"] = "1000"  # tests run beside each other; and no program then executes itself anew
    kept.update({k: str(v) for k, v in extra.items()})
    return kept


def places_of_ranks(ranks):
    """Returns for each rank of a job what torchrun puts into the environment of its process."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    return [{"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": f"test-{port}"} for rank in range(ranks)]


# Flags of test programs: ranks are copies of the launcher, which start sooner than executed ones.
COPIES = ["--set", "launch.start=fork"]


class Started:
    """A process whose output goes to files, so that it never waits for a reader.

    It is started warm where that is possible.
    """

    def __init__(self, words, cwd, env):
        self.process = None
        self.files = [tempfile.TemporaryFile() for _ in range(2)]  # pylint: disable=consider-using-with
        if warm_process.can_start(words, env):
            with contextlib.suppress(OSError), open(os.devnull, "rb") as nothing:
                self.process = warm_process.WarmProcess(words, [f.fileno() for f in (nothing, *self.files)], cwd, env)
        if self.process is None:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.files[0], stderr=self.files[1], cwd=cwd, env=env)

    def __getattr__(self, name):
        """Returns an attribute of the process."""
        if name == "process":  # the object was never initialized
            raise AttributeError(name)
        return getattr(self.process, name)

    def communicate(self, timeout=None):
        """Waits for the process. Returns what it and the processes that it started have written."""
        self.process.wait(timeout)
        return self.written()

    def written(self):
        """Returns (stdout, stderr) so far. Each byte that is not UTF-8 becomes U+FFFD."""
        return tuple(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace") for file in self.files)

    def end(self):
        """Kills the process if it runs, and forgets what it has written.

        Raises subprocess.TimeoutExpired if the process has not ended 60 s later.
        """
        try:
            self.process.kill()
            self.process.wait(60)
        finally:
            if isinstance(self.process, warm_process.WarmProcess):
                self.process.close()
            for file in self.files:
                file.close()


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="starling-test-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def run_program(self, *args, status=0, timeout=240, env=None, program=STARLING):
        """Runs the program to its end, checks its exit status and returns (events, stderr)."""
        done = self.completed([program, *map(str, args)], timeout, env)
        self.assertEqual(done.returncode, status, f"{args}\nstdout: {done.stdout[-3000:]}\nstderr: {done.stderr[-3000:]}")
        return events_of(done.stdout), done.stderr

    def completed(self, words, timeout=240, env=None):
        """Runs a program to its end, with an empty standard input. Returns a subprocess.CompletedProcess.

        If the program runs longer than `timeout` seconds, the test fails and shows what the program has
        written. stdout and stderr are texts with the program's own line ends. Each byte that is not UTF-8
        becomes U+FFFD. The texts end with the program. Processes that the program leaves behind may still
        write, and the method does not wait for them.
        """
        process = Started(words, self.dir, env or environment())
        try:
            out, err = process.communicate(timeout)
        except subprocess.TimeoutExpired:
            out, err = process.written()
            self.fail(f"{words} did not end in {timeout} s\nstdout: {out[-3000:]}\nstderr: {err[-3000:]}")
        finally:
            process.end()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def train(self, *args, **options):
        return self.run_program("train", "--json", "--run-dir", self.path("run"), *args, **options)

    def start(self, *args, env=None, piped=False):
        """Starts the program. If `piped`, the test reads its output as it comes, and must read all of it."""
        words, options = [STARLING, *map(str, args)], {"cwd": self.dir, "env": env or environment()}
        if not piped:
            process = Started(words, **options)
            self.addCleanup(process.end)
            return process
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
            process.communicate()

    def ended(self, process, timeout=120):
        """Waits for a process, which must end by itself. Returns (seconds, stdout, stderr)."""
        begin = time.monotonic()
        out, err = process.communicate(timeout=timeout)
        return time.monotonic() - begin, out, err


def events_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def result_of(events):
    assert events and events[-1]["event"] == "result", events[-3:]
    return events[-1]


def numbers_of(path):
    """Returns the fp64 numbers of a safetensors file, in the file's order."""
    data = pathlib.Path(path).read_bytes()
    values = array.array("d")
    values.frombytes(data[8 + int.from_bytes(data[:8], "little"):])
    return values


def distance(a, b):
    """Returns |a - b| / |a| for the numbers of two fp64 safetensors files."""
    x, y = numbers_of(a), numbers_of(b)
    assert len(x) == len(y), (len(x), len(y))
    return math.dist(x, y) / math.hypot(*x)


def recorded_events(run_dir, newest=None):
    """Returns the events that the run in run_dir has recorded so far.

    If `newest` is given, only the newest `newest` bytes of the file are read.
    """
    path = os.path.join(run_dir, "events.jsonl")
    if not os.path.exists(path):
        return []
    with open(path, "rb") as f:
        first = max(0, os.fstat(f.fileno()).st_size - newest) if newest else 0
        f.seek(first)
        written = f.read()
    # The run may still write, so the last line may be incomplete, as the first one of the newest bytes is.
    begin = written.find(b"\n") + 1 if first else 0
    return events_of(written[begin:written.rfind(b"\n") + 1].decode("utf-8"))


def last_step(run_dir):
    """Returns the last step whose event is recorded, or 0."""
    return max((e["step"] for e in recorded_events(run_dir) if e.get("event") == "step"), default=0)


def wait_for_step(run_dir, step, timeout=120):
    """Waits until the run in run_dir has recorded `step`."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if any(e.get("event") == "step" and e["step"] >= step for e in recorded_events(run_dir, newest=1 << 16)):
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached in {timeout} s")


def wait_for_checkpoint(run_dir, after, timeout=120):
    """Waits for a checkpoint of a step above `after`. Returns the step of the newest checkpoint."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        steps = [int(p.name[5:]) for p in pathlib.Path(run_dir).glob("checkpoints/step-*")]
        if max(steps, default=0) > after:
            return max(steps)
        time.sleep(0.005)
    raise AssertionError(f"no checkpoint after step {after} in {timeout} s")


def ranks_of(launcher_pid):
    """Returns the process IDs of the ranks, by rank.

    A rank that was executed shows its environment, and a rank that was forked its name.
    """
    found = {}
    for child in pathlib.Path(f"/proc/{launcher_pid}/task/{launcher_pid}/children").read_text().split():
        try:
            variables = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            name = pathlib.Path(f"/proc/{child}/comm").read_bytes()
        except OSError:
            continue
        shown = re.findall(rb":(\d+)\n$", name) or [v[5:] for v in variables if v.startswith(b"RANK=")]
        found.update({int(rank): int(child) for rank in shown})
    return found


def wait_until_all_stand(test, run_dir):
    """Waits until the flight recorders show equal operations twice.

    Every rank that needs the stopped rank then waits.
    """
    before = None
    for _ in range(600):
        now, _ = test.run_program("doctor", "--recorder", run_dir, "--json")
        if now == before:
            return
        before = now
    raise AssertionError("the others go on without a stopped rank")


def main():
    """Runs the tests and exits: with status 1 after a failure, else 77 if a test was skipped, else 0.

    ctest reports 77 as skipped. A skipped test must not hide the failure of another test.
    """
    result = unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
