"""A terminal that is stopped with Ctrl-S, or a pager that does not read, pauses what a run shows.

The run itself goes on.
"""
import fcntl
import json
import os
import pty
import subprocess
import termios
import time

from program import SMALL, STARLING, ProgramTest, environment, last_step, main, ranks_of, wait_for_step


class PausedReader(ProgramTest):
    def start(self, output, *more):
        words = [STARLING, "train", *SMALL, "-n", "2", "--global-batch", "16", "--steps", "100000000", "--set", "comm.timeout_s=8", "--run-dir",
                 self.path("run"), *more]
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=self.dir,
                                   env=environment(TERM="xterm"))
        self.addCleanup(self.end, process)
        return process

    # The ranks wait for each other for 8 s at most.
    def goes_on(self, process):
        end = time.monotonic() + 12
        while time.monotonic() < end:
            self.assertIsNone(process.poll(), "the run has ended")
            time.sleep(0.1)
        wait_for_step(self.path("run"), last_step(self.path("run")) + 100)

    def test_a_pipe_that_nobody_reads(self):
        process = self.start(subprocess.PIPE, "--json")
        fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        wait_for_step(self.path("run"), 200)  # more lines than the pipe can hold
        self.goes_on(process)
        process.terminate()
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, err)
        events = [json.loads(line) for line in out.splitlines()]
        steps = [e["step"] for e in events if e["event"] == "step"]
        self.assertGreaterEqual(steps[-1], 300)
        known = steps[:60_000]  # those that wait in memory
        self.assertEqual(known, list(range(1, len(known) + 1)))
        self.assertEqual(events[-1]["event"], "result")

    # The reader begins to read after the run has asked for its last checkpoint and the other rank has ended.
    def test_a_run_ends_in_order_while_nobody_reads(self):
        process = self.start(subprocess.PIPE, "--json")
        fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        wait_for_step(self.path("run"), 200)
        rank = ranks_of(process.pid)[1]
        process.terminate()
        end = time.monotonic() + 60
        while os.path.exists(f"/proc/{rank}"):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, err)
        self.assertEqual(json.loads(out.splitlines()[-1])["event"], "result")

    def test_a_stopped_terminal(self):
        leader, follower = pty.openpty()
        self.addCleanup(os.close, leader)
        process = self.start(follower)
        shown = os.read(leader, 65536)
        termios.tcflow(follower, termios.TCOOFF)
        self.goes_on(process)
        termios.tcflow(follower, termios.TCOON)
        os.close(follower)
        process.terminate()
        try:
            while True:
                shown += os.read(leader, 65536)
        except OSError:  # the other side is closed
            pass
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, err)
        self.assertIn("Interrupted. The state is saved", shown.decode())


if __name__ == "__main__":
    main()
