"""A user's own program.

The tests cover its command line, its initial weights, its resumption, its frozen tensors and its masks.
"""
import collections
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

from program import BUILD, ProgramTest, environment, events_of, main, ranks_of, recorded_events, result_of, wait_for_checkpoint, wait_for_step

OWN = str(BUILD / "tests" / "own_program")
FIXED = ["--set", "train.gemm=mkl", "--precision", "fp64", "--global-batch", "8"]
RUN = [*FIXED, "--steps", "400", "--set", "checkpoint.every=10"]


def tensors_of(path):
    """Returns the bytes of each tensor of a safetensors file, by name."""
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    return {name: data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]]
            for name, entry in header.items() if name != "__metadata__"}


class OwnProgram(ProgramTest):
    def own(self, *args, status=0):
        """Runs the program to its end. Returns (stdout, stderr)."""
        done = self.completed([OWN, *map(str, args)])
        self.assertEqual(done.returncode, status, f"{args}\nstdout: {done.stdout[-3000:]}\nstderr: {done.stderr[-3000:]}")
        return done.stdout, done.stderr

    def start_own(self, *args):
        process = subprocess.Popen([OWN, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.dir,
                                   env=environment())
        self.addCleanup(self.end, process)
        return process

    def recorded(self, name, rank):
        """Returns what rank `rank` has recorded in each step: (mask, frozen, buffers)."""
        lines = pathlib.Path(self.path(f"{name}.{rank}")).read_text(encoding="utf-8").splitlines()
        return [tuple(line.split()) for line in lines]

    def masks(self, name, rank):
        return [line[0] for line in self.recorded(name, rank)]


class CommandLine(OwnProgram):
    def test_help_and_version_do_not_train(self):
        out, _ = self.own("--help")
        self.assertIn("Usage: own_program [OPTIONS] [-- ARGUMENT…]", out)
        self.assertIn("--epochs", out)
        self.assertNotIn("--data", out)
        self.assertNotIn("after fit", out)
        out, _ = self.own("--version", "-n", 2)
        self.assertRegex(out, r"^starling \d+\.\d+\.\d+\nlibtorch ")
        self.assertEqual(os.listdir(self.dir), [])

    def test_dry_run_checks_and_ends(self):
        out, _ = self.own("--dry-run", "--json", "-n", 2, *FIXED, "--steps", 3)
        self.assertEqual([(e["event"], e["dry_run"]) for e in events_of(out)], [("result", True)])
        out, err = self.own("--dry-run", "-n", 2, *FIXED, "--steps", 3)
        self.assertEqual(out, "would train user (306 parameters) on tensors (512 samples) with 2 ranks, 8 samples a step\n")
        self.own("--dry-run", "-n", 3, *FIXED, status=2)
        self.own("--dry-run", "--init", self.path("missing.safetensors"), status=3)
        self.assertEqual(os.listdir(self.dir), [])

    def test_unknown_flags_are_refused_with_a_suggestion(self):
        _, err = self.own("--epoch", 3, status=2)
        self.assertIn("--epoch: unknown flag: did you mean --epochs? Arguments of the program's own follow --", err)
        _, err = self.own("--by-rank", status=2)
        self.assertIn("--by-rank: unknown flag", err)
        out, _ = self.own("--json", "--epoch", 3, status=2)
        self.assertEqual(events_of(out)[-1]["code"], "config")

    def test_data_and_model_are_refused(self):
        _, err = self.own("--data", "digits", status=2)
        self.assertIn("--data: data.source does not apply, because this program brings its own data", err)
        _, err = self.own("--model", "lenet5", status=2)
        self.assertIn("--model: model.name does not apply, because this program brings its own model", err)
        self.assertEqual(os.listdir(self.dir), [])

    def test_quiet_and_json(self):
        for ranks in (1, 2):
            out, err = self.own("-q", *FIXED, "--steps", 5, "-n", ranks, "--run-dir", self.path(f"q{ranks}"))
            self.assertTrue(out.startswith("Finished\n"), out)
            self.assertEqual(err, "")
            out, err = self.own("--json", *FIXED, "--steps", 5, "-n", ranks, "--run-dir", self.path(f"j{ranks}"))
            events = events_of(out)
            self.assertEqual(result_of(events)["steps"], 5)
            self.assertEqual(sum(e["event"] == "step" for e in events), 5)

    def test_own_arguments_follow_two_dashes(self):
        for ranks in (1, 2):
            self.own(*FIXED, "--steps", 4, "-n", ranks, "--run-dir", self.path("run"), "--resume", "never", "--", "--record",
                     self.path(f"args{ranks}"))
            self.assertEqual(len(self.recorded(f"args{ranks}", ranks - 1)), 4)


class Init(OwnProgram):
    def test_init_loads_the_weights(self):
        self.own(*FIXED, "--steps", 20, "--precision", "fp32", "--save", self.path("w.pt"), "--run-dir", self.path("a"))
        for ranks in (1, 2):
            for file in ("w.pt", "a/model.safetensors"):
                # A learning rate of 0 leaves the initial weights as they are.
                self.own(*FIXED, "--steps", 1, "--lr", 0, "--init", self.path(file), "-n", ranks, "--precision", "fp32", "--save",
                         self.path("again.safetensors"), "--run-dir", self.path("b"), "--resume", "never")
                self.assertEqual(tensors_of(self.path("again.safetensors")), tensors_of(self.path("a/model.safetensors")))

    def test_a_missing_file_is_an_error(self):
        for ranks in (1, 2):
            _, err = self.own(*FIXED, "--steps", 1, "--init", "missing.safetensors", "-n", ranks, "--run-dir", self.path("run"), status=3)
            self.assertIn("missing.safetensors: cannot open", err)
            self.assertNotIn("did not begin", err)  # no rank waited for another one

    def test_weights_of_another_model_are_an_error(self):
        self.run_program("train", "--model", "mlp", "--data", "digits", "--set", "data.samples=64", "--set", "data.test_samples=64",
                         "--steps", 1, "--save", self.path("mlp.safetensors"), "--run-dir", self.path("mlp"))
        _, err = self.own(*FIXED, "--steps", 1, "--init", self.path("mlp.safetensors"), "--run-dir", self.path("run"), status=3)
        self.assertRegex(err, r"mlp.safetensors: holds the weights of another model: .*fc1")


class Resume(OwnProgram):
    def killed_after_a_checkpoint(self, run, *args):
        """Starts the run, and kills all of its processes after a checkpoint.

        Returns the checkpoint's step.
        """
        for _ in range(10):
            shutil.rmtree(self.path(run), ignore_errors=True)
            process = self.start_own("--run-dir", self.path(run), *args)
            step = wait_for_checkpoint(self.path(run), 0)
            try:
                ranks = ranks_of(process.pid).values()
            except OSError:
                ranks = []
            process.kill()
            for pid in ranks:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            process.communicate()
            if process.returncode == -signal.SIGKILL and step < 400:
                return step
        raise AssertionError("ten runs ended before they could be killed")

    def test_killed_runs_resume_to_the_same_bits(self):
        own = ["--", "--dropout", "--by-rank", "--manual-seed", 3]
        for ranks in (1, 2):
            self.own(*RUN, "-n", ranks, "--run-dir", self.path(f"whole{ranks}"), "--save", self.path("whole.safetensors"), *own)
            step = self.killed_after_a_checkpoint("run", *RUN, "-n", ranks, *own)
            self.own(*RUN, "-n", ranks, "--run-dir", self.path("run"), "--save", self.path("resumed.safetensors"), *own)
            started = [e for e in recorded_events(self.path("run")) if "first_step" in e][-1]
            self.assertGreaterEqual(started["first_step"], step)
            self.assertEqual(tensors_of(self.path("resumed.safetensors")), tensors_of(self.path("whole.safetensors")))
            # A run folder that --resume names, into another run folder.
            step = self.killed_after_a_checkpoint("old", *RUN, "-n", ranks, *own)
            self.own(*RUN, "-n", ranks, "--run-dir", self.path(f"new{ranks}"), "--resume", self.path("old"), "--save",
                     self.path("resumed.safetensors"), *own)
            started = [e for e in recorded_events(self.path(f"new{ranks}")) if "first_step" in e][0]
            self.assertGreaterEqual(started["first_step"], step)
            self.assertEqual(tensors_of(self.path("resumed.safetensors")), tensors_of(self.path("whole.safetensors")))

    def interrupted(self, *args, way=signal.SIGINT):
        """Returns the standard output of a run that a signal ended early."""
        for _ in range(10):
            process = self.start_own(*args)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.stderr.close)
            folder = None
            end = time.monotonic() + 60
            while folder is None and time.monotonic() < end:
                folder = next(iter(pathlib.Path(self.dir).glob("runs/*/events.jsonl")), None)
                time.sleep(0.01)
            wait_for_step(folder.parent, 5)
            process.send_signal(way)
            _, out, err = self.ended(process)
            if "Interrupted" in out:
                self.assertEqual(process.returncode, 128 + way, err)
                return out
            self.assertEqual(process.returncode, 0, err)
            shutil.rmtree(self.path("runs"))
        raise AssertionError("ten runs ended before they could be interrupted")

    def test_the_printed_command_resumes(self):
        own = ["--", "--dropout", "--manual-seed", "3", "--record", "a b"]
        for ranks in (1, 2):
            shutil.rmtree(self.path("runs"), ignore_errors=True)
            self.own(*RUN, "-n", ranks, "--run-dir", self.path(f"whole{ranks}"), "--save", self.path("whole.safetensors"), *own)
            out = self.interrupted(*RUN, "--resume", "never", "-n", ranks, "--save", self.path("resumed.safetensors"), *own)
            lines = out.splitlines()
            at = next(i for i, line in enumerate(lines) if line.startswith("Interrupted"))
            self.assertEqual(lines[at], "Interrupted. The state is saved. This command resumes the run:")
            command = lines[at + 1].strip()
            self.assertEqual(shlex.split(command)[-len(own):], own)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=240, cwd=self.dir, env=environment())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("resuming after step", done.stdout)
            self.assertEqual(len(os.listdir(self.path("runs"))), 1)
            self.assertEqual(tensors_of(self.path("resumed.safetensors")), tensors_of(self.path("whole.safetensors")))

    def test_a_state_that_is_not_saved_is_not_promised(self):
        process = self.start_own(*FIXED, "--steps", 1000000, "--run-dir", self.path("run"))
        wait_for_step(self.path("run"), 5)
        # No checkpoint can be made where a file has the folder's name.
        pathlib.Path(self.path("run/checkpoints")).write_text("", encoding="utf-8")
        process.send_signal(signal.SIGINT)
        _, out, err = self.ended(process)
        self.assertIn("Interrupted. The state is not saved", out)
        self.assertNotIn("resumes", out)


