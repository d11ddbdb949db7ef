"""What Run::fit() offers a user's program beside the configuration.

These are the trained module, metrics, callbacks and settings.
"""
import pathlib
import re
import shutil
import struct
import zlib

from own_program_test import tensors_of
from program import BUILD, ProgramTest, distance, events_of, main, result_of, some

PROGRAM = str(BUILD / "tests" / "fit_program")
FIXED = ["--set", "train.gemm=mkl", "--global-batch", "8"]


class Fit(ProgramTest):
    def fit(self, *args, status=0):
        """Runs the program in a new run folder. Returns (stdout, stderr)."""
        shutil.rmtree(self.path("run"), ignore_errors=True)
        words = [*FIXED, "--run-dir", self.path("run"), *args]
        done = self.completed([PROGRAM, *map(str, words)])
        self.assertEqual(done.returncode, status, f"{args}\nstdout: {done.stdout[-3000:]}\nstderr: {done.stderr[-3000:]}")
        return done.stdout, done.stderr

    def printed(self, out):
        """Returns what all ranks of the last run have printed.

        Rank 0 prints to `out`, and all other ranks print into their logs.
        """
        return out + "".join(log.read_text(encoding="utf-8") for log in sorted(pathlib.Path(self.path("run/log")).glob("rank-[1-9]*")))


class TrainedModule(Fit):
    WAYS = ([], ["--exchange", "central"], ["--exchange", "gossip"], ["--exchange", "admm"], ["--shard", "optimizer"],
            ["--shard", "gradients"], ["--exchange", "parameter-server", "--servers", 1],
            ["--exchange", "parameter-server", "--servers", 1, "--on-failure", "continue"], ["--precision", "fp64"],
            ["--precision", "bf16"])

    def test_every_rank_gets_the_weights_that_save_writes(self):
        for way in WAYS_OF_ONE_RANK:
            self.fit("--steps", 6, *way, "--save", self.path("saved.safetensors"), "--", "--trained", self.path("one"))
            self.same_weights("one.0", way)
        for way in some(self.WAYS, 5):
            with self.subTest(way=way):
                out, _ = self.fit("--steps", 6, "-n", 2, *way, "--save", self.path("saved.safetensors"), "--", "--trained",
                                  self.path("two"))
                self.assertEqual(len(re.findall(r"trained rank \d steps 6", self.printed(out))), 2, out)
                self.assertNotIn("training mode", out)
                for rank in (0, 1):
                    self.same_weights(f"two.{rank}", way)

    def same_weights(self, name, way):
        saved, trained = tensors_of(self.path("saved.safetensors")), tensors_of(self.path(name))
        self.assertEqual(set(trained), {"first.weight", "first.bias", "second.weight", "second.bias", "norm.weight", "norm.bias",
                                        "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"})
        self.assertEqual(trained, saved, way)

    def test_modules_of_the_factory_can_be_used_after_the_run(self):
        for way in ([], ["-n", 2], ["-n", 2, "--exchange", "central"], ["-n", 2, "--exchange", "gossip"], ["-n", 2, "--shard", "optimizer"],
                    ["-n", 2, "--exchange", "parameter-server", "--servers", 1]):
            with self.subTest(way=way):
                out, _ = self.fit("--steps", 4, *way, "--", "--kept")
                kept = re.findall(r"kept rank (\d) sum (-?\d+\.\d+) gradient 1", self.printed(out))
                self.assertEqual({rank for rank, _ in kept}, {"0", "1"} if way else {"0"}, out)


class TorchScript(Fit):
    """A TorchScript module trains as the same module in C++ does."""

    def test_equal_to_a_plain_module(self):
        for way in some(([], ["-n", 3, "--shard", "optimizer", "--global-batch", 9], ["-n", 2], ["-n", 2, "--exchange", "central"]), 2):
            with self.subTest(way=way):
                for how in ("plain", "script"):
                    self.fit("--precision", "fp64", "--optimizer", "adam", "--steps", 12, *way, "--save", self.path(f"{how}.safetensors"),
                             "--", "--script", how)
                self.assertLess(distance(self.path("plain.safetensors"), self.path("script.safetensors")), 1e-10)
                self.assertGreater(pathlib.Path(self.path("script.pt")).stat().st_size, 16 * 4 * 8)

    def test_resumes(self):
        self.fit("--steps", 8, "--save", self.path("whole.safetensors"), "--", "--script", "script")
        self.fit("--steps", 4, "--set", "checkpoint.every=4", "--", "--script", "script")
        words = [*FIXED, "--run-dir", self.path("run"), "--steps", 8, "--save", self.path("resumed.safetensors"), "--", "--script", "script"]
        done = self.completed([PROGRAM, *map(str, words)])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step-000004", done.stdout)
        self.assertEqual(tensors_of(self.path("resumed.safetensors")), tensors_of(self.path("whole.safetensors")))

    def test_a_resumed_run_that_stops_has_a_checkpoint_of_its_last_step(self):
        self.fit("--steps", 64, "--set", "checkpoint.every=64")
        words = [*FIXED, "--run-dir", self.path("run"), "--epochs", 9, "--", "--stop-after", 2]
        done = self.completed([PROGRAM, *map(str, words)])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("resuming after step 64", done.stdout)
        self.assertTrue(pathlib.Path(self.path("run/checkpoints/step-000128/manifest.json")).exists(), done.stdout)


