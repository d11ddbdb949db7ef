"""Starts a launcher of ranks on hosts that a command of the test reaches. Finds the processes that remain."""
import os
import pathlib
import re
import select
import subprocess
import time
import unittest

import hosts_test
from program import BUILD, ProgramTest, environment

CHILD = str(BUILD / "tests" / "launcher_child")


def variables_of_all():
    """Yields (pid, environment variables) of every process whose environment this process may read."""
    for folder in pathlib.Path("/proc").iterdir():
        try:
            text = (folder / "environ").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        yield int(folder.name) if text else 0, dict(v.split(b"=", 1) for v in text.split(b"\0") if b"=" in v)


class Launched(ProgramTest):
    """Runs launcher_child, a launcher without torch. Its `command` stands for ssh."""

    def setUp(self):
        super().setUp()
        self.env = environment(STARLING_TEST_MARK=self.dir, OMP_NUM_THREADS=1)

    def script(self, name, text):
        path = self.path(name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o700), "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n" + text)
        return path

    def launch(self, hosts, command, *mode, cwd=None, **variables):
        """Starts the ranks of `hosts`.

        After a fault the launcher kills the remaining ranks after half a second.
        """
        ranks = sum(int(slots or 1) for slots in re.findall(r"[^,:]+(?::(\d+))?", hosts))
        process = subprocess.Popen([CHILD, str(ranks), self.path("run"), *mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, cwd=cwd or self.dir,
                                   env={**self.env, "LAUNCH_HOSTS": hosts, "LAUNCH_COMMAND": command, "KILL_AFTER_MS": "500", **variables})
        self.addCleanup(self.end, process)
        return process

    def begun(self, hosts, command, *mode, **variables):
        """Starts the ranks of `hosts` like launch() and waits until all of them are ready."""
        process = self.launch(hosts, command, *mode, **variables)
        ranks = int(process.args[1])
        end = time.monotonic() + 30
        while not all("ready" in self.log(r) for r in range(ranks)):
            self.assertLess(time.monotonic(), end, [self.log(r) for r in range(ranks)])
            self.assertIsNone(process.poll(), process.poll() is not None and process.communicate())
            time.sleep(0.02)
        return process

    def wait_until_said(self, process, text):
        """Waits until the launcher, or rank 0 through it, prints `text` on stderr.

        Consumes stderr up to that point.
        """
        said, end = b"", time.monotonic() + 30
        while text.encode() not in said:
            ready, _, _ = select.select([process.stderr], [], [], max(0, end - time.monotonic()))
            self.assertTrue(ready, said)
            said += os.read(process.stderr.fileno(), 4096)

    def log(self, rank):
        path = pathlib.Path(self.path(f"run/log/rank-{rank}.log"))
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def ends(self, process, status, pattern, timeout=30):
        """Expects that the process ends by itself with `status` and one message.

        Returns its standard output.
        """
        _, out, err = self.ended(process, timeout=timeout)
        self.assertEqual(process.returncode, status, err)
        self.assertRegex(err, pattern)
        self.assertLessEqual(err.count("error: "), 1, err)
        self.assert_nobody_left()
        return out

    def family(self):
        """Returns {pid: environment} of the processes that this test has started, without zombies."""
        return {pid: v for pid, v in variables_of_all() if v.get(b"STARLING_TEST_MARK") == self.dir.encode()}

    def pid_of(self, rank):
        pids = [p for p, v in self.family().items() if v.get(b"RANK") == str(rank).encode() and b"STARLING_KEY_FD" in v]
        self.assertEqual(len(pids), 1)
        return pids[0]

    def agents(self):
        return [p for p in self.family() if self.words_of(p)[1:2] == ["--starling-host-agent"]]

    def assert_nobody_left(self):
        end = time.monotonic() + 20
        while self.family() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(self.family(), {})

    @staticmethod
    def words_of(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
        except OSError:
            return [""]


@unittest.skipIf(hosts_test.REASON, hosts_test.REASON)
class LaunchedOnHosts(Launched):
    """Runs launcher_child on two hosts.

    `hosts` has their network namespaces, which all tests of a class share.
    """

    @classmethod
    def setUpClass(cls):
        cls.hosts = hosts_test.Hosts()
        cls.addClassCleanup(cls.hosts.close)
