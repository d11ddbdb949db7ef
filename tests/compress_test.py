"""`starling compress`: compresses the weights of real runs, and `starling eval` reads the files back."""
import json
import pathlib
import signal
import struct

from program import SMALL, ProgramTest, main, result_of

# A compression that takes a second.
BRIEF = ["--prune-epochs", 2, "--cluster-epochs", 1, "--threads", 1]


def set_first(file, tensor, value):
    """Sets the first number of an fp32 tensor of a safetensors file."""
    data = bytearray(pathlib.Path(file).read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    offset = begin + json.loads(data[8:begin])[tensor]["data_offsets"][0]
    data[offset:offset + 4] = struct.pack("<f", value)
    pathlib.Path(file).write_bytes(data)


class Compress(ProgramTest):
    def trained(self, name, *args):
        """Trains 24 steps. Returns the run folder."""
        self.run_program("train", "--run-dir", self.path(name), *SMALL, "--steps", 24, *args)
        return self.path(name)

    def compressed(self, run, *args):
        return result_of(self.run_program("compress", run, "--json", *BRIEF, *args)[0])

    def test_eval_reads_what_was_measured(self):
        run = self.trained("run")
        result = self.compressed(run, "--density", 0.1)
        file = pathlib.Path(run, "model.compressed")
        self.assertEqual(result["file"], str(file))
        self.assertEqual(result["file_bytes"], file.stat().st_size)  # the whole file counts
        self.assertEqual(result["parameter_bytes"], 4 * (784 * 64 + 64 + 64 * 10 + 10))
        self.assertAlmostEqual(result["ratio"], result["parameter_bytes"] / result["file_bytes"])
        self.assertGreater(result["ratio"], 20)
        kept = sum(layer["kept"] for layer in result["layers"])
        self.assertAlmostEqual(kept / (784 * 64 + 64 * 10), 0.1, delta=1e-4)
        self.assertEqual([layer["layer"] for layer in result["layers"]], ["fc1", "fc2"])
        for layer in result["layers"]:
            self.assertLessEqual(layer["clusters"], 32)
        evaluated = result_of(self.run_program("eval", run, "--json", "--init", file)[0])
        self.assertEqual(evaluated["test_accuracy"], result["test_accuracy"])
        self.assertAlmostEqual(evaluated["test_loss"], result["test_loss"], places=6)
        before = result_of(self.run_program("eval", run, "--json")[0])
        self.assertEqual(before["test_accuracy"], result["test_accuracy_before"])
        # `ckpt diff` reads the file, too: only the values differ, not the names and shapes.
        events, _ = self.run_program("ckpt", "diff", run + "/model.safetensors", file, "--json", status=1)
        self.assertNotIn("only the first has it", str(events))

    def test_equal_options_give_equal_files(self):
        run = self.trained("run")
        for name in ("a", "b"):
            self.compressed(run, "--out", self.path(name))
        self.assertEqual(pathlib.Path(self.path("a")).read_bytes(), pathlib.Path(self.path("b")).read_bytes())

    def test_fp32_values_and_bits_of_the_clusters(self):
        run = self.trained("run")
        small = self.compressed(run, "--linear-bits", 2, "--out", self.path("small"))
        for layer in small["layers"]:
            self.assertLessEqual(layer["clusters"], 4)
        exact = self.compressed(run, "--linear-bits", 2, "--fp32-values", "--out", self.path("exact"))
        self.assertGreater(exact["file_bytes"], small["file_bytes"])
        evaluated = result_of(self.run_program("eval", run, "--json", "--init", self.path("exact"))[0])
        self.assertEqual(evaluated["test_accuracy"], exact["test_accuracy"])
        self.assertAlmostEqual(evaluated["test_loss"], exact["test_loss"], places=6)

    def test_force_replaces_a_file(self):
        run = self.trained("run")
        file = pathlib.Path(self.path("small"))
        self.compressed(run, "--fp32-values", "--out", file)
        whole = file.read_bytes()
        file.write_bytes(b"older" * len(whole))
        self.compressed(run, "--fp32-values", "--out", file, "--force")
        self.assertEqual(file.read_bytes(), whole)
        self.assertEqual([p.name for p in file.parent.glob("small*")], ["small"])

    def test_a_file_that_cannot_be_written_is_refused_at_the_start(self):
        run = self.trained("run")
        weights = run + "/model.safetensors"
        before = pathlib.Path(weights).read_bytes()
        endless = ["compress", run, "--prune-epochs", 10000, "--force", "--out"]
        for out, status, message in ((weights, 2, "is the file that is compressed"), (self.path("nodir/m"), 5, "make the folder first"),
                                     (self.path("model.safetensors"), 2, "is the name of weights that are not compressed"),
                                     (run, 5, "is not a regular file")):
            with self.subTest(out=out):
                _, err = self.run_program(*endless, out, status=status)
                self.assertIn(message, err)
        self.assertEqual(pathlib.Path(weights).read_bytes(), before)
        pathlib.Path(self.path("there")).write_text("x", encoding="ascii")
        _, err = self.run_program("compress", run, "--dry-run", "--out", self.path("there"), status=2)
        self.assertIn("exists; give another name by --out, or --force", err)

    def test_weights_that_cannot_be_compressed_are_refused_at_the_start(self):
        run = self.trained("run")
        endless = ["compress", run, "--prune-epochs", 10000]
        set_first(run + "/model.safetensors", "fc1.bias", 1e6)
        _, err = self.run_program(*endless, status=2)
        self.assertIn("fc1.bias has values that fp16 cannot hold", err)
        set_first(run + "/model.safetensors", "fc2.weight", float("nan"))
        _, err = self.run_program(*endless, status=3)
        self.assertIn("fc2.weight has values that are not finite", err)

    def test_a_checkpoint_is_compressed_into_the_run_folder(self):
        run = self.trained("run", "--set", "checkpoint.every=12")
        step = sorted(pathlib.Path(run, "checkpoints").glob("step-*"))[-1]
        result = self.compressed(str(step))
        self.assertTrue(pathlib.Path(run, "model.compressed").exists())
        self.assertTrue(pathlib.Path(run, "model.compressed").samefile(result["file"]))
        self.assertFalse(list(step.glob("*.compressed")))

    def test_buffers_and_convolutions(self):
        run = self.path("run")
        self.run_program("train", "--run-dir", run, "--model", "resnet18", "--data", "digits",
                         "--set", "data.samples=32", "--set", "data.test_samples=16", "--global-batch", 16,
                         "--steps", 1)
        words = ["compress", run, "--json", "--prune-epochs", 0, "--cluster-epochs", 0]
        _, err = self.run_program(*words, status=2)
        self.assertIn("--retrain-batch: digits holds 32 samples, fewer than a batch of 64", err)
        result = result_of(self.run_program(*words, "--retrain-batch", 16)[0])
        evaluated = result_of(self.run_program("eval", run, "--json", "--init", run + "/model.compressed")[0])
        self.assertAlmostEqual(evaluated["test_loss"], result["test_loss"], places=5)

    def test_densities_of_layers(self):
        run = self.trained("run")
        layers = {e["layer"]: e for e in self.compressed(run, "--layer-density", "fc2=1")["layers"]}
        self.assertEqual(layers["fc2"]["kept"], 640)
        self.assertAlmostEqual(layers["fc1"]["kept"] / (784 * 64), 0.08, delta=0.001)
        for text, message in (("fc9=0.1", "no layer \"fc9\" that is pruned: it has fc1, fc2"),
                              ("fc1=2", "above 0 and at most 1"), ("fc1", "is not LAYER=DENSITY")):
            _, err = self.run_program("compress", run, "--force", "--layer-density", text, status=2)
            self.assertIn(message, err)
        _, err = self.run_program("compress", run, "--force", "--density", 0, status=2)
        self.assertIn("--density", err)

    def test_what_cannot_be_compressed_is_refused(self):
        (pathlib.Path(self.dir) / "empty").mkdir()
        _, err = self.run_program("compress", self.path("empty"), status=2)
        self.assertIn("holds no weights", err)
        run = self.trained("run")
        _, err = self.run_program("compress", run, "-n", 2, status=2)
        self.assertIn("one process compresses a network", err)
        self.compressed(run)
        _, err = self.run_program("compress", run, status=2)
        self.assertIn("exists; give another name by --out, or --force", err)
        self.run_program("train", "--run-dir", self.path("text"), "--model", "gpt", "--data", "grammar",
                         "--set", "model.layers=1", "--set", "model.width=16", "--set", "model.heads=2",
                         "--set", "model.tokens=8", "--set", "data.samples=64", "--steps", 1)
        _, err = self.run_program("compress", self.path("text"), status=2)
        self.assertRegex(err, r"gpt cannot be compressed: .*transformer\.wte\.weight \[\d+, 16\]")

    def test_damaged_files_are_refused_with_the_place(self):
        run = self.trained("run")
        self.compressed(run)
        file = pathlib.Path(run, "model.compressed")
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        for damaged, place in ((bytes(data), f"offset {len(data) - 8}: the checksum does not match"),
                               (bytes(data[:12]), "offset 10: truncated")):
            file.write_bytes(damaged)
            _, err = self.run_program("eval", run, "--init", file, status=3)
            self.assertIn(place, err)

    def test_ctrl_c_writes_nothing(self):
        run = self.trained("run")
        process = self.start("compress", run, "--prune-epochs", 10000, "--threads", 1, piped=True)
        self.assertEqual(process.stdout.readline(), "pruning 0 %\n")
        process.send_signal(signal.SIGINT)
        self.ended(process)
        self.assertEqual(process.returncode, 130)
        self.assertFalse(pathlib.Path(run, "model.compressed").exists())

    def test_a_dry_run_writes_nothing(self):
        run = self.trained("run")
        self.run_program("compress", run, "--dry-run")
        self.assertFalse(pathlib.Path(run, "model.compressed").exists())


if __name__ == "__main__":
    main()