WAYS_OF_ONE_RANK = ([], ["--precision", "bf16"], ["--precision", "fp64"])


class Metrics(Fit):
    def test_metrics_are_means_over_all_ranks(self):
        seen = []
        for way in ([], ["-n", 2], ["-n", 2, "--exchange", "parameter-server", "--servers", 1, "--staleness", 0],
                    ["-n", 2, "--exchange", "parameter-server", "--servers", 1, "--staleness", 0, "--on-failure", "continue"]):
            out, _ = self.fit("--json", "--precision", "fp64", "--lr", 0, "--steps", 2, *way, "--", "--metrics")
            result = result_of(events_of(out))
            evaluation = next(e for e in events_of(out) if e["event"] == "eval")
            self.assertEqual(set(result["test_metrics"]), {"mae"})
            self.assertEqual(evaluation["metrics"], result["test_metrics"])
            self.assertEqual(evaluation["accuracy"], result["test_accuracy"])
            seen.append((result["test_accuracy"], result["test_metrics"]["mae"]))
        for accuracy, mae in seen:
            self.assertEqual(accuracy, seen[0][0])
            self.assertAlmostEqual(mae, seen[0][1], delta=1e-2)  # ranks have their own statistics of batch norm
        self.assertGreater(seen[0][1], 0.05)
        self.assertLess(seen[0][1], 0.95)

    def test_without_a_metric_there_is_no_accuracy(self):
        out, _ = self.fit("--json", "--steps", 2, "--", "--regression")
        result = result_of(events_of(out))
        self.assertNotIn("test_accuracy", result)
        self.assertNotIn("test_metrics", result)
        self.assertGreater(result["test_loss"], 0)

    def test_the_summary_shows_them(self):
        out, _ = self.fit("--steps", 2, "--", "--metrics")
        self.assertRegex(out, r"test at step 2: accuracy [\d.]+ %, mae [\d.]+, loss ")
        self.assertRegex(out, r"  test mae +0\.\d+")