class Frozen(OwnProgram):
    def test_frozen_parameters_and_buffers_begin_equal_and_are_saved(self):
        self.own(*FIXED, "--steps", 4, "--run-dir", self.path("one"), "--save", self.path("one.safetensors"), "--", "--by-rank")
        one = tensors_of(self.path("one.safetensors"))
        self.assertEqual(set(one), {f"{layer}.{kind}" for layer in ("first", "second", "third") for kind in ("weight", "bias")} |
                         {"shift", "counter", "flags"})
        for way in ([], ["--exchange", "central"], ["--exchange", "local-sgd"], ["--exchange", "gossip"], ["--shard", "optimizer"],
                    ["--exchange", "parameter-server", "--servers", 1], ["--exchange", "admm"],
                    ["--shard", "parameters"], ["--mesh", "stage=2", "--micro-batches", 2]):
            with self.subTest(way=way):
                for old in pathlib.Path(self.dir).glob("seen.*"):
                    old.unlink()
                shutil.rmtree(self.path("run"), ignore_errors=True)
                self.own(*FIXED, "--steps", 4, "--set", "checkpoint.every=4", "-n", 2, *way, "--run-dir", self.path("run"), "--save",
                         self.path("two.safetensors"), "--", "--by-rank", "--record", self.path("seen"))
                two = tensors_of(self.path("two.safetensors"))
                self.assertEqual(set(two), set(one))
                frozen = ("first.weight", "first.bias", "shift", "counter", "flags")
                self.assertEqual({n: two[n] for n in frozen}, {n: one[n] for n in frozen})
                kept = tensors_of(self.path("run/checkpoints/step-000004/model.safetensors"))
                self.assertEqual({n: kept[n] for n in frozen}, {n: one[n] for n in frozen})
                if "--mesh" not in way:  # the second stage does not compute the layer
                    self.assertEqual(self.recorded("seen", 0), self.recorded("seen", 1))

    def test_a_resumed_run_takes_frozen_parameters_of_the_checkpoint(self):
        self.own(*FIXED, "--steps", 4, "--set", "checkpoint.every=4", "--run-dir", self.path("run"), "--save", self.path("a.safetensors"))
        # The factory of the second run makes other values, which the checkpoint replaces.
        self.own(*FIXED, "--steps", 4, "--run-dir", self.path("new"), "--resume", self.path("run"), "--save", self.path("b.safetensors"),
                 "--", "--add", 2)
        self.assertEqual(tensors_of(self.path("b.safetensors")), tensors_of(self.path("a.safetensors")))


