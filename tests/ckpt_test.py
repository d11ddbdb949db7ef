"""`starling ckpt`: lists, verifies, compares and exports the checkpoints of real runs."""
import json
import os
import pathlib
import shutil

from own_program_test import tensors_of
from program import SMALL, ProgramTest, main, result_of


class Checkpoints(ProgramTest):
    def trained(self, name, *args):
        """Trains 4 steps with a checkpoint after every second step. Returns the run folder."""
        self.run_program("train", "--run-dir", self.path(name), *SMALL, "--set", "checkpoint.every=2", "--steps", 4, *args)
        return self.path(name)

    def damage(self, path):
        file = pathlib.Path(path, "model.safetensors")
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)

    def test_ls_names_each_checkpoint(self):
        run = self.trained("run")
        events, _ = self.run_program("ckpt", "ls", run, "--json")
        self.assertEqual([(e["step"], e["whole"]) for e in events[:-1]], [(4, True), (2, True)])
        for event in events[:-1]:
            files = pathlib.Path(event["path"]).iterdir()
            self.assertEqual(event["bytes"], sum(f.stat().st_size for f in files))
        pathlib.Path(run, "checkpoints/step-000002/state.json").unlink()
        events, _ = self.run_program("ckpt", "ls", run, "--json")
        self.assertEqual([e["whole"] for e in events], [True, False, False])
        self.assertIn("state.json is missing", events[1]["problem"])

    def test_verify_reads_every_byte(self):
        run = self.trained("run")
        self.assertTrue(result_of(self.run_program("ckpt", "verify", run, "--json")[0])["whole"])
        self.damage(run + "/checkpoints/step-000004")
        # The sizes are right, so that `ls` sees nothing.
        self.assertTrue(result_of(self.run_program("ckpt", "ls", run, "--json")[0])["whole"])
        events, _ = self.run_program("ckpt", "verify", run, "--json", status=5)
        self.assertEqual([e["whole"] for e in events], [False, True, False])
        self.assertIn("model.safetensors does not have the manifest's hash", events[0]["problem"])
        self.run_program("ckpt", "verify", run + "/checkpoints/step-000002")

    def test_diff_of_equal_and_different_runs(self):
        # With several ranks the seed also determines the states of libtorch's generators.
        one, same, other = (self.trained(name, "-n", 2, "--lr", lr) for name, lr in (("one", 0.01), ("same", 0.01), ("other", 0.011)))
        events, _ = self.run_program("ckpt", "diff", one, same, "--json")
        self.assertEqual(len(events), 1, events)
        self.assertEqual(events[0]["equal"], events[0]["tensors"])
        events, _ = self.run_program("ckpt", "diff", one, other, "--json", status=1)
        named = {e["tensor"]: e for e in events[:-1]}
        weights = sorted(tensors_of(one + "/checkpoints/step-000004/model.safetensors"))
        for name in weights:
            self.assertGreater(named["model/" + name]["relative"], 0)
            self.assertLess(named["model/" + name]["relative"], 1)
        # Two checkpoints of one run.
        steps = [f"{one}/checkpoints/step-00000{step}" for step in (2, 4)]
        self.run_program("ckpt", "diff", *steps, status=1)

    def test_diff_of_other_shapes_and_names(self):
        one = self.trained("one")
        other = self.trained("other", "--set", "model.widths=[784,32,10]")
        events, _ = self.run_program("ckpt", "diff", one, other, "--json", status=1)
        texts = [e["text"] for e in events if e["event"] == "difference"]
        self.assertTrue(any("Float [64, 784] and Float [32, 784]" in t for t in texts), texts)

    def test_export_writes_what_the_checkpoint_holds(self):
        run = self.trained("run")
        for file in ("model.safetensors", "model.pt"):
            out = self.path(file)
            self.run_program("ckpt", "export", run, out)
            events, _ = self.run_program("ckpt", "diff", run, out, "--json")
            self.assertEqual(result_of(events)["equal"], len(tensors_of(run + "/checkpoints/step-000004/model.safetensors")))
            _, err = self.run_program("ckpt", "export", run, out, status=2)
            self.assertIn("exists; give another name, or --force", err)
        for file in ("model", "model.bin"):
            _, err = self.run_program("ckpt", "export", run, self.path(file), status=2)
            self.assertIn("must end in .safetensors, in .pt", err)
            self.assertFalse(os.path.exists(self.path(file)))
        for file in ("model.safetensors", "model.pt"):
            out = self.path(file)
            self.run_program("ckpt", "export", run + "/checkpoints/step-000002", out, "--force")
            self.run_program("ckpt", "diff", run, out, status=1)

    def test_an_evaluation_that_is_not_finite_ends_with_its_status(self):
        file = pathlib.Path(self.trained("run") + "/model.safetensors")
        weights = bytearray(file.read_bytes())
        weights[-4:] = b"\x00\x00\xc0\x7f"  # NaN in the last tensor
        file = pathlib.Path(self.path("nan.safetensors"))
        file.write_bytes(weights)
        for more in ([], ["-n", "2"]):
            events, err = self.run_program("eval", "--json", *SMALL, *more, "--init", file, status=6)
            self.assertIsNone(result_of([e for e in events if e["event"] == "result"])["test_loss"])
            self.assertIn("the test loss is not finite", err)

    def test_averaged_weights_are_evaluated_saved_and_exported(self):
        run, averaged, trained = self.path("run"), self.path("averaged.safetensors"), self.path("trained.safetensors")
        events, _ = self.run_program("train", "--json", "--run-dir", run, *SMALL, "-n", 2, "--steps", 4, "--set", "checkpoint.every=2", "--set",
                                     "optimizer.ema_decay=0.5")
        self.run_program("ckpt", "export", run, averaged, "--averaged")
        self.run_program("ckpt", "export", run, trained)
        self.run_program("ckpt", "diff", averaged, run + "/model.safetensors")
        self.run_program("ckpt", "diff", averaged, trained, status=1)

        def loss_of(file):
            return result_of(self.run_program("eval", "--json", *SMALL, "--init", file)[0])["test_loss"]
        self.assertAlmostEqual(result_of(events)["test_loss"], loss_of(averaged), places=5)
        self.assertGreater(abs(loss_of(trained) - loss_of(averaged)), 1e-4)
        _, err = self.run_program("ckpt", "export", self.trained("plain"), self.path("x.pt"), "--averaged", status=2)
        self.assertIn("has no averaged weights", err)

    def test_a_newer_format_is_no_damage(self):
        run = self.trained("run")
        manifest = pathlib.Path(run, "checkpoints/step-000004/manifest.json")
        newer = json.loads(manifest.read_text())
        newer["version"] = 99
        del newer["manifest_xxh3"]  # a version 2 with another number would be damaged
        manifest.write_text(json.dumps(newer))
        events, _ = self.run_program("ckpt", "verify", run, "--json", status=5)
        self.assertEqual(events[0]["problem"], "written by a newer Starling (format version 99)")
        _, err = self.run_program("ckpt", "export", run, "x.pt", status=5)
        self.assertIn("it has format version 99", err)

    def test_a_dry_run_of_an_export_writes_nothing(self):
        self.run_program("ckpt", "export", self.trained("run"), self.path("x.pt"), "--dry-run")
        self.assertFalse(pathlib.Path(self.path("x.pt")).exists())

    def test_a_run_is_trained_on_from_an_export(self):
        run, out = self.trained("run"), self.path("model.safetensors")
        self.run_program("ckpt", "export", run, out)
        self.run_program("train", "--run-dir", self.path("next"), *SMALL, "--steps", 1, "--init", out)

    def test_what_is_no_checkpoint_is_refused(self):
        (pathlib.Path(self.dir) / "empty").mkdir()
        for words in (["ls", "empty"], ["verify", "nowhere"], ["diff", "empty", "empty"], ["export", "empty", "x.pt"]):
            _, err = self.run_program("ckpt", *words, status=2)
            self.assertIn("is neither a run folder with checkpoints nor the folder of a checkpoint", err)
        run = self.trained("run")
        self.damage(run + "/checkpoints/step-000004")
        _, err = self.run_program("ckpt", "export", run + "/checkpoints/step-000004", "x.pt", status=5)
        self.assertIn("does not have the manifest's hash", err)
        # The newest whole checkpoint is exported in place of a damaged one.
        self.run_program("ckpt", "export", run, self.path("x.pt"))
        events, _ = self.run_program("ckpt", "diff", run + "/checkpoints/step-000002", self.path("x.pt"), "--json")
        self.assertEqual(result_of(events)["equal"], result_of(events)["tensors"])
        shutil.rmtree(run)


if __name__ == "__main__":
    main()