class Callbacks(Fit):
    def epochs(self, out):
        return re.findall(r"epoch ([\d.]+) step (\d+) loss ([\d.]+) samples (\d+) rank (\d)", out)

    def test_a_callback_ends_the_run_after_an_epoch(self):
        for way in ([], ["-n", 2], ["-n", 2, "--exchange", "local-sgd", "--every", 4], ["-n", 2, "--shard", "gradients"]):
            with self.subTest(way=way):
                out, _ = self.fit("--epochs", 9, *way, "--save", self.path("w.safetensors"), "--", "--stop-after", 2)
                ranks = 2 if way else 1
                calls = self.epochs(self.printed(out))
                self.assertEqual(len(calls), 2 * ranks, out)
                self.assertEqual(len({call[:4] for call in calls}), 2, calls)  # equal on all ranks
                self.assertEqual({call[:2] for call in calls}, {("1.00", "64"), ("2.00", "128")})
                self.assertIn("Finished early, as the program or SIGUSR2 asked", out)
                self.assertRegex(out, r"steps +128\n")
                self.assertTrue(pathlib.Path(self.path("w.safetensors")).exists())

    def test_one_rank_is_enough_to_stop(self):
        out, _ = self.fit("--json", "--epochs", 9, "-n", 2, "--", "--stop-after", 1, "--stop-rank", 1)
        result = result_of([e for e in events_of(out)])
        self.assertEqual((result["steps"], result["stopped"], result["interrupted"]), (64, True, False))

    def test_servers_that_go_on_after_a_loss_stop_one_step_later(self):
        out, _ = self.fit("--epochs", 9, "-n", 2, "--exchange", "parameter-server", "--servers", 1, "--staleness", 0, "--on-failure",
                          "continue", "--", "--stop-after", 1)
        self.assertEqual({call[4] for call in self.epochs(self.printed(out))}, {"0"})
        self.assertIn("Finished early", out)
        self.assertRegex(out, r"steps +65\n")

    def test_asynchronous_workers_stop_at_the_same_step(self):
        for way in (["--exchange", "downpour"], ["--exchange", "parameter-server", "--staleness", 3],
                    ["--exchange", "downpour", "--set", "exchange.fetch_every=3", "--set", "exchange.push_every=2"]):
            for _ in some(range(3), 1):
                with self.subTest(way=way):
                    out, _ = self.fit("--epochs", 5, "-n", 2, "--servers", 1, *way, "--set", "comm.timeout_s=10", "--", "--stop-after", 1,
                                      "--metrics")
                    self.assertIn("Finished early", out)
                    steps = int(re.search(r"steps +(\d+)\n", out)[1])
                    self.assertGreater(steps, 64)
                    self.assertLess(steps, 5 * 64)

    def test_without_test_data_the_loss_is_no_number(self):
        out, _ = self.fit("--epochs", 2, "--", "--stop-after", 9, "--no-test")
        self.assertEqual(self.epochs(out), [])
        self.assertIn("epoch 2.00 step 128 loss nan samples 0 rank 0", out)

    def test_the_last_epoch_is_no_early_end(self):
        out, _ = self.fit("--epochs", 2, "-n", 2, "--", "--stop-after", 2)
        self.assertIn("Finished\n", out)

    def test_an_early_end_is_a_checkpoint(self):
        out, _ = self.fit("--epochs", 9, "-n", 2, "--set", "checkpoint.every=1000", "--", "--stop-after", 1)
        self.assertEqual([f.name for f in sorted(pathlib.Path(self.path("run/checkpoints")).glob("step-*"))], ["step-000064"])

    def test_options_that_differ_are_refused(self):
        for what in ("metric", "callback"):
            _, err = self.fit("--epochs", 2, "-n", 2, "--", "--only-rank-0", what, status=2)
            self.assertIn("rank 1 has other metrics or options than rank 0, or only one of the two has a callback", err)


class NotFinite(Fit):
    def test_the_rank_whose_gradient_is_not_finite_is_named(self):
        for way in ([], ["--own"]):
            for exchange in ([], ["--exchange", "central"], ["--exchange", "central", "--central", "master"], ["--codec", "int8"],
                             ["--codec", "prune"]):
                for rank in some((2, 0, 1), 1):
                    with self.subTest(way=way, exchange=exchange, rank=rank):
                        _, err = self.fit("--steps", 2, "-n", 3, "--global-batch", 9, *exchange, "--", "--spoil", rank, *way, status=6)
                        self.assertRegex(err, rf"rank {rank}: the gradient of (first|norm)\.(weight|bias) is not finite at step 1")

    def test_a_hybrid_names_the_rank_whose_gradient_is_not_finite(self):
        for rank in (1, 0):
            with self.subTest(rank=rank):
                _, err = self.fit("--steps", 2, "-n", 2, "--global-batch", 8, "--hybrid", "second", "--", "--spoil", rank, status=6)
                self.assertRegex(err, rf"rank {rank}: the gradient of (first|norm)\.(weight|bias) is not finite at step 1")


