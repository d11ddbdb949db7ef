"""A disk that does not answer costs checkpoints and no rank.

Training goes on, and says which checkpoints were skipped.
"""
import os
import pathlib
import re
import signal
import subprocess
import time

from program import BUILD, SMALL, STARLING, ProgramTest, environment, last_step, main, ranks_of, recorded_events, wait_for_step

FIT_PROGRAM = str(BUILD / "tests" / "fit_program")
LOOP_PROGRAM = str(BUILD / "tests" / "loop_program")
LIBRARY = BUILD / "tests" / "libstalled_disk.so"


class StalledDisk(ProgramTest):
    def setUp(self):
        super().setUp()
        self.stalled = pathlib.Path(self.path("stalled"))

    def start(self, path, *more):
        """Starts a run whose disk stalls for files of this path while the file self.stalled exists."""
        return self.start_program([STARLING, "train", *SMALL, "-n", "2", "--global-batch", "16", "--steps", "100000000", "--set",
                                   "comm.timeout_s=8", "--run-dir", self.path("run"), *more], path)

    def start_program(self, words, path):
        env = environment(LD_PRELOAD=str(LIBRARY), STALLED_DISK_WHILE=str(self.stalled), STALLED_DISK_PATH=path)
        process = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.dir,
                                   env=env)
        self.addCleanup(self.end, process)
        return process

    def lives_for(self, process, seconds):
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            self.assertIsNone(process.poll(), "the run has ended")
            time.sleep(0.1)

    # The ranks wait for each other for 8 s at most, and each stall lasts longer.
    def test_training_goes_on_while_a_checkpoint_stalls(self):
        self.stalled.touch()
        process = self.start("/checkpoints", "--set", "checkpoint.every=50")
        wait_for_step(self.path("run"), 60)
        step = last_step(self.path("run"))
        self.lives_for(process, 12)
        wait_for_step(self.path("run"), step + 51)
        self.assertFalse(self.checkpoints())
        self.stalled.unlink()
        end = time.monotonic() + 60
        while not self.checkpoints():
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        process.terminate()
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, err)
        skipped = [e["text"] for e in recorded_events(self.path("run")) if "is skipped, because" in e.get("text", "")]
        self.assertTrue(skipped, out)
        self.assertRegex(skipped[0], r"the checkpoint of step \d+ is skipped, because that of step 50 is still being written")
        self.assertIn("Interrupted. The state is saved", out)

    def test_training_goes_on_while_the_file_of_events_stalls(self):
        process = self.start("/events.jsonl")
        wait_for_step(self.path("run"), 10)
        self.stalled.touch()
        step, quiet, end = last_step(self.path("run")), 0, time.monotonic() + 60
        while quiet < 20:  # what was being written is written
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
            now = last_step(self.path("run"))
            step, quiet = now, quiet + 1 if now == step else 0
        self.lives_for(process, 12)
        self.assertEqual(last_step(self.path("run")), step)
        self.stalled.unlink()
        end = time.monotonic() + 60
        while last_step(self.path("run")) <= step + 50:
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        process.terminate()
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, err)

    # The workers of servers wait for the leader's files, however long they take.
    def test_workers_wait_for_the_files_of_their_leader(self):
        self.stalled.touch()
        process = self.start("/checkpoints", "--steps", 300, "--set", "checkpoint.every=300", "--exchange", "parameter-server", "--servers",
                             1, "--staleness", 2)
        wait_for_step(self.path("run"), 300)
        self.lives_for(process, 12)
        self.stalled.unlink()
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(self.checkpoints(), ["step-000300"])

    # The other ranks have ended, so that none continues in place of the leader.
    def test_a_leader_that_dies_over_the_last_checkpoint_is_an_error(self):
        self.stalled.touch()
        process = self.start("/checkpoints", "--steps", 300, "--set", "checkpoint.every=300", "--on-failure", "continue")
        wait_for_step(self.path("run"), 10)
        ranks = ranks_of(process.pid)
        end = time.monotonic() + 60
        while os.path.exists(f"/proc/{ranks[1]}"):  # until the launcher has seen the end
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        os.kill(ranks[0], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0, err)
        self.assertIn("rank 0", err)

    # The checkpoint of step 8 was due, and skipped, before the callback ended the run.
    def test_a_run_that_its_callback_ends_has_its_last_checkpoint(self):
        self.stalled.touch()
        process = self.start_program([FIT_PROGRAM, "-n", 2, "--global-batch", 64, "--epochs", 9, "--set", "checkpoint.every=4", "--run-dir",
                                      self.path("run"), "--", "--stop-after", 1], "/checkpoints")
        end = time.monotonic() + 60
        while not any("is skipped" in e.get("text", "") for e in recorded_events(self.path("run"))):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        self.stalled.unlink()
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(self.checkpoints(), ["step-000004", "step-000008"])

    # Every rank gets the trained model, so that the ranks share collectives after the files are written. The
    # ranks wait for each other for 4 s at most.
    def test_ranks_that_get_the_trained_model_wait_for_its_file(self):
        self.stalled.touch()
        process = self.start_program([FIT_PROGRAM, "-n", 2, "--global-batch", 64, "--epochs", 2, "--set", "comm.timeout_s=4", "--run-dir",
                                      self.path("run"), "--", "--trained", self.path("trained")], "/model.safetensors")
        self.wait_for_file(process, "run/model.safetensors.*.tmp")
        self.lives_for(process, 7)
        self.stalled.unlink()
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        for name in ("run/model.safetensors", "trained.0", "trained.1"):
            self.assertTrue(os.path.exists(self.path(name)), name)

    def test_an_interrupted_loop_of_a_program_waits_for_its_checkpoint(self):
        process = self.start_program([LOOP_PROGRAM, "-n", 2, "--set", "comm.timeout_s=4", "--run-dir", self.path("run"), "--",
                                      "--checkpoint", "--epochs", 200000], "/checkpoints")
        self.wait_for_file(process, "run/config.toml")
        self.stalled.touch()
        process.terminate()
        self.wait_for_file(process, "run/checkpoints/.writing-step-*")
        self.lives_for(process, 7)
        self.stalled.unlink()
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, err)
        self.assertEqual(len(self.checkpoints()), 1, err)

    # Rank 0 waits up to 10 s for its files of events. The ranks wait for each other for 4 s at most.
    def test_an_interrupted_run_waits_for_the_file_of_events(self):
        process = self.start("/events.jsonl", "--set", "comm.timeout_s=4")
        wait_for_step(self.path("run"), 10)
        self.ends_after_a_stall(process, 18)
        self.assertEqual(self.completed([STARLING, "ckpt", "verify", self.path("run")]).returncode, 0)

    def test_an_interrupted_loop_of_a_program_waits_for_the_file_of_events(self):
        process = self.start_program([LOOP_PROGRAM, "-n", 2, "--set", "comm.timeout_s=4", "--run-dir", self.path("run"), "--",
                                      "--checkpoint", "--epochs", 200000], "/events.jsonl")
        self.wait_for_file(process, "run/config.toml")
        self.ends_after_a_stall(process, 7)

    # Ranks of a program may share collectives after fit().
    def test_ranks_that_go_on_together_wait_for_the_file_of_the_result(self):
        self.stalled.touch()
        process = self.start_program([FIT_PROGRAM, "-n", 2, "--global-batch", 64, "--epochs", 2, "--set", "comm.timeout_s=4", "--run-dir",
                                      self.path("run"), "--", "--sum"], "/result.json")
        self.wait_for_file(process, "run/result.json.*.tmp")
        self.lives_for(process, 7)
        self.stalled.unlink()
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("sum 3", out)

    def ends_after_a_stall(self, process, seconds):
        """Interrupts a run while its disk stalls for so many seconds.

        The run must end as if the disk had not stalled.
        """
        self.stalled.touch()
        process.terminate()
        self.lives_for(process, seconds)
        self.stalled.unlink()
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, err)
        self.assertNotIn("did not", err)

    # A program may share collectives with all ranks after save().
    def test_ranks_wait_for_the_files_that_save_writes(self):
        self.stalled.touch()
        process = self.start_program([LOOP_PROGRAM, "-n", 2, "--set", "comm.timeout_s=4", "--run-dir", self.path("run"), "--",
                                      "--checkpoint", "--epochs", 2, "--save-at", 2], "/checkpoints")
        self.wait_for_file(process, "run/checkpoints/.writing-step-*")
        self.lives_for(process, 7)
        self.stalled.unlink()
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("step-000002", self.checkpoints(), err)

    def wait_for_file(self, process, pattern):
        """Waits until a file of this name is there, while the process runs."""
        end = time.monotonic() + 60
        while not list(pathlib.Path(self.dir).glob(pattern)):
            self.assertIsNone(process.poll(), "the run has ended")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def checkpoints(self):
        folder = pathlib.Path(self.path("run/checkpoints"))
        return [f for f in (sorted(os.listdir(folder)) if folder.exists() else []) if re.fullmatch(r"step-\d+", f)]


if __name__ == "__main__":
    main()
