"""Exchanges, codecs, data sources and collectives that a program adds.

The tests use starling::Extensions and examples/extend.
"""
import array
import json
import math
import pathlib
import re
import shutil

from own_program_test import tensors_of
from program import BUILD, ProgramTest, main, recorded_events, result_of

FIXED = ["--set", "train.gemm=mkl", "--set", "data.order=sequential", "--set", "optimizer.momentum=0", "--lr", "0.25"]


def plane(count=32):
    """The samples of the examples: (x, y)."""
    points = [(i / 32, (i * i % 32) / 32) for i in range(count)]
    return [(x, 3 * x[0] - 2 * x[1] + 0.5) for x in points]


def gradient(w, samples):
    """The gradient of the mean squared error of w[0] x0 + w[1] x1 + w[2]."""
    g = [0.0, 0.0, 0.0]
    for x, y in samples:
        error = w[0] * x[0] + w[1] * x[1] + w[2] - y
        for i, factor in enumerate((x[0], x[1], 1.0)):
            g[i] += 2 * error * factor / len(samples)
    return g


def shares(samples, step, ranks, batch):
    """The samples of each rank in a step, in sequential order."""
    first = step * batch % len(samples)
    each = batch // ranks
    return [samples[first + r * each:first + (r + 1) * each] for r in range(ranks)]


class Extend(ProgramTest):
    def example(self, name, *args, status=0, fixed=FIXED):
        """Runs an example to its end with the flags `fixed` and `args`. Returns (stdout, stderr)."""
        shutil.rmtree(self.path("run"), ignore_errors=True)
        done = self.completed([str(BUILD / "examples" / f"extend_{name}"), *fixed, "--run-dir", self.path("run"), *map(str, args)])
        self.assertEqual(done.returncode, status, f"{args}\nstdout: {done.stdout[-3000:]}\nstderr: {done.stderr[-3000:]}")
        return done.stdout, done.stderr

    def weights(self, kind="d", path="w.safetensors"):
        """Returns [w0, w1, bias] of the saved model."""
        found = []
        for name in ("line.weight", "line.bias"):
            values = array.array(kind)
            values.frombytes(tensors_of(self.path(path))[name])
            found += values
        return found

    def configuration(self):
        """Returns the configuration that the newest checkpoint of the last run keeps."""
        newest = max(pathlib.Path(self.path("run/checkpoints")).iterdir())
        return json.loads((newest / "state.json").read_text(encoding="utf-8"))["config"]

    def assert_near(self, found, expected):
        self.assertLess(math.dist(found, expected) / math.hypot(*expected), 1e-12, (found, expected))


class Exchange(Extend):
    ARGS = ["--precision", "fp64", "--global-batch", 8, "--every", 2]

    @staticmethod
    def simulated(steps, ranks=2, pull=0.1, every=2, lr=0.25):
        samples, center = plane(), [0.5, 0.5, 0.0]
        x = [list(center) for _ in range(ranks)]
        for step in range(steps):
            for rank, share in enumerate(shares(samples, step, ranks, 8)):
                x[rank] = [w - lr * g for w, g in zip(x[rank], gradient(x[rank], share))]
            if (step + 1) % every == 0:
                distance = [[w - c for w, c in zip(own, center)] for own in x]
                x = [[w - pull * d for w, d in zip(own, ds)] for own, ds in zip(x, distance)]
                center = [c + pull * sum(ds) for c, ds in zip(center, zip(*distance))]
        return center

    def test_two_ranks_compute_its_equations(self):
        for extra in ([], ["--exchange", "elastic", "--set", "exchange.rho=0.25"]):
            self.example("exchange", *self.ARGS, *extra, "--steps", 11, "-n", 2, "--save", self.path("w.safetensors"))
            self.assert_near(self.weights(), self.simulated(11, pull=0.25 if extra else 0.1))
            result = result_of(recorded_events(self.path("run")))
            self.assertEqual((result["strategy"]["exchange"], result["strategy"]["rounds"]), ("elastic", 5))

    def test_it_resumes_bit_by_bit(self):
        self.example("exchange", *self.ARGS, "--steps", 14, "-n", 2, "--save", self.path("w.safetensors"))
        whole = tensors_of(self.path("w.safetensors"))
        self.example("exchange", *self.ARGS, "--steps", 7, "-n", 2, "--set", "checkpoint.every=7")
        self.assertEqual(self.configuration()["exchange"]["name"], "elastic")
        shutil.copytree(self.path("run"), self.path("first"))
        self.example("exchange", *self.ARGS, "--steps", 14, "-n", 2, "--resume", self.path("first"), "--save", self.path("w.safetensors"))
        self.assertEqual(tensors_of(self.path("w.safetensors")), whole)
        # The other exchanges of the program, and programs that do not know this one, refuse the run clearly.
        _, err = self.example("exchange", *self.ARGS, "--exchange", "local-sgd", "--steps", 14, "-n", 2, "--resume", self.path("first"),
                              status=2)
        self.assertIn('exchange.name: the value was "elastic" in the run of', err)
        _, err = self.run_program("train", "--steps", 14, "--resume", self.path("first"), "--run-dir", self.path("other"), status=2)
        self.assertIn("is the checkpoint of a program that brings its own model", err)

    def test_its_name_is_checked_and_shown(self):
        out, _ = self.example("exchange", "--help")
        self.assertRegex(re.sub(r"\s+", " ", out), r"--exchange NAME .* all-reduce, .*downpour, elastic")
        _, err = self.example("exchange", "--exchange", "elasti", status=2)
        self.assertIn('exchange.name = "elasti" is unknown: did you mean "elastic"? use one of all-reduce, ', err)
        _, err = self.example("exchange", "--codec", "fp16", "-n", 2, status=2)
        self.assertIn('exchange.codec belongs to all-reduce, local-sgd, parameter-server, downpour, not to "elastic"', err)
        _, err = self.example("exchange", "--set", "exchange.rho=0.6", "-n", 2, "--steps", 2, status=2)
        self.assertIn("exchange.rho: the center diverges", err)
        _, err = self.run_program("train", "--exchange", "elastic", status=2)
        self.assertIn('exchange.name = "elastic" is unknown: use one of all-reduce, ', err)
        self.assertIn(", or the program that adds it (starling::Extensions)", err)