class Inputs(Fit):
    def test_different_data_is_refused(self):
        for what, message in (("size", r"rank 1 has other training data than rank 0: 528 samples instead of 512 samples"),
                              ("content", r"rank 1 has other training data than rank 0: its sample 0 has another content"),
                              ("test", r"rank 1 has other test data than rank 0: 80 samples instead of 64 samples")):
            _, err = self.fit("--steps", 2, "-n", 2, "--", "--other-data", what, status=2)
            self.assertRegex(err, message)

    def test_real_targets_keep_their_precision(self):
        for precision, types in (("fp32", "Float Float"), ("fp64", "Double Double"), ("bf16", "Float Float")):
            out, _ = self.fit("--steps", 2, "--precision", precision, "--", "--regression")
            self.assertIn(f"types {types} target 257.25", out)

    def test_a_model_that_views_convolutions_trains(self):
        for ranks in (1, 2):
            out, err = self.fit("--steps", 4, "-n", ranks, "--", "--view")
            self.assertIn("Finished", out)
            self.assertEqual(re.sub(r"warning: 2 ranks of 1 thread on 1 core: .*\n", "", err), "")

    def test_an_error_of_libtorch_says_where_it_came_from(self):
        for where, message in (("forward", "in the forward pass of the model"), ("loss", "in the loss"),
                               ("metric", 'in the metric "broken"'), ("test", "in the evaluation after step 2")):
            _, err = self.fit("--steps", 2, "--", "--fail", where, status=1)
            self.assertIn(message, err)
            self.assertIn("1000003", err)
            self.assertNotIn("frame #", err)
        _, err = self.fit("--steps", 2, "-n", 2, "--", "--fail", "forward", status=1)
        self.assertRegex(err, r"rank \d: .*1000003")

    def test_the_loss_of_the_model(self):
        out, _ = self.fit("--json", "--steps", 2, "--", "--model-loss")
        self.assertEqual(result_of(events_of(out))["train_loss"], 42)
        _, err = self.fit("--steps", 2, "--", "--model-loss", "--both", status=2)
        self.assertIn("the factory sets Model::loss, and fit() has a loss, too", err)


class InCode(Fit):
    def result(self, *args):
        out, _ = self.fit("--json", *args)
        return result_of(events_of(out)), [e for e in events_of(out) if e["event"] == "step"]

    def test_the_program_sets_keys_and_flags_override_them(self):
        own = ["--set", "schedule.name=constant", "--", "--settings"]
        result, steps = self.result(*own)
        self.assertEqual((result["steps"], steps[0]["lr"]), (7, 0.25))
        result, steps = self.result("--lr", 0.5, "--steps", 3, *own)
        self.assertEqual((result["steps"], steps[0]["lr"]), (3, 0.5))

    def test_a_flag_for_the_length_overrides_either_key(self):
        result, _ = self.result("--epochs", 1, "--", "--settings")
        self.assertEqual(result["steps"], 64)

    def test_a_wrong_key_is_an_error(self):
        _, err = self.fit("--", "--bad-setting", status=2)
        self.assertRegex(err, r"starling::init: optimizer.rate: .*unknown")


def grey_png(value, size=4):
    """Returns a PNG file of size x size pixels with one grey value."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = (b"\0" + bytes([value]) * size) * size
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows))
            + chunk(b"IEND", b""))


class NamedData(Fit):
    SMALL = ["--set", "data.samples=8", "--set", "data.test_samples=8", "--steps", 2]

    def test_the_command_line_names_the_data(self):
        folder = pathlib.Path(self.path("pets"))
        for part, name, grey in (("train", "cat", 0), ("train", "dog", 255), ("test", "cat", 0), ("test", "dog", 255)):
            (folder / part / name).mkdir(parents=True)
            for i in range(4):
                (folder / part / name / f"{i}.png").write_bytes(grey_png(grey))
        for data, name in (("digits", "digits"), (f"images:{folder}", "images")):
            with self.subTest(data=data):
                out, _ = self.fit("--json", *self.SMALL, "--data", data, "-n", 2, "--", "--take-data")
                begin = next(e for e in events_of(out) if e["event"] == "run")
                self.assertIn(name, begin["data"])
                self.assertEqual(result_of(events_of(out))["steps"], 2)
        _, err = self.fit(*self.SMALL, "--data", "images:none", "--", "--take-data", status=3)
        self.assertIn("none", err)

    def test_a_resumed_run_has_the_same_data(self):
        self.fit(*self.SMALL, "--data", "digits", "--set", "checkpoint.every=2", "--", "--take-data")
        shutil.copytree(self.path("run"), self.path("first"))
        _, err = self.fit(*self.SMALL[:-1], 4, "--data", "grammar", "--resume", self.path("first"), "--", "--take-data", status=2)
        self.assertIn('data.source: the value was "digits" in the run of', err)

    def test_data_is_needed_and_used(self):
        _, err = self.fit("--", "--take-data", status=2)
        self.assertIn("--data: is not given: this program trains on the data that --data names", err)
        _, err = self.fit("--data", "digits", "--", "--take-data", "--ignore-data", status=2)
        self.assertIn("data.source: has no effect, because the program has not called Run::data()", err)
        out, _ = self.fit("--help", "--", "--take-data")
        self.assertIn("It brings its own network. --data names its data.", re.sub(r"\s+", " ", out))
        self.assertIn("--data SOURCE", out)


if __name__ == "__main__":
    main()
