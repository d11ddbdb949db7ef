"""Batches of several tensors, packed sequences and weighted losses in a user's program.

The updates are those of a plain loop.
"""
import math
import pathlib
import re
import shutil
import struct

from own_program_test import tensors_of
from program import BUILD, COPIES, ProgramTest, events_of, main, result_of, some

PROGRAM = str(BUILD / "tests" / "nest_program")
STEPS = 6


def difference(actual, expected):
    """Returns the difference of two fp64 tensors, as their bytes, in the 2-norm."""
    a, b = (struct.unpack(f"<{len(data) // 8}d", data) for data in (actual, expected))
    norm = math.sqrt(sum(y * y for y in b))
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True))) / (norm if norm > 0 else 1)


class Nest(ProgramTest):
    def nest(self, *args, status=0, keep=False):
        """Runs the program, in a new run folder unless `keep`. Returns (stdout, stderr)."""
        if not keep:
            shutil.rmtree(self.path("run"), ignore_errors=True)
        words = [*COPIES, "--set", "train.gemm=mkl", "--run-dir", self.path("run"), *args]
        done = self.completed([PROGRAM, *map(str, words)])
        self.assertEqual(done.returncode, status, f"{args}\nstdout: {done.stdout[-3000:]}\nstderr: {done.stderr[-3000:]}")
        return done.stdout, done.stderr

    def plain(self, task):
        """Trains in the plain loop. Returns the weights, and the loss and the metric on the test data."""
        out, _ = self.nest("--", "--task", task, "--plain", STEPS, self.path("plain"))
        loss, metric = re.search(r"plain loss (\S+) metric (\S+)", out).groups()
        return tensors_of(self.path("plain")), float(loss), float(metric)

    def same(self, name, expected, way):
        trained = tensors_of(self.path(name))
        self.assertEqual(set(trained), set(expected), way)
        for key, value in expected.items():
            self.assertLessEqual(difference(trained[key], value), 1e-10, f"{way}: {key}")


class OneProcess(Nest):
    WAYS = ([], ["--exchange", "central"], ["--shard", "optimizer"], ["--shard", "gradients"],
            ["--exchange", "parameter-server", "--servers", 1, "--staleness", 0],
            ["--exchange", "parameter-server", "--servers", 1, "--staleness", 0, "--on-failure", "continue"])

    def compare(self, task, ways):
        weights, loss, metric = self.plain(task)
        for ranks, way in ways:
            with self.subTest(task=task, ranks=ranks, way=way):
                out, _ = self.nest("--json", "--steps", STEPS, "-n", ranks, *way, "--", "--task", task, "--trained", self.path("own"))
                for rank in range(ranks):
                    self.same(f"own.{rank}", weights, way)
                result = result_of(events_of(out))
                self.assertAlmostEqual(result["test_loss"] / loss, 1, delta=1e-9)
                if task != "vae":
                    self.assertAlmostEqual(result["test_metrics"]["right"], metric, delta=1e-12)

    def test_packed_sequences(self):
        self.compare("tagger", some([*((ranks, []) for ranks in (3, 1, 2, 4)), *((2, way) for way in self.WAYS[1:])], 5))

    def test_several_inputs_and_targets(self):
        self.compare("heads", some([(2, ["--threads", 2]), *((ranks, []) for ranks in (1, 3, 4)), *((2, way) for way in self.WAYS[1:])], 5))

    def test_a_struct_of_outputs_and_no_targets(self):
        self.compare("vae", [(1, []), (2, [])])

    def test_a_resumed_run(self):
        weights, _, _ = self.plain("tagger")
        way = ["-n", 2, "--set", "checkpoint.every=2"]
        self.nest("--steps", 4, *way, "--", "--task", "tagger")
        out, _ = self.nest("--steps", STEPS, *way, "--", "--task", "tagger", "--trained", self.path("own"), keep=True)
        self.assertTrue(pathlib.Path(self.path("run")).exists(), out)
        self.same("own.1", weights, "resumed")


class OtherExchanges(Nest):
    def test_they_train(self):
        for way in some((["--exchange", "gossip"], ["--exchange", "local-sgd"], ["--exchange", "admm"], ["--exchange", "downpour", "--servers", 1],
                         ["--precision", "fp32", "--codec", "1bit"], ["--exchange", "parallel-sgd", "--combine", "best"]), 3):
            with self.subTest(way=way):
                out, _ = self.nest("--steps", 8, "-n", 2, *way, "--", "--task", "heads")
                self.assertIn("Finished", out)

    def test_parallel_sgd_refuses_samples_of_several_lengths(self):
        # Sentences have 1 to 10 words, so two ranks share the longest length; a batch of one does not.
        _, err = self.nest("--steps", 8, "-n", 3, "--exchange", "parallel-sgd", "--", "--task", "tagger", status=2)
        self.assertIn("needs samples of one shape", err)


class Refused(Nest):
    def test_tensors_that_do_not_fit(self):
        for task, message in (("arity", "the data set has 3 input(s), and the forward function of the model takes another number"),
                              ("loss", "the function takes one output and one target, but the model has 1 output(s) and the data set 2 target(s)")):
            for ranks in (1, 2):
                _, err = self.nest("--steps", 2, "-n", ranks, "--", "--task", task, status=2)
                self.assertIn(message, err)

    def test_samples_of_several_lengths_need_a_collate_function(self):
        _, err = self.nest("--steps", 2, "--", "--task", "shapes", status=3)
        self.assertIn("use the collate function starling::padded() for different lengths", err)

    def test_samples_cannot_be_divided_by_label(self):
        _, err = self.nest("--steps", 2, "-n", 2, "--exchange", "gossip", "--partition", "by-label", "--", "--task", "tagger", status=2)
        self.assertIn("is not one class [n] int64 per sample", err)


class Precision(Nest):
    def test_an_exact_input_keeps_its_type(self):
        out, _ = self.nest("--steps", 2, "--precision", "bf16", "--", "--task", "exact")
        self.assertIn("types BFloat16 Float value 257.0", out)


if __name__ == "__main__":
    main()
