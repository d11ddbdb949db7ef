"""The run folder.

The tests cover damaged and foreign checkpoints, checkpoints of older formats, two runs in one folder, and
files of earlier runs.
"""
import contextlib
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import time

from program import SMALL, ProgramTest, main, ranks_of, recorded_events, result_of, wait_for_checkpoint, wait_for_step

RUN = [*SMALL, "--global-batch", "16", "--set", "checkpoint.every=10"]
FORMATS = pathlib.Path(__file__).resolve().parent / "checkpoints"


def flip(folder, name="model.safetensors"):
    """Changes one bit of a file in place. The size stays."""
    with open(os.path.join(folder, name), "r+b") as f:
        f.seek(-3, os.SEEK_END)
        byte = f.read(1)[0]
        f.seek(-3, os.SEEK_END)
        f.write(bytes([byte ^ 1]))


def texts(events):
    return " ".join(e.get("text", "") for e in events)


class RunFolder(ProgramTest):
    def folders(self, run="run"):
        return sorted(p.name for p in pathlib.Path(self.path(run), "checkpoints").iterdir())

    def folder(self, step, run="run"):
        return self.path(f"{run}/checkpoints/step-{step:06d}")

    def first_run(self, run="run"):
        """Makes a run of 60 steps. Returns the steps of its two checkpoints.

        The last step always has a checkpoint. The one before it may have been skipped, if the disk was slow.
        """
        self.run_program("train", "--json", "--run-dir", self.path(run), *RUN, "--steps", 60)
        steps = [int(name[5:]) for name in self.folders(run)]
        self.assertEqual((len(steps), steps[-1]), (2, 60))
        return steps

    def test_only_damaged_checkpoints_are_an_error(self):
        self.first_run()
        before = self.folders()
        for name in before:
            flip(self.path(f"run/checkpoints/{name}"))
        for _ in range(2):  # the second attempt must not begin at 0 either
            _, err = self.train(*RUN, "--steps", 5, "--set", "checkpoint.every=1", status=5)
            self.assertIn(before[0], err)
            self.assertIn(before[1], err)
            self.assertIn("--resume never", err)
            self.assertEqual(self.folders(), before)
        events, _ = self.train(*RUN, "--steps", 20, "--resume", "never")
        self.assertEqual(result_of(events)["steps"], 20)
        self.assertEqual(self.folders(), ["step-000010", "step-000020"])
        self.assertTrue(os.path.exists(self.path("run/checkpoints.1/step-000060/manifest.json")))

    def test_checkpoints_that_cannot_be_read_are_not_called_damaged(self):
        self.first_run()
        before = self.folders()
        for name in before:
            manifest = self.path(f"run/checkpoints/{name}/manifest.json")
            os.rename(manifest, manifest + ".kept")
            os.mkdir(manifest)  # read(2) fails, as on a disk with an error
        _, err = self.train(*RUN, "--steps", 5, status=5)
        self.assertIn("Start again when the files can be read", err)
        for word in ("damaged", "never", "unchanged"):
            self.assertNotIn(word, err)
        self.assertEqual(self.folders(), before)
        for command in ("ls", "verify"):
            events, _ = self.run_program("ckpt", command, self.path("run"), "--json", status=0 if command == "ls" else 5)
            problems = [e["problem"] for e in events if e["event"] == "checkpoint"]
            self.assertEqual(len(problems), 2)
            for problem in problems:
                self.assertIn("cannot be read now: Is a directory", problem)
                self.assertNotIn("damaged", problem)
        _, err = self.run_program("ckpt", "export", self.path("run"), self.path("x.pt"), status=5)
        self.assertIn("cannot be read now", err)
        manifest = self.path(f"run/checkpoints/{before[0]}/manifest.json")
        os.rename(manifest, manifest + ".folder")
        os.rename(manifest + ".kept", manifest)
        _, err = self.run_program("ckpt", "export", self.path("run"), self.path("x.pt"))
        self.assertRegex(err, f"warning: .*step-000060.*cannot be read now.*taking the checkpoint of step {int(before[0][5:])}")
        # Evaluation takes model.safetensors, which has all 60 updates.
        _, err = self.run_program("eval", self.path("run"), "--json")
        self.assertNotIn("taking", err)
        os.rename(self.path("run/checkpoints/step-000060"), self.path("run/checkpoints/step-000070"))
        _, err = self.run_program("eval", self.path("run"), "--json")
        self.assertRegex(err, "warning: .*step-000070.*cannot be read now.*taking model.safetensors of step 60")
        os.rename(self.path("run/checkpoints/step-000070"), self.path("run/checkpoints/step-000060"))
        os.rename(manifest, manifest + ".kept")
        os.rename(manifest + ".folder", manifest)
        for name in before:
            manifest = self.path(f"run/checkpoints/{name}/manifest.json")
            os.rmdir(manifest)
            os.rename(manifest + ".kept", manifest)
        events, _ = self.train(*RUN, "--steps", 62)
        self.assertEqual(next(e for e in events if "first_step" in e)["first_step"], 60)

    def test_a_run_below_a_damaged_checkpoint_keeps_its_own(self):
        whole, _ = self.first_run()
        flip(self.folder(60))
        events, _ = self.train(*RUN, "--steps", whole + 4, "--set", "checkpoint.every=2")
        self.assertEqual(result_of(events)["steps"], whole + 4)
        left = self.folders()
        self.assertEqual(len(left), 3)
        self.assertEqual((left[0], left[2]), ("damaged-step-000060", f"step-{whole + 4:06d}"))
        self.assertRegex(texts(events), "step-000060.*damaged-step-000060")
        events, _ = self.train(*RUN, "--steps", whole + 6)
        self.assertEqual(next(e for e in events if "first_step" in e)["first_step"], whole + 4)

    def test_a_run_below_whole_foreign_checkpoints_keeps_both(self):
        whole, _ = self.first_run()
        events, _ = self.train(*RUN, "--steps", 60, "--set", "checkpoint.every=2", "--resume", self.folder(whole))
        left = self.folders()
        self.assertEqual(len(left), 3)
        self.assertEqual((left[0], left[2]), ("aside-step-000060", "step-000060"))
        self.assertIn("aside-step-000060", texts(events))
        events, _ = self.train(*RUN, "--steps", 62, "--resume", self.path("run/checkpoints/aside-step-000060"), "--run-dir",
                               self.path("other"))
        self.assertEqual(result_of(events)["steps"], 62)

    def test_checkpoints_of_another_run_in_the_folder_are_kept(self):
        self.train(*RUN, "--steps", 20)
        self.first_run("b")
        before = self.folders("b")
        self.run_program("train", "--json", "--run-dir", self.path("b"), *RUN, "--steps", 40, "--resume", self.path("run"))
        self.assertEqual(self.folders("b")[-1], "step-000040")
        self.assertEqual(sorted(p.name for p in pathlib.Path(self.path("b/checkpoints.1")).iterdir()), before)

    def test_every_format_is_read(self):
        config = ["--model", "mlp", "--data", "digits", "--set", "model.widths=[784,2,10]", "--set", "data.samples=64", "--set",
                  "data.test_samples=16", "--set", "train.gemm=mkl", "--set", "optimizer.lr=0.05", "--set", "schedule.name=constant",
                  "--set", "schedule.warmup_share=0", "--set", "optimizer.weight_decay=0", "--global-batch", "16", "--steps", "6",
                  "--set", "checkpoint.every=2"]
        formats = sorted(FORMATS.iterdir())
        self.assertGreaterEqual(len(formats), 3)
        more = {"version-2-two-ranks": ["-n", "2", "--codec", "int8"]}  # with the residuals of both ranks
        for folder in formats:
            run = self.path(folder.name)
            shutil.copytree(folder, run)
            events, _ = self.run_program("train", "--json", "--run-dir", run, *config, *more.get(folder.name, []))
            self.assertEqual(next(e for e in events if "first_step" in e)["first_step"], 4, folder)
            self.assertEqual(result_of(events)["steps"], 6, folder)
            self.assertEqual(self.folders(folder.name), ["step-000004", "step-000006"])

    def test_a_refused_start_renames_nothing(self):
        self.train(*RUN, "--steps", 20)
        before = sorted(os.listdir(self.path("run")))
        for words, status in ((["--resume", self.path("typo")], 2), (["--resume", "never", "--save", self.path("no/such/file")], 2)):
            self.run_program("train", "--json", "--run-dir", self.path("run"), *RUN, "--steps", 40, *words, status=status)
            self.assertEqual(sorted(os.listdir(self.path("run"))), before)
        events, _ = self.run_program("train", "--json", "--run-dir", self.path("run"), *RUN, "--steps", 40)
        self.assertEqual(next(e for e in events if "first_step" in e)["first_step"], 20)

    def test_a_newer_format_is_not_damage(self):
        self.train(*RUN, "--steps", 20)
        manifest = pathlib.Path(self.folder(20), "manifest.json")
        content = json.loads(manifest.read_text())
        content["version"] += 1
        del content["manifest_xxh3"]  # this version with another number and an old hash would be damaged
        manifest.write_text(json.dumps(content))
        _, err = self.train(*RUN, "--steps", 30, status=5)
        self.assertRegex(err, r"step-000020.*newer")
        self.assertEqual(self.folders(), ["step-000010", "step-000020"])

    def test_a_run_that_is_done_says_so(self):
        self.train(*RUN, "--steps", 20)
        for steps in (20, 15):
            events, _ = self.train(*RUN, "--steps", steps)
            result = result_of(events)
            self.assertNotIn("train_loss", result)
            self.assertEqual((result["steps"], result["first_step"]), (20, 20))
            self.assertRegex(texts(events), r"already has 20 steps.*--steps")
        done, _ = self.run_text("train", "--run-dir", self.path("run"), *RUN, "--steps", 15)
        self.assertRegex(done, "already has 20 steps")
        self.assertNotIn("Finished", done)
        self.assertNotRegex(done, "train loss")

    def run_text(self, *args):
        process = self.start(*args)
        _, out, err = self.ended(process)
        self.assertEqual(process.returncode, 0, err)
        return out, err

    def test_events_of_an_earlier_run_are_set_aside(self):
        plain = [*SMALL, "--global-batch", "16"]
        self.train(*plain, "--steps", 5)
        self.train(*plain, "--steps", 7)
        steps = [e["step"] for e in recorded_events(self.path("run")) if e["event"] == "step"]
        self.assertEqual(steps, list(range(1, 8)))
        with open(self.path("run/events.1.jsonl"), encoding="utf-8") as f:
            earlier = [json.loads(line) for line in f]
        self.assertEqual([e["step"] for e in earlier if e["event"] == "step"], list(range(1, 6)))
        self.assertTrue(os.path.exists(self.path("run/run.1.sqlite")))
        self.assertIn("events.1.jsonl", texts(recorded_events(self.path("run"))))

    def test_events_of_a_resumed_run_stay(self):
        self.train(*RUN, "--steps", 10)
        self.train(*RUN, "--steps", 12)
        steps = [e["step"] for e in recorded_events(self.path("run")) if e["event"] == "step"]
        self.assertEqual(steps, list(range(1, 13)))
        self.assertEqual(glob.glob(self.path("run/events.*.jsonl")), [])

    def endless(self, *args):
        """Starts a run that does not end by itself, and waits until it trains."""
        process = self.start("train", "-q", "--run-dir", self.path("run"), *RUN, "--steps", "100000000", *args)
        wait_for_checkpoint(self.path("run"), 0)
        return process

    def test_a_second_run_in_the_folder_is_refused(self):
        for args in ([], ["-n", "2"]):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            process = self.endless(*args)
            holder = process.pid if not args else ranks_of(process.pid)[0]
            for second in ([], ["-n", "2"], ["--resume", "never"]):
                _, err = self.train(*RUN, "--steps", 20, *second, status=2)
                self.assertRegex(err, rf"process {holder} on {socket.gethostname()}")
                self.assertIn("--run-dir", err)
            step = max(e["step"] for e in recorded_events(self.path("run")) if e["event"] == "step")
            wait_for_step(self.path("run"), step + 1)  # the first run goes on
            process.terminate()
            _, out, err = self.ended(process)
            self.assertEqual(process.returncode, 143, err)
            self.assertIn("Interrupted. The state is saved", out)
            self.assertEqual(sum(e["event"] == "run" for e in recorded_events(self.path("run"))), 1)

    def test_a_folder_of_checkpoints_that_is_not_there_now_is_an_error(self):
        self.train(*RUN, "--steps", 20)
        checkpoints = pathlib.Path(self.path("run/checkpoints"))
        checkpoints.rename(self.path("drive"))
        checkpoints.symlink_to(self.path("mount"))
        files = sorted({*os.listdir(self.path("run")), "log"})
        for more in ([], ["-n", "2"]):
            _, err = self.train(*RUN, "--steps", 40, *more, status=5)
            self.assertRegex(err, "run/checkpoints: is a link to .*/mount, which is not there now; mount its drive")
            self.assertEqual(sorted({*os.listdir(self.path("run")), "log"}), files)
        os.rename(self.path("drive"), self.path("mount"))
        events, _ = self.run_program("train", "--json", "--run-dir", self.path("run"), *RUN, "--steps", 40)
        self.assertEqual(result_of(events)["first_step"], 20)

    # Here the other process takes the lock between the launcher's look at it and rank 0's.
    def test_ranks_open_no_recorder_before_rank_0_has_the_lock(self):
        self.train(*RUN, "-n", "2", "--steps", 20)
        for steps in range(40, 140, 20):
            epoch = self.lock()["epoch"] + 1  # that of the launcher
            process = self.start("train", "--run-dir", self.path("run"), *RUN, "-n", "2", "--steps", steps)
            if self.take_released_lock(epoch):
                break
            self.ended(process)  # rank 0 was faster than this process
        _, _, err = self.ended(process)
        self.assertEqual(process.returncode, 2, err)
        self.assertIn(f"is in use by process {os.getpid()}", err)
        self.assertEqual(glob.glob(self.path("run/recorder/rank-*")), [])

    def take_released_lock(self, epoch):
        """Takes the lock for this process when the holder of `epoch` has released it.

        Returns False if another process has taken it first.
        """
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        started = int(pathlib.Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        taken = {"epoch": epoch + 1, "host": "here", "pids": f"{boot} {os.readlink('/proc/self/ns/pid')}", "pid": os.getpid(),
                 "started": started, "incarnation": "another", "token": "held"}
        pathlib.Path(self.path("made")).write_text(json.dumps(taken))
        before, after = (pathlib.Path(self.path(f"run/lock/epoch-{e:06d}")) for e in (epoch, epoch + 1))
        end = time.monotonic() + 60
        while not after.exists():
            self.assertLess(time.monotonic(), end)
            with contextlib.suppress(FileNotFoundError):
                if json.loads(before.read_text())["token"] == "":
                    break
        try:
            os.link(self.path("made"), after)
        except FileExistsError:
            return False
        return True

    def test_the_folder_of_a_killed_run_is_taken_over(self):
        process = self.endless("-n", "2")
        process.kill()
        self.ended(process)
        first = self.lock()
        newest = max(int(name[5:]) for name in self.folders() if name.startswith("step-"))
        events, _ = self.train(*RUN, "-n", "2", "--steps", newest + 30)
        self.assertEqual(result_of(events)["steps"], newest + 30)
        self.assertGreater(self.lock()["epoch"], first["epoch"])

    def lock(self):
        newest = sorted(pathlib.Path(self.path("run/lock")).glob("epoch-*"))[-1]
        return json.loads(newest.read_text())

    def test_another_leader_takes_the_lock(self):
        process = self.endless("-n", "3", "--global-batch", "48", "--on-failure", "continue")
        before = self.lock()
        ranks = ranks_of(process.pid)
        self.assertEqual(before["pid"], ranks[0])
        os.kill(ranks[0], signal.SIGKILL)
        newest = max(int(name[5:]) for name in self.folders() if name.startswith("step-"))
        wait_for_checkpoint(self.path("run"), newest + 20)
        after = self.lock()
        self.assertEqual((after["pid"], after["epoch"], after["incarnation"]), (ranks[1], before["epoch"] + 1, before["incarnation"]))
        process.terminate()
        _, _, err = self.ended(process)
        self.assertEqual(process.returncode, 143, err)

    def test_a_run_that_lost_its_lock_writes_nothing(self):
        saved = pathlib.Path(self.path("weights.safetensors"))
        saved.write_bytes(b"of the other process")
        process = self.endless("-n", "2", "--save", str(saved))
        own = self.lock()
        other = {**own, "epoch": own["epoch"] + 5, "host": "elsewhere", "pids": "", "pid": 1, "token": "other", "incarnation": "other"}
        pathlib.Path(self.path(f"run/lock/epoch-{other['epoch']:06d}")).write_text(json.dumps(other))
        _, _, err = self.ended(process)  # the run notices it within a second
        self.assertEqual(process.returncode, 5, err)
        self.assertEqual(len(re.findall("does not hold the folder any more: process 1 on elsewhere", err)), 1, err)
        self.assertEqual(saved.read_bytes(), b"of the other process")
        for name in ("result.json", "model.safetensors"):
            self.assertFalse(os.path.exists(self.path(f"run/{name}")))
        self.assertEqual(self.lock()["token"], "other")


if __name__ == "__main__":
    main()