class Codec(Extend):
    ARGS = ["--global-batch", 8, "-n", 2]

    @staticmethod
    def simulated(steps, grid, lr=0.25):
        """Every value is exact in fp32."""
        samples, w = plane(), [0.5, 0.5, 0.0]
        residual = [[0.0] * 3, [0.0] * 3]
        for step in range(steps):
            sent = []
            for rank, share in enumerate(shares(samples, step, 2, 8)):
                v = [g + r for g, r in zip(gradient(w, share), residual[rank])]
                sent.append([round(value / grid) * grid for value in v])
                residual[rank] = [value - s for value, s in zip(v, sent[-1])]
            w = [value - lr * (a + b) / 2 for value, a, b in zip(w, *sent)]
        return w

    def test_two_ranks_send_its_messages(self):
        self.example("codec", *self.ARGS, "--codec", "grid:step=0.125", "--steps", 5, "--save", self.path("w.safetensors"),
                     "--set", "checkpoint.every=5")
        self.assertEqual(self.weights("f"), self.simulated(5, 0.125))
        self.assertEqual(self.configuration()["exchange"]["codec"], "grid:step=0.125")
        self.assertEqual(result_of(recorded_events(self.path("run")))["strategy"]["compression"], 2)

    def test_servers_decode_its_messages(self):
        self.example("codec", *self.ARGS, "--codec", "grid:step=0.125", "--exchange", "parameter-server", "--servers", 1, "--steps", 5,
                     "--save", self.path("w.safetensors"))
        self.assertEqual(self.weights("f"), self.simulated(5, 0.125))

    def test_its_word_is_checked_and_shown(self):
        out, _ = self.example("codec", "--help")
        self.assertRegex(re.sub(r"\s+", " ", out), r"--codec NAME\[:KEY=VALUE\] .*, grid \[none\]")
        for word, message in (("gird", "there is no codec 'gird' (did you mean 'grid'?); the codecs are none, fp16, "),
                              ("grid:step=0", "codec grid: step = '0' is not a number above 0"),
                              ("grid:size=1", "codec grid: 'size=1' is not one of its settings"),
                              ("grid:feedback=maybe", "codec grid: feedback = 'maybe' is not one of off, on")):
            _, err = self.example("codec", *self.ARGS, "--codec", word, status=2)
            self.assertIn(message, err)
            self.assertEqual(len(err.splitlines()), 1, err)
        _, err = self.run_program("train", "--codec", "grid", status=2)
        self.assertIn("there is no codec 'grid'", err)


