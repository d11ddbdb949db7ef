"""A disk that fills up ends no process by a signal, costs no whole checkpoint, and is named with a remedy.

Each test has a small file system of its own, in a mount namespace of its own: a tmpfs of limited size and, if
the machine allows loop devices, an ext4 image.
"""
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from program import SMALL, ProgramTest, events_of, main, ranks_of, recorded_events, wait_for_step

SIZE = 24 << 20
RUN = [*SMALL, "-n", 2, "--global-batch", 16]
STEPS = 1200  # more than a run makes until a test has filled its disk
KEEP = 400 << 10  # more than the stores of events need, less than the recorders of two ranks


def own_mounts():
    """Gives this process a mount namespace of its own. Returns why that is impossible, or an empty string."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_ns, new_user = 0x00020000, 0x10000000
    if os.geteuid() != 0:
        uid, gid = os.geteuid(), os.getegid()
        if libc.unshare(new_ns | new_user) != 0:
            return os.strerror(ctypes.get_errno())
        pathlib.Path("/proc/self/setgroups").write_text("deny")
        pathlib.Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        pathlib.Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    elif libc.unshare(new_ns) != 0:
        return os.strerror(ctypes.get_errno())
    private = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, text=True)
    return private.stderr.strip()


def fill(folder, keep=0):
    """Writes a file until the file system has no block left, and then gives back `keep` bytes."""
    path = os.path.join(folder, "filler")
    with open(path, "ab", buffering=0) as f:
        size = 1 << 20
        while size > 0:
            try:
                f.write(b"x" * size)
                os.fsync(f.fileno())
            except OSError:
                size //= 2
    if keep:
        os.truncate(path, max(0, os.path.getsize(path) - keep))
    return path


class FullDisk:
    def setUp(self):
        super().setUp()
        self.disk = tempfile.mkdtemp(prefix="starling-disk-")
        self.addCleanup(shutil.rmtree, self.disk, ignore_errors=True)
        self.mount()
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk])
        self.folder = os.path.join(self.disk, "run")

    def train_on_disk(self, *args):
        return self.start("train", "--json", "--run-dir", self.folder, *RUN, *args, piped=True)

    def check_end(self, process, status):
        """Waits for the end of a run. No process may have ended by a signal. Returns (events, stderr).

        status: the expected status, or several that are possible.
        """
        _, out, err = self.ended(process, timeout=400)
        self.assertNotRegex(err, r"killed by|signal \d|SIGBUS|Bus error|core dumped", err)
        self.assertIn(process.returncode, status if isinstance(status, tuple) else (status,), f"stdout: {out[-2000:]}\nstderr: {err[-3000:]}")
        return events_of(out), err

    def fill_during(self, process, step, keep=0):
        """Fills the disk while the ranks stand still, after `step` and while no checkpoint is being written.

        A checkpoint that fails gives back the blocks that it has, which would leave room for the next.
        """
        wait_for_step(self.folder, step)
        ranks = ranks_of(process.pid).values()
        while True:
            for pid in ranks:
                os.kill(pid, signal.SIGSTOP)
            quiet = not list(pathlib.Path(self.folder).glob("checkpoints/.*"))
            if quiet:
                fill(self.disk, keep)
            for pid in ranks:
                os.kill(pid, signal.SIGCONT)
            if quiet:
                return
            time.sleep(0.01)

    def whole_checkpoints(self):
        return sorted(int(p.parent.name[5:]) for p in pathlib.Path(self.folder).glob("checkpoints/step-*/manifest.json"))

    def test_at_the_start_without_any_room_the_run_ends_at_once(self):
        os.mkdir(self.folder)
        fill(self.disk)
        _, err = self.check_end(self.train_on_disk("--steps", 5), 5)
        self.assertEqual(len(re.findall("error: ", err)), 1, err)
        self.assertIn(self.folder, err)
        self.assertRegex(err, r"full|No space left")
        self.assertIn("--run-dir", err)

    def test_at_the_start_without_room_for_the_recorder_the_run_goes_on_without_it(self):
        os.mkdir(self.folder)
        fill(self.disk, KEEP)
        # One recorder fits, and then the weights do not. If both ranks allocate theirs at once, neither
        # fits, and the weights do.
        events, err = self.check_end(self.train_on_disk("--steps", 5), (0, 5))
        self.assertEqual(next(e for e in events if e["event"] == "result")["steps"], 5)
        # The launcher prints a line of several ranks once, and its late repetitions at the end.
        warnings = [line for line in err.splitlines() if "recorder" in line and "(repeated " not in line]
        self.assertIn(len(warnings), (1, 2), err)
        for warning in warnings:
            self.assertIn(os.path.join(self.folder, "recorder"), warning)
            self.assertIn("No space left", warning)
            self.assertIn("free", warning)

    def test_during_training_the_run_goes_on_and_says_what_is_missing(self):
        process = self.train_on_disk("--steps", STEPS)
        self.fill_during(process, 5)
        events, err = self.check_end(process, 5)  # the trained weights are missing
        self.assertEqual(len(re.findall("error: ", err)), 1, err)
        self.assertRegex(err, re.escape(os.path.join(self.folder, "model.safetensors")) + r".*No space left")
        self.assertEqual(next(e for e in events if e["event"] == "result")["steps"], STEPS)
        self.assertEqual([e["step"] for e in events if e["event"] == "step"], list(range(1, STEPS + 1)))
        for name in ("events.jsonl", "run.sqlite"):
            told = [line for line in err.splitlines() if os.path.join(self.folder, name) in line]
            self.assertEqual(len(told), 1, err)
            self.assertIn("--run-dir", told[0])
        self.assertLess(recorded_events(self.folder)[-1]["step"], STEPS)

    def test_at_a_checkpoint_the_last_whole_one_stays_and_the_status_tells(self):
        every = ["--set", "checkpoint.every=20", "--steps", STEPS]
        process = self.train_on_disk(*every)
        while not self.whole_checkpoints():
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        self.fill_during(process, 25)
        kept = self.whole_checkpoints()
        events, err = self.check_end(process, 5)
        failed = [e for e in events if e["event"] == "checkpoint" and e.get("error")]
        self.assertTrue(failed, events[-3:])
        self.assertIn(self.folder, failed[-1]["error"])
        self.assertIn("No space left", failed[-1]["error"])
        self.assertEqual(len(re.findall("error: ", err)), 1, err)
        self.assertRegex(err, r"error: .*checkpoint.*step %d.*No space left" % STEPS)
        self.assertRegex(err, r"free space")
        self.assertTrue(set(kept[-1:]) <= set(self.whole_checkpoints()), (kept, self.whole_checkpoints()))
        last = self.whole_checkpoints()[-1]
        self.assertLess(last, STEPS)

        # With room again, the run goes on from the checkpoint that was kept.
        os.remove(os.path.join(self.disk, "filler"))
        events, err = self.check_end(self.train_on_disk(*every, "--resume", "auto"), 0)
        steps = [e["step"] for e in events if e["event"] == "step"]
        self.assertEqual(steps, list(range(last + 1, STEPS + 1)))
        self.assertEqual(self.whole_checkpoints()[-1], STEPS)

    def test_a_checkpoint_that_is_written_later_makes_up_for_one_that_was_not(self):
        process = self.train_on_disk("--set", "checkpoint.every=20", "--steps", STEPS)
        self.fill_during(process, 5)
        while not any(e["event"] == "checkpoint" and e.get("error") for e in self.output_so_far(process)):
            self.assertIsNone(process.poll())
        os.remove(os.path.join(self.disk, "filler"))
        out, err = self.rest_of(process)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(self.whole_checkpoints()[-1], STEPS)

    def output_so_far(self, process):
        """Returns the events of one more line of the process's output, which the test keeps reading."""
        return events_of(process.stdout.readline())

    def rest_of(self, process):
        out, err = process.communicate(timeout=400)
        return out, err

    def lose_the_leader(self, process, step):
        """Fills the disk after `step` and then kills the rank that holds the lock of the run folder."""
        self.fill_during(process, step)
        os.kill(ranks_of(process.pid)[0], signal.SIGKILL)

    def test_ranks_whose_leader_is_lost_go_on_and_write_when_there_is_room(self):
        process = self.train_on_disk("-n", 3, "--global-batch", 24, "--on-failure", "continue", "--steps", STEPS,
                                     "--set", "checkpoint.every=20")
        self.lose_the_leader(process, 5)
        while not any(e["event"] == "checkpoint" and "cannot write the lock" in (e.get("error") or "")
                      for e in self.output_so_far(process)):
            self.assertIsNone(process.poll())
        os.remove(os.path.join(self.disk, "filler"))
        out, err = self.rest_of(process)
        self.assertEqual(process.returncode, 0, err)
        warnings = [line for line in err.splitlines() if "cannot write the lock" in line]
        self.assertEqual(len(warnings), 1, err)
        self.assertRegex(warnings[0], r"warning: .*No space left.*free space.*Training continues")
        self.assertEqual(next(e for e in events_of(out) if e["event"] == "result")["steps"], STEPS)
        self.assertEqual(self.whole_checkpoints()[-1], STEPS)
        # The launcher had the lock first, then rank 0.
        self.assertEqual(os.listdir(os.path.join(self.folder, "lock")), ["epoch-000003"])
        self.assertTrue(os.path.exists(os.path.join(self.folder, "model.safetensors")))

    def test_ranks_whose_leader_is_lost_end_with_the_result_without_room(self):
        saved = self.path("weights.safetensors")  # on a disk with room
        process = self.train_on_disk("-n", 3, "--global-batch", 24, "--on-failure", "continue", "--steps", STEPS, "--save", saved)
        self.lose_the_leader(process, 5)
        events, err = self.check_end_after_loss(process)
        self.assertTrue(os.path.exists(saved))
        self.assertIn(f"the trained weights were written to {saved}", [e.get("text") for e in events])
        self.assertEqual(next(e for e in events if e["event"] == "result")["steps"], STEPS)
        errors = [line for line in err.splitlines() if "error: " in line]
        self.assertEqual(len(errors), 1, err)
        self.assertRegex(errors[0], r"cannot write the lock of the folder: No space left.*free space")

    def test_ranks_whose_leader_is_lost_leave_the_folder_to_a_run_that_has_used_it_meanwhile(self):
        saved = os.path.join(self.disk, "weights.safetensors")
        process = self.train_on_disk("-n", 3, "--global-batch", 24, "--on-failure", "continue", "--steps", 1_000_000,
                                     "--set", "checkpoint.every=20", "--set", "comm.timeout_s=300", "--save", saved)
        self.lose_the_leader(process, 5)
        while not any(e["event"] == "checkpoint" and "cannot write the lock" in (e.get("error") or "")
                      for e in self.output_so_far(process)):
            self.assertIsNone(process.poll())
        survivors = [pid for rank, pid in ranks_of(process.pid).items() if rank > 0]
        for pid in survivors:
            os.kill(pid, signal.SIGSTOP)
        os.remove(os.path.join(self.disk, "filler"))
        self.run_program("train", "--json", "--run-dir", self.folder, *SMALL, "--steps", 10, "--resume", "never", "--save", saved)
        other = {path: path.read_bytes() for path in (pathlib.Path(self.folder, "model.safetensors"),
                                                      pathlib.Path(self.folder, "result.json"), pathlib.Path(saved))}
        for pid in survivors:
            os.kill(pid, signal.SIGCONT)
        out, err = self.rest_of(process)
        self.assertEqual(process.returncode, 5, err)
        self.assertRegex(err, "has used .* for another run since this run began")
        for path, content in other.items():
            self.assertEqual(path.read_bytes(), content, path)
        self.assertEqual(self.whole_checkpoints(), [])  # the other run writes none
        # What this run has trained is not lost, and has a name of its own.
        own = [name for name in os.listdir(self.disk) if re.fullmatch(r"weights\.[0-9a-f]{8}\.safetensors", name)]
        self.assertEqual(len(own), 1)
        self.assertRegex(out, f"the trained weights were written to .*{own[0]}")

    def test_ranks_that_find_another_run_when_their_leader_is_lost_keep_their_weights(self):
        saved = self.path("weights.safetensors")
        process = self.train_on_disk("-n", 3, "--global-batch", 24, "--on-failure", "continue", "--steps", 1_000_000,
                                     "--set", "comm.timeout_s=300", "--save", saved)
        wait_for_step(self.folder, 5)
        ranks = ranks_of(process.pid)
        survivors = [pid for rank, pid in ranks.items() if rank > 0]
        for pid in survivors:
            os.kill(pid, signal.SIGSTOP)
        os.kill(ranks[0], signal.SIGKILL)
        self.run_program("train", "--json", "--run-dir", self.folder, *SMALL, "--steps", 10, "--resume", "never", "--save", saved)
        other = {path: path.read_bytes() for path in (pathlib.Path(self.folder, "model.safetensors"), pathlib.Path(saved))}
        for pid in survivors:
            os.kill(pid, signal.SIGCONT)
        out, err = self.rest_of(process)
        self.assertEqual(process.returncode, 5, err)
        self.assertRegex(err, "has used .* for another run since this run began")
        self.assertRegex(out, r"the trained weights were written to .*weights\.[0-9a-f]{8}\.safetensors")
        for path, content in other.items():
            self.assertEqual(path.read_bytes(), content, path)

    def check_end_after_loss(self, process):
        _, out, err = self.ended(process, timeout=400)
        self.assertEqual(process.returncode, 5, err)  # the trained weights are missing
        self.assertNotRegex(err, r"SIGBUS|Bus error|core dumped", err)
        return events_of(out), err

    def test_at_save_the_older_file_stays(self):
        saved = os.path.join(self.disk, "weights.safetensors")
        pathlib.Path(saved).write_bytes(b"older")
        process = self.train_on_disk("--steps", STEPS, "--save", saved)
        self.fill_during(process, 5)
        _, err = self.check_end(process, 5)
        self.assertEqual(len(re.findall("error: ", err)), 1, err)
        self.assertRegex(err, re.escape(saved) + r".*No space left.*free space or give another folder")
        self.assertEqual(pathlib.Path(saved).read_bytes(), b"older")
        self.assertEqual([p for p in os.listdir(self.disk) if p.endswith(".tmp")], [])

    def test_a_pipeline_without_room_for_its_timeline_ends_with_its_result(self):
        process = self.train_on_disk("--steps", STEPS, "--mesh", "stage=2")
        self.fill_during(process, 5)
        events, err = self.check_end(process, 5)  # the trained weights are missing
        self.assertEqual(next(e for e in events if e["event"] == "result")["steps"], STEPS)
        self.assertEqual(len(re.findall("error: ", err)), 1, err)
        self.assertRegex(err, re.escape(os.path.join(self.folder, "model.safetensors")) + r".*No space left")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "timeline.json")))


class Tmpfs(FullDisk, ProgramTest):
    def mount(self):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "starling-test", self.disk], check=True)


class Ext4(FullDisk, ProgramTest):
    def mount(self):
        image = self.path("disk.img")
        with open(image, "wb") as f:
            f.truncate(SIZE)
        for command in (["mkfs.ext4", "-q", "-m", "0", image], ["mount", "-o", "loop", image, self.disk]):
            try:
                done = subprocess.run(command, capture_output=True, text=True)
            except FileNotFoundError:
                self.skipTest("loop mounts of ext4 are not permitted here: mkfs.ext4 is not installed")
            if done.returncode != 0:
                self.skipTest(f"loop mounts of ext4 are not permitted here: {done.stderr.strip()}")


def load_tests(loader, standard, pattern):
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in (Tmpfs, Ext4))


if __name__ == "__main__":
    reason = own_mounts()
    if reason:
        print(f"full_disk_test: skipped: mount namespaces are not permitted here: {reason}")
        sys.exit(77)
    main()
