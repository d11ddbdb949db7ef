"""A launcher with a command that stands for ssh, and who is left of it."""
import os
import pathlib
import time

from program import SMALL, ProgramTest, environment


def variables_of_all():
    """(pid, {name: value}) of every process that we may look into."""
    for folder in pathlib.Path("/proc").iterdir():
        try:
            text = (folder / "environ").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        yield int(folder.name) if text else 0, dict(v.split(b"=", 1) for v in text.split(b"\0") if b"=" in v)


class Launched(ProgramTest):
    """The program with a command of the test's own that stands for ssh."""

    def setUp(self):
        super().setUp()
        self.env = environment(STARLING_TEST_MARK=self.dir, OMP_NUM_THREADS=1)

    def script(self, name, text):
        path = self.path(name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o700), "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n" + text)
        return path

    def here(self):
        """Reaches any host: this one. A login shell that greets, in a folder of its own."""
        return self.script("here", 'echo "Welcome to $1"\ncd /\nexec sh -c "$2"\n')

    def words(self, hosts, command, *more):
        return ["train", "--json", "--run-dir", self.path("run"), "--resume", "never", *map(str, SMALL), "--precision", "fp64",
                "--global-batch", "24", *(["--hosts", hosts] if hosts else []), "--launch-command", command, *map(str, more)]

    def family(self):
        """{pid: environment} of the processes that came of this test, zombies aside."""
        return {pid: v for pid, v in variables_of_all() if v.get(b"STARLING_TEST_MARK") == self.dir.encode()}

    def pid_of(self, rank):
        pids = [p for p, v in self.family().items() if v.get(b"RANK") == str(rank).encode() and b"STARLING_KEY_FD" in v]
        self.assertEqual(len(pids), 1)
        return pids[0]

    def assert_nobody_left(self):
        end = time.monotonic() + 20
        while self.family() and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.family(), {})

    def refused(self, status, pattern, *words):
        _, err = self.run_program(*words, status=status, env=self.env, timeout=60)
        self.assertRegex(err, pattern)
        self.assertFalse(os.path.exists(self.path("run/events.jsonl")))
        self.assert_nobody_left()

    @staticmethod
    def words_of(pid):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
