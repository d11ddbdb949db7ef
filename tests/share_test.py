"""Unequal shares of a batch (`--share`).

Every update equals that of one process. `auto` gives a slow rank fewer samples.
"""
import json
import os
import pathlib
import shutil
import signal

from nest_test import STEPS, Nest
from program import BUILD, SMALL, ProgramTest, distance, events_of, main, ranks_of, result_of, some, wait_for_step
from verify_test import MODELS

FP64 = [*SMALL, "--set", "model.widths=[784,32,10]", "--precision", "fp64", "--set", "optimizer.momentum=0.9"]
# A sleep stands for the computation, so that the measured speeds do not depend on the load of the machine.
SLOW = ["--emulate", "compute=40ms,slow-rank=1:3x"]
MEASURED = 26  # the steps in which the ranks measure themselves


class OneUpdate(ProgramTest):
    def check(self, model, shares, *args, batch=12, steps=3):
        ranks = len(shares.split(","))
        events, _ = self.run_program("verify", "--json", *MODELS[model], "-n", ranks, "--global-batch", batch, "--share", shares, "--set",
                                     "data.samples=256", "--set", "data.test_samples=16", "--set", f"verify.steps={steps}", *args)
        self.assertTrue(events[-1]["passed"], args)
        self.assertLess(events[-1]["largest"], 1e-10, args)

    def test_all_reduce(self):
        self.check("mlp", "3,1,2", batch=13, steps=5)  # 13 is no multiple of the ranks
        for model, shares, *way in some((("mlp", "2,1"), ("mlp", "1,2", "--set", "comm.shared_memory=false"),
                                         ("gpt", "1,3", "--set", "optimizer.clip_norm=0.1"), ("lenet5", "3,1", "--set", "optimizer.clip_value=0.01"),
                                         ("mlp", "5,1,4", "--set", "optimizer.share=replicated", "--optimizer", "adam", "--lr", "0.001")), 2):
            self.check(model, shares, *way)
        self.check("resnet18", "2,1", steps=max(some((1, 2), 1)))  # with batch norm over all ranks

    def test_parts_and_threads(self):
        self.check("mlp", "2,1", "--accumulate", 3)
        self.check("mlp", "1,3", "--threads", 2, "--threads-mode", "batch", "--accumulate", 2)
        self.check("gpt", "9,1,1", "--accumulate", 2, "--shard", "gradients")  # 8, 2 and 2 samples

    def test_central(self):
        self.check("mlp", "2,1", "--exchange", "central")
        self.check("mlp", "3,1,2", "--exchange", "central", "--central", "master", batch=13)

    def test_zero(self):
        for shard in ("optimizer", "gradients", "parameters"):
            self.check("gpt", "2,1", "--shard", shard, "--set", "optimizer.clip_norm=0.1")
            self.check("gpt", "3,1,2", "--shard", shard, batch=13)


class WeightedLoss(Nest):
    def test_the_weights_of_all_ranks_count(self):
        weights, _, _ = self.plain("tagger")
        for shares, way in (("2,1", []), ("1,3,2", []), ("2,1", ["--exchange", "central"]), ("1,2", ["--shard", "optimizer"]),
                            ("2,1", ["--shard", "gradients"])):
            with self.subTest(shares=shares, way=way):
                ranks = len(shares.split(","))
                self.nest("--steps", STEPS, "-n", ranks, "--share", shares, *way, "--", "--task", "tagger", "--trained", self.path("own"))
                for rank in range(ranks):
                    self.same(f"own.{rank}", weights, way)


