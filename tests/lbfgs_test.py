"""`starling lbfgs`, as a user runs it."""
import array
import math
import pathlib
import random
import signal

from program import STARLING, ProgramTest, events_of, main, result_of

SMALL = ["--samples", 600, "--features", 6, "--ridge", 0.01]


def weights_of_npy(path):
    """Returns the numbers of an fp64 .npy file."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    begin = 10 + int.from_bytes(data[8:10], "little")
    assert b"'<f8'" in data[10:begin], data[10:begin]
    values = array.array("d")
    values.frombytes(data[begin:])
    return list(values)


def gradient_at(rows, labels, ridge, weights):
    """Returns the gradient of the objective, from its definition."""
    g = [ridge * w for w in weights[:-1]] + [0.0]
    for row, label in zip(rows, labels):
        z = sum(w * x for w, x in zip(weights, row)) + weights[-1]
        error = 1 / (1 + math.exp(-z)) - label
        for j, x in enumerate([*row, 1.0]):
            g[j] += error * x / len(rows)
    return g


class Lbfgs(ProgramTest):
    def csv(self, name="data.csv"):
        rng = random.Random(5)
        rows = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(300)]
        labels = [int(rng.random() < 1 / (1 + math.exp(-2 * r[0] + r[1] - 0.5))) for r in rows]
        path = self.path(name)
        with open(path, "w", encoding="ascii") as f:
            f.write("a,b,c,d,label\n")
            f.writelines(",".join(map(repr, r)) + f",{label}\n" for r, label in zip(rows, labels))
        return path, rows, labels

    def test_without_a_flag_it_shows_what_a_slow_rank_costs(self):
        events, _ = self.run_program("lbfgs", "--json")
        result = result_of(events)
        self.assertTrue(result["converged"])
        self.assertEqual(result["ranks"], 2)
        self.assertLess(result["scalar_bytes"] / result["iterations"], 5000)
        shown = {e["run"]: e for e in events if e["event"] == "portions"}
        self.assertEqual(len(shown), 4)
        self.assertAlmostEqual(shown["slow rank, small portions"]["bound"], 2 / 1.5)
        for e in shown.values():  # a sleep never ends early
            least = 0.4 if e["run"] == "slow rank, equal portions" else 0.2 * e["bound"] * 0.9
            self.assertGreaterEqual(e["seconds_per_evaluation"], least)
        shown_text = self.completed([STARLING, "lbfgs", "-q", "--iterations", "2"]).stdout
        self.assertIn("The best possible time is 1.333 x", shown_text)

    def test_a_csv_file_on_several_ranks(self):
        path, rows, labels = self.csv()
        results = []
        for ranks in (1, 3):
            out = self.path(f"w{ranks}.npy")
            events, _ = self.run_program("lbfgs", "--json", "-n", ranks, "--ridge", 0.1, path,
                                         "--save-weights", out)
            self.assertEqual((result_of(events)["samples"], result_of(events)["features"]), (300, 4))
            weights = weights_of_npy(out)
            self.assertLess(max(map(abs, gradient_at(rows, labels, 0.1, weights))), 2e-9)
            results.append(weights)
        self.assertLess(max(abs(a - b) for a, b in zip(*results)), 1e-7)

    def test_images_with_one_positive_class(self):
        self.run_program("data", "make", self.path("digits"), "--set", "data.source=digits",
                         "--set", "data.samples=200", "--set", "data.test_samples=20")
        source = "idx:" + self.path("digits")
        events, _ = self.run_program("lbfgs", "--json", "-n", 2, source, "--positive", 3, "--ridge", 0.1)
        self.assertEqual((result_of(events)["samples"], result_of(events)["features"]), (200, 784))
        self.assertTrue(result_of(events)["converged"])
        _, err = self.run_program("lbfgs", source, status=3)
        self.assertIn("--positive", err)

    def test_a_resumed_run_ends_with_equal_bits(self):
        whole, _ = self.run_program("lbfgs", "--json", "-n", 2, *SMALL, "--save-weights", self.path("a.npy"))
        first = ["lbfgs", "--json", "-n", 2, *SMALL, "--checkpoint", self.path("ck"), "--checkpoint-every", 3]
        self.run_program(*first, "--iterations", 5)
        rest, _ = self.run_program(*first, "--save-weights", self.path("b.npy"))
        self.assertEqual(result_of(rest)["resumed_from"], 5)
        self.assertEqual(weights_of_npy(self.path("a.npy")), weights_of_npy(self.path("b.npy")))
        for key in ("objective", "iterations", "evaluations"):
            self.assertEqual(result_of(rest)[key], result_of(whole)[key])
        _, err = self.run_program(*first, "--memory", 5, status=2)
        self.assertIn("checkpoint of another run", err)

    def test_a_run_without_a_result_leaves_the_old_weights(self):
        out = pathlib.Path(self.path("w.npy"))
        first = ["lbfgs", "--json", "-n", 2, *SMALL, "--checkpoint", self.path("ck"), "--save-weights", out]
        self.run_program(*first, "--iterations", 2)
        old = out.read_bytes()
        self.run_program(*first, "--memory", 5, status=2)  # refused by rank 0, after all ranks began
        self.assertEqual(out.read_bytes(), old)
        self.run_program(*first)
        self.assertNotEqual(out.read_bytes(), old)
        self.assertEqual([p.name for p in out.parent.glob("w.npy*")], ["w.npy"])

    def test_outputs_that_cannot_be_written_end_the_run_at_its_start(self):
        for words in (["--save-weights", self.path("nodir/w.npy")], ["--checkpoint", self.path("file")]):
            pathlib.Path(self.path("file")).write_text("x", encoding="ascii")
            for ranks in (1, 2):
                with self.subTest(words=words, ranks=ranks):
                    events, err = self.run_program("lbfgs", "--json", "-n", ranks, *SMALL, *words, status=5)
                    self.assertIn(words[1], err)
                    self.assertFalse([e for e in events if e["event"] == "iteration"])

    def test_ctrl_c_writes_a_checkpoint_and_no_weights(self):
        out = pathlib.Path(self.path("w.npy"))
        for ranks in (1, 2):
            for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
                with self.subTest(ranks=ranks, signal=number):
                    out.write_text("old", encoding="ascii")
                    folder = self.path(f"ck{ranks}{number}")
                    process = self.start("lbfgs", "--json", "-n", ranks, *SMALL, "--emulate", "compute=1s", "--checkpoint", folder,
                                         "--save-weights", out, piped=True)
                    self.assertIn('"iteration"', process.stdout.readline())
                    process.send_signal(number)
                    _, shown, _ = self.ended(process)
                    self.assertEqual(process.returncode, status)
                    result = result_of([e for e in events_of(shown) if e["event"] == "result"])
                    self.assertTrue(result["interrupted"])
                    self.assertFalse(result["converged"])
                    self.assertEqual(out.read_text(encoding="ascii"), "old")
                    rest, _ = self.run_program("lbfgs", "--json", "-n", ranks, *SMALL, "--checkpoint", folder)
                    self.assertEqual(result_of(rest)["resumed_from"], result["iterations"])
                    self.assertFalse(result_of(rest)["interrupted"])

    # Each run would remove parts that the other one's manifest names.
    def test_a_second_run_in_the_folder_of_checkpoints_is_refused(self):
        folder = self.path("ck")
        for ranks in (1, 2):
            process = self.start("lbfgs", "--json", "-n", ranks, *SMALL, "--emulate", "compute=1s", "--checkpoint", folder, "--checkpoint-every",
                                 1, piped=True)
            self.assertIn('"iteration"', process.stdout.readline())
            _, err = self.run_program("lbfgs", "-n", 2, *SMALL, "--checkpoint", folder, status=2)
            self.assertRegex(err, r"--checkpoint: .*/ck is in use by process \d+ on .*; give another --checkpoint")
            process.send_signal(signal.SIGINT)
            _, shown, _ = self.ended(process)
            self.assertEqual(process.returncode, 130)
            saved = result_of([e for e in events_of(shown) if e["event"] == "result"])["iterations"]
            rest, _ = self.run_program("lbfgs", "--json", "-n", 2, *SMALL, "--checkpoint", folder, "--iterations", saved + 1)
            self.assertEqual(result_of(rest)["resumed_from"], saved)

    def test_ctrl_c_in_the_comparison_shows_no_times(self):
        process = self.start("lbfgs", "-n", 2, *SMALL, "--compare-portions", "--emulate", "compute=1s", "--iterations", 1, piped=True)
        while "What a slow rank costs" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, shown, _ = self.ended(process)
        self.assertEqual(process.returncode, 130)
        self.assertNotIn("slow rank, small portions", shown)

    def test_what_cannot_be_is_refused(self):
        def file(name, text):
            with open(self.path(name), "w", encoding="ascii") as f:
                f.write(text)
            return self.path(name)

        for words, status, reason in ((["--ridge", "-1"], 2, "--ridge: -1"),
                                      ([self.path("absent")], 3, "cannot be opened"),
                                      ([file("empty", "")], 3, "no samples"),
                                      ([file("labels", "1,2\n3,1\n")], 3, "neither 0 nor 1"),
                                      ([file("one", "1,1\n3,1\n")], 3, "both labels must occur"),
                                      ([file("word", "1,1\n3,x\n")], 3, "line 2"), (["--memory", "0"], 2, "--memory"),
                                      (["--exchange", "gossip"], 2, "--exchange"), (["images:x"], 2, "not images:x"),
                                      (["digits"], 2, "lbfgs reads a CSV file, idx:DIR or cifar-bin:DIR, or no DATA, not digits"),
                                      ([file("far", "0,1e18,0\n1,2e18,1\n2,3e18,0\n")], 6, "scale the features"),
                                      (["-n", "2", "--emulate", "slow-rank=7:2x"], 2, "names rank 7, but the last of 2 ranks is rank 1"),
                                      ([*map(str, SMALL), "--positive", "7"], 3, "no sample has the label 7 of --positive; labels are 0, 1"),
                                      ([file("labels", "1,2\n3,1\n"), "--samples", "5"], 2, "--samples: the option describes generated data"),
                                      (["-n", "1", "--compare-portions"], 2, "two ranks")):
            with self.subTest(words=words):
                _, err = self.run_program("lbfgs", *map(str, words), status=status)
                self.assertIn(reason, err)


if __name__ == "__main__":
    main()
