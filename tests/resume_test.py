"""Checkpoints: killed and resumed runs end with equal bits.

Also torn and foreign checkpoints, and SIGTERM.
"""
import glob
import os
import random
import resource
import shutil
import signal
import subprocess
import time

from program import SMALL, STARLING, ProgramTest, environment, events_of, main, result_of, wait_for_checkpoint, wait_for_step

RUN = [*SMALL, "--global-batch", "16", "--steps", "400", "--set", "checkpoint.every=10"]


class Resume(ProgramTest):
    def uninterrupted(self, *args):
        self.run_program("train", "--json", "--run-dir", self.path("whole"), "--save", self.path("whole.safetensors"), *RUN, *args)
        with open(self.path("whole.safetensors"), "rb") as f:
            return f.read()

    def resumed(self, *args):
        events, _ = self.train("--save", self.path("resumed.safetensors"), *RUN, *args)
        with open(self.path("resumed.safetensors"), "rb") as f:
            return f.read(), events

    def kill_after_checkpoint(self, after, *args):
        """Kills the run at a random time after its next checkpoint. Returns the checkpoint's step.

        Returns None if the run ended before the kill, which happens on a busy machine.
        """
        process = self.start("train", "--json", "--run-dir", self.path("run"), *RUN, *args)
        step = wait_for_checkpoint(self.path("run"), after)
        time.sleep(random.uniform(0, 0.02))
        process.kill()
        self.ended(process)
        return step if process.returncode == -signal.SIGKILL and step < 400 else None

    def killed_run(self, *args):
        """Makes a run that was killed once, or twice if the first kill was early.

        Returns the step of a checkpoint.
        """
        for _ in range(10):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            step = self.kill_after_checkpoint(0, *args)
            if step is not None and step < 60:
                step = self.kill_after_checkpoint(step, *args)
            if step is not None:
                return step
        raise AssertionError("ten runs ended before they could be killed")

    def test_killed_runs_resume_to_the_same_bits(self):
        for args in (["-n", "2"], ["-n", "2", "--optimizer", "adam", "--lr", "0.001"], []):
            whole = self.uninterrupted(*args, "--resume", "never")
            step = self.killed_run(*args)
            resumed, events = self.resumed(*args)
            self.assertEqual(resumed, whole)
            started = next(e for e in events if "first_step" in e)
            self.assertGreaterEqual(started["first_step"], step)

    def interrupted_run(self):
        """Returns the result of a run of two ranks that SIGTERM ended before the last step."""
        for _ in range(10):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            process = self.start("train", "--json", "--run-dir", self.path("run"), *RUN, "-n", "2", "--set", "checkpoint.every=0")
            wait_for_step(self.path("run"), 7)
            process.terminate()
            _, out, err = self.ended(process)
            result = result_of(events_of(out))
            if result["steps"] < 400:
                self.assertTrue(result["interrupted"], err)
                return result
        raise AssertionError("ten runs ended before SIGTERM came")

    def test_sigterm_saves_and_ends_cleanly(self):
        whole = self.uninterrupted("-n", "2")
        result = self.interrupted_run()
        self.assertTrue(os.path.exists(self.path(f"run/checkpoints/step-{result['steps']:06d}/manifest.json")), os.listdir(self.path("run")))
        resumed, _ = self.resumed("-n", "2")
        self.assertEqual(resumed, whole)

    def test_a_resumed_run_has_a_checkpoint_of_its_last_step(self):
        self.interrupted_run()
        never = ["-n", "2", "--set", "checkpoint.every=0"]
        self.train(*RUN, *never)
        self.assertTrue(os.path.exists(self.path("run/checkpoints/step-000400/manifest.json")))
        events, _ = self.train(*RUN, *never)  # the same command again repeats no step
        self.assertEqual([e for e in events if e["event"] == "step"], [])
        events, _ = self.train(*RUN, *never, "--steps", 405)
        self.assertEqual([e["step"] for e in events if e["event"] == "step"][0], 401)

    def test_a_damaged_checkpoint_is_passed_over(self):
        whole = self.uninterrupted()
        self.train(*RUN, "--steps", 60)
        newest = sorted(glob.glob(self.path("run/checkpoints/step-*")))[-1]
        with open(os.path.join(newest, "model.safetensors"), "r+b") as f:
            f.seek(-3, os.SEEK_END)
            f.write(b"\x55")
        resumed, events = self.resumed()
        self.assertEqual(resumed, whole)
        self.assertTrue(any("step-000060" in e.get("text", "") for e in events), events[:4])

    def test_another_configuration_is_refused(self):
        self.train(*RUN, "--steps", 20)
        _, err = self.train(*RUN, "--lr", 0.5, "--set", "train.seed=9", status=2)
        self.assertRegex(err, r"optimizer.lr: the value was .* and is 0.5 now. Also different: train.seed. Give the same values to go on")

    def test_another_models_weights_are_refused(self):
        self.train(*RUN, "--steps", 1, "--save", self.path("w.safetensors"))
        _, err = self.run_program("train", *SMALL, "--set", "model.widths=[784,32,10]", "--init", self.path("w.safetensors"), status=3)
        self.assertIn("fc1", err)

    def test_a_full_disk_does_not_end_training(self):
        self.train(*RUN, "--steps", 20)

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        done = subprocess.run([STARLING, "train", "--json", "--run-dir", self.path("run"), *RUN, "--steps", "40"], capture_output=True,
                              text=True, timeout=120, cwd=self.dir, env=environment(), preexec_fn=small_files)
        # The run trains to its end. The status says that the last checkpoint is missing.
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertRegex(done.stderr, "the checkpoint of step 40 was not written: .*free space")
        events = events_of(done.stdout)
        self.assertEqual([e["step"] for e in events if e["event"] == "step"][-1], 40)
        failed = [e for e in events if e["event"] == "checkpoint" and e["error"]]
        self.assertTrue(failed)
        self.assertEqual(sorted(os.path.basename(p) for p in glob.glob(self.path("run/checkpoints/step-*")))[-1], "step-000020")


if __name__ == "__main__":
    main()