class WholeRun(ProgramTest):
    def trained(self, name, *args, **options):
        events, err = self.train(*FP64, "--save", self.path(f"{name}.safetensors"), *args, **options)
        return events, err

    def anew(self, name, *args):
        shutil.rmtree(self.path("run"), ignore_errors=True)
        return self.trained(name, *args)[0]

    def choices(self):
        newest = max(pathlib.Path(self.path("run")).glob("checkpoints/step-*"))
        return json.loads((newest / "state.json").read_text())["choices"]

    def test_a_list(self):
        words = ("--global-batch", 31, "--steps", 40)
        self.anew("one", *words, "-n", 1)
        for shares, counts in (("2,1", [21, 10]), ("4,1,3", [15, 4, 12])):
            events = self.anew("several", *words, "-n", len(counts), "--share", shares)
            self.assertEqual(result_of(events)["share"], counts)
            self.assertLess(distance(self.path("one.safetensors"), self.path("several.safetensors")), 1e-10)
        self.assertNotIn("share", result_of(self.anew("equal", "--global-batch", 30, "--steps", 2, "-n", 2)))

    def test_auto_gives_a_slow_rank_fewer_samples(self):
        words = ("--global-batch", 32, "--steps", MEASURED + 10)
        self.anew("one", *words, "-n", 1)
        events = self.anew("auto", *words, "-n", 2, "--share", "auto", *SLOW, "--set", f"checkpoint.every={MEASURED}")
        share = result_of(events)["share"]
        self.assertEqual(sum(share), 32)
        self.assertGreater(share[0], 20)  # 24 if rank 1 needs exactly three times as long
        self.assertLess(share[1], 12)
        self.assertEqual(self.choices()["share"], f"{share[0]},{share[1]}")
        messages = [e["text"] for e in events if e["event"] == "message"]
        self.assertIn(f"share: the ranks measure their computation in the next {MEASURED} steps", messages)
        self.assertEqual(sum(f"the ranks keep {share[0]}, {share[1]} samples of a step by rank" in text for text in messages), 1)
        # What the ranks measure has no effect on what they learn.
        self.assertLess(distance(self.path("one.safetensors"), self.path("auto.safetensors")), 1e-10)

    def test_a_resumed_run_keeps_its_shares(self):
        words = ("--global-batch", 32, "-n", 2, "--share", "auto", "--set", "checkpoint.every=7")
        self.trained("first", *words, *SLOW, "--steps", MEASURED + 2)
        kept = self.choices()["share"]
        # The other rank is slow now. A new measurement would find that.
        events, _ = self.trained("resumed", *words, "--emulate", "compute=40ms,slow-rank=0:3x", "--steps", 2 * MEASURED + 4)
        self.assertEqual(result_of(events)["share"], [int(n) for n in kept.split(",")])
        self.assertEqual(next(e for e in events if e["event"] == "run")["choices"]["share"], kept)
        self.assertFalse([e for e in events if e["event"] == "message" and e["text"].startswith("share:")])
        self.anew("one", "--global-batch", 32, "--steps", 2 * MEASURED + 4, "-n", 1)
        self.assertLess(distance(self.path("one.safetensors"), self.path("resumed.safetensors")), 1e-10)

    def test_a_run_that_is_resumed_before_the_shares_are_known_measures_anew(self):
        words = ("--global-batch", 32, "-n", 2, "--share", "auto", "--set", "checkpoint.every=5", *SLOW)
        self.trained("first", *words, "--steps", 15)
        self.assertNotIn("share", self.choices())
        events, _ = self.trained("resumed", *words, "--steps", 15 + MEASURED)
        self.assertGreater(result_of(events)["share"][0], 20)
        self.anew("one", "--global-batch", 32, "--steps", 15 + MEASURED, "-n", 1)
        self.assertLess(distance(self.path("one.safetensors"), self.path("resumed.safetensors")), 1e-10)

    def test_a_new_list_for_a_resumed_run(self):
        words = ("--global-batch", 32, "-n", 2, "--set", "checkpoint.every=5")
        self.trained("first", *words, "--share", "3,1", "--steps", 10)
        events, _ = self.trained("resumed", *words, "--share", "1,3", "--steps", 20)
        self.assertEqual(result_of(events)["share"], [8, 24])
        self.anew("one", "--global-batch", 32, "--steps", 20, "-n", 1)
        self.assertLess(distance(self.path("one.safetensors"), self.path("resumed.safetensors")), 1e-10)

    def test_the_remaining_ranks_keep_their_parts(self):
        words = ("--global-batch", 32, "--steps", 300)
        self.anew("one", *words, "-n", 1)
        shutil.rmtree(self.path("run"))
        process = self.start("train", "--json", "--run-dir", self.path("run"), *map(str, (*FP64, *words)), "-n", "3", "--share", "2,1,1",
                             "--on-failure", "continue", "--emulate", "compute=4ms", "--save", self.path("two.safetensors"))
        wait_for_step(self.path("run"), 5)
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        _, out, err = self.ended(process)
        events = events_of(out)
        self.assertEqual(result_of(events)["lost_ranks"], [1], err)
        self.assertEqual(result_of(events)["share"], [21, 0, 11])
        self.assertLess(distance(self.path("one.safetensors"), self.path("two.safetensors")), 1e-10)

    def test_with_a_codec(self):
        events, _ = self.train(*SMALL, "--global-batch", 32, "--steps", 30, "-n", 2, "--share", "3,1", "--codec", "int8")
        self.assertEqual(result_of(events)["share"], [24, 8])
        self.assertGreater(result_of(events)["test_accuracy"], 0.3)


class Refused(ProgramTest):
    def test_texts(self):
        for args, text in ((["--share", "2,1,1"], "--share: data.share has 3 parts for 2 ranks: give one number for each rank"),
                           (["--share", "2,x"], "\"2,x\" is no division of a step's samples: \"x\" is not a number"),
                           (["--share", "auto", "--exchange", "gossip"], "leave out --share, or use --exchange all-reduce, central"),
                           (["--share", "2,1", "--mesh", "stage=2"], "does not apply to the stages of a pipeline")):
            _, err = self.run_program("train", *SMALL, "-n", 2, *args, status=2)
            self.assertIn(text, err)

    def test_own_loops(self):
        _, err = self.run_program("--run-dir", self.path("run"), "-n", 2, "--share", "2,1", "--", status=2, program=str(BUILD / "tests" / "loop_program"))
        self.assertIn("a loop of your own divides each batch equally", err)


if __name__ == "__main__":
    main()