class DataSource(Extend):
    def setUp(self):
        super().setUp()
        self.write("points.csv", plane())
        self.write("more.csv", plane(20))

    def write(self, name, samples):
        text = "".join(f"{x[0]},{x[1]},{y}\n" for x, y in samples)
        pathlib.Path(self.path(name)).write_text(text, encoding="utf-8")

    ARGS = ["--precision", "fp64", "--global-batch", 8, "-n", 2, "--steps", 6]

    def test_two_ranks_train_on_its_data(self):
        out, _ = self.example("source", *self.ARGS, "--data", "csv:points.csv", "--set", "data.test_source=csv:more.csv", "--save",
                              self.path("w.safetensors"), "--set", "checkpoint.every=6")
        w = [0.5, 0.5, 0.0]
        for step in range(6):
            w = [value - 0.25 * g for value, g in zip(w, gradient(w, plane()[step * 8 % 32:step * 8 % 32 + 8]))]
        self.assert_near(self.weights(), w)
        loss = sum((w[0] * x[0] + w[1] * x[1] + w[2] - y)**2 for x, y in plane(20)) / 20
        self.assertIn(f"step 6: loss {loss:.12f} of 20 test samples\n", out)
        data = self.configuration()["data"]
        self.assertEqual((data["source"], data["test_source"]), ("csv:points.csv", "csv:more.csv"))

    def test_starlings_keys_apply(self):
        # A path alone has the kind of the training data. Starling takes the part of the samples.
        out, _ = self.example("source", *self.ARGS, "--data", "csv:points.csv", "--set", "data.test_source=more.csv", "--set",
                              "data.test_samples=12", "--set", "data.samples=16")
        self.assertIn("of 12 test samples", out)
        out, _ = self.example("source", "--help")
        self.assertIn("--data SOURCE", out)
        self.assertIn("This program adds csv:FILE", re.sub(r"\s+", " ", out))

    def test_wrong_places_are_refused(self):
        pathlib.Path(self.path("bad.csv")).write_text("1,2,3\n1,x,3\n", encoding="utf-8")
        for place, status, message in (("csv", 2, "data.source: csv needs a file: write csv:FILE"),
                                       ("csv:none.csv", 3, "none.csv: the file cannot be read"),
                                       ("csv:bad.csv", 3, "bad.csv:2: column 2 is not a number"),
                                       ("cvs:points.csv", 2, 'data.source = "cvs:points.csv" is unknown: did you mean "csv"? use csv:FILE, '
                                        "idx:DIR, ")):
            with self.subTest(place=place):
                _, err = self.example("source", *self.ARGS, "--data", place, status=status)
                self.assertIn(message, err)
        _, err = self.run_program("train", "--data", "csv:points.csv", status=2)
        self.assertIn('data.source = "csv:points.csv" is unknown', err)
        # A program that adds no source still brings its data.
        _, err = self.example("codec", "--data", "digits", status=2)
        self.assertIn("data.source does not apply, because this program brings its own data", err)


class Collective(Extend):
    ARGS = ["--precision", "fp64", "--global-batch", 12, "--steps", 8, "--set", "comm.shared_memory=false"]

    def test_its_sums_have_the_bits_of_another_one_in_rank_order(self):
        for ranks in (2, 3):
            found = []
            for name in ("direct", "line"):
                out, _ = self.example("collective", *self.ARGS, "-n", ranks, "--collective", name, "--save", self.path("w.safetensors"),
                                      "--set", "checkpoint.every=8")
                found.append(tensors_of(self.path("w.safetensors")))
                self.assertIn(f"the line carried out all-reduces: {'yes' if name == 'line' else 'no'}\n", out)
                self.assertEqual(self.configuration()["comm"]["algorithm"], name)
            self.assertEqual(found[0], found[1])

    def test_its_name_is_checked_and_shown(self):
        out, _ = self.example("collective", "--help")
        self.assertRegex(re.sub(r"\s+", " ", out), r"--collective NAME .* hierarchical, line")
        _, err = self.example("collective", "--collective", "lines", status=2)
        self.assertIn('comm.algorithm = "lines" is unknown: did you mean "line"?', err)


class Defaults(Extend):
    def test_each_example_learns_without_flags(self):
        for name, args in (("exchange", ["-n", 2]), ("codec", ["-n", 2]), ("collective", ["-n", 3, "--collective", "line"])):
            self.example(name, *args, fixed=[])
            losses = [e["loss"] for e in recorded_events(self.path("run")) if e["event"] == "step"]
            self.assertLess(losses[-1], 0.3 * losses[0], name)

    def test_less_data_than_a_batch_is_refused_by_name(self):
        _, err = self.example("codec", "-n", 2, "--global-batch", 64, status=2)
        self.assertIn("train.global_batch: tensors holds 32 samples, fewer than one global batch of 64; use a smaller", err)


if __name__ == "__main__":
    main()