class Masks(OwnProgram):
    def test_one_rank_draws_what_libtorch_draws(self):
        self.own(*FIXED, "--steps", 6, "--run-dir", self.path("run"), "--", "--dropout", "--manual-seed", 7, "--record", self.path("masks"))
        out, _ = self.own("--", "--manual-seed", 7, "--reference", 6)
        self.assertEqual(self.masks("masks", 0), out.split())

    def test_replicas_draw_different_masks_which_repeat(self):
        for name in ("first", "again"):
            self.own(*FIXED, "--steps", 6, "-n", 2, "--run-dir", self.path(name), "--", "--dropout", "--record", self.path(f"masks-{name}"))
        for rank in (0, 1):
            self.assertEqual(self.masks("masks-first", rank), self.masks("masks-again", rank))
        all_masks = self.masks("masks-first", 0) + self.masks("masks-first", 1)
        self.assertEqual(max(collections.Counter(all_masks).values()), 1, all_masks)

    def test_after_a_loss_a_resumed_run_draws_by_seed_step_and_replica(self):
        args = [*FIXED, "--global-batch", 12, "-n", 3, "--on-failure", "continue"]
        own = ["--", "--dropout", "--record", self.path("masks")]
        process = self.start_own(*args, "--steps", 1000000, "--run-dir", self.path("run"), *own)
        wait_for_step(self.path("run"), 5)
        os.kill(ranks_of(process.pid)[2], signal.SIGKILL)
        end = time.monotonic() + 60
        while not any(e.get("event") == "lost" for e in recorded_events(self.path("run"))):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        process.terminate()
        _, out, err = self.ended(process)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, err)
        step = wait_for_checkpoint(self.path("run"), 0)
        before = [self.masks("masks", rank) for rank in range(3)]
        for name in ("first", "again"):
            shutil.copytree(self.path("run"), self.path(name))
            self.own(*args, "--steps", step + 4, "--run-dir", self.path(name), "--set", "schedule.name=constant", "--", "--dropout",
                     "--record", self.path(f"masks-{name}"))
        seen = [self.masks("masks-first", rank) for rank in range(3)]
        self.assertEqual([len(s) for s in seen], [4, 4, 4])
        self.assertEqual(seen, [self.masks("masks-again", rank) for rank in range(3)])
        new = [mask for rank in seen for mask in rank]
        self.assertEqual(len(set(new)), 12)
        self.assertFalse(set(new) & {mask for rank in before for mask in rank})


if __name__ == "__main__":
    main()
