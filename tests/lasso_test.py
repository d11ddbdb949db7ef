"""`starling lasso`, as a user runs it."""
import pathlib
import random
import signal

from lbfgs_test import weights_of_npy
from program import STARLING, ProgramTest, events_of, main, result_of

SMALL = ["--samples", 100, "--features", 200, "--block", 20, "--nonzeros", 10]


class Lasso(ProgramTest):
    def test_without_a_flag_it_compares_the_schedules(self):
        events, _ = self.run_program("lasso", "--json")
        result = result_of(events)
        self.assertTrue(result["converged"])
        self.assertEqual(result["ranks"], 2)
        shown = {e["schedule"]: e for e in events if e["event"] == "schedule"}
        self.assertEqual(shown["unchecked"]["end"], "diverged")
        for word in ("strads", "active-set", "cyclic", "random"):
            self.assertEqual(shown[word]["end"], "reached the target", word)
        for other in ("cyclic", "random"):
            self.assertGreaterEqual(shown[other]["updates"], 2 * shown["strads"]["updates"])

    def test_a_csv_file_on_several_ranks(self):
        rng = random.Random(3)
        rows = [[rng.gauss(0, 1) for _ in range(6)] for _ in range(50)]
        path = self.path("data.csv")
        with open(path, "w", encoding="ascii") as f:
            f.writelines(",".join(map(repr, [*r, 2 * r[1] - r[4] + 3])) + "\n" for r in rows)
        found = []
        for ranks in (1, 3):
            out = self.path(f"w{ranks}.npy")
            events, _ = self.run_program("lasso", "--json", "-n", ranks, "--lambda", 0.01,
                                         "--tolerance", 1e-12, path, "--save-weights", out)
            self.assertEqual((result_of(events)["samples"], result_of(events)["features"]), (50, 6))
            found.append(weights_of_npy(out))
        self.assertLess(max(abs(a - b) for a, b in zip(*found)), 1e-8)
        for got, expected in zip(found[0], (0, 2, 0, 0, -1, 0, 3)):
            self.assertAlmostEqual(got, expected, delta=0.05)

    def test_a_resumed_run_ends_with_equal_bits(self):
        words = ["lasso", "--json", "-n", 2, *SMALL, "--schedule", "strads", "--tolerance", 1e-10]
        self.run_program(*words, "--save-weights", self.path("a.npy"))
        first = [*words, "--checkpoint", self.path("ck"), "--checkpoint-every", 5]
        self.run_program(*first, "--max-updates", 1000)
        rest, _ = self.run_program(*first, "--save-weights", self.path("b.npy"))
        self.assertGreater(result_of(rest)["resumed_from"], 0)
        self.assertEqual(weights_of_npy(self.path("a.npy")), weights_of_npy(self.path("b.npy")))
        _, err = self.run_program(*first, "--rho", 0.3, status=2)
        self.assertIn("checkpoint of another run", err)

    def test_ctrl_c_writes_a_checkpoint_and_no_weights(self):
        out = pathlib.Path(self.path("w.npy"))
        out.write_text("old", encoding="ascii")
        # With tolerance 0, the cyclic schedule goes on even if no weight changes any more.
        words = ["lasso", "--json", "-n", 2, *SMALL, "--schedule", "cyclic", "--tolerance", 0,
                 "--checkpoint", self.path("ck")]
        process = self.start(*words, "--save-weights", out, piped=True)
        self.assertIn('"pass"', process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, shown, _ = self.ended(process)
        self.assertEqual(process.returncode, 143)
        result = result_of([e for e in events_of(shown) if e["event"] == "result"])
        self.assertTrue(result["interrupted"])
        self.assertEqual(out.read_text(encoding="ascii"), "old")
        rest, _ = self.run_program(*words[:-4], *words[-2:])
        self.assertEqual(result_of(rest)["resumed_from"], result["rounds"])

    def test_with_an_option_of_its_own_it_compares_nothing(self):
        events, _ = self.run_program("lasso", "--json", *SMALL, "--max-updates", 640)
        self.assertEqual(result_of(events)["end"], "ended after the given number of updates")
        self.assertEqual([e for e in events if e["event"] == "schedule"], [])

    def test_the_table_names_a_schedule_before_it_runs(self):
        lines = self.completed([STARLING, "lasso"]).stdout.splitlines()
        rows = lines[next(i for i, line in enumerate(lines) if line.startswith("Updates that each schedule needs")) + 1:]
        for number, word in enumerate(("strads", "active-set", "cyclic", "random", "unchecked"), 1):
            at = rows.index(f"  {number} of 5: {word} …")
            self.assertEqual(rows[at + 1].split()[0], word, rows)

    def test_one_sample_has_singular_words_and_one_rank(self):
        out = self.completed([STARLING, "lasso", "-n", "1", "--samples", "1", "--features", "1", "--block", "1", "--nonzeros", "1"]).stdout
        self.assertIn("1 sample, 1 feature, 1 rank, 64 updates per round", out)
        path = pathlib.Path(self.path("one.csv"))
        path.write_text("1,2\n", encoding="ascii")
        _, err = self.run_program("lasso", path, status=3)
        self.assertIn("one.csv: 1 sample, so that a rank has none; use at most 1 rank, for example -n 1", err)

    def test_what_cannot_be_is_refused(self):
        path = pathlib.Path(self.path("bad.npy"))
        path.write_bytes(b"\x93NUMPY\x01\x00")
        for words, status, reason in ((["--schedule", "best"], 2, "--schedule"), (["--rho", "0"], 2, "--rho"),
                                      (["--nonzeros", "9", "--features", "8"], 2, "--nonzeros"),
                                      (["--target", "nan"], 2, "--target"),
                                      (["--lambda", "-1"], 2, "--lambda: -1 is too small; give a number of at least 0"),
                                      (["--rho", "x"], 2, "--rho: x is not a number; give one from 0 to 1"),
                                      ([path, "--samples", "5"], 2, "--samples: the option describes generated data, which DATA replaces"),
                                      ([path, "--noise", "2"], 2, "--noise: the option"),
                                      (["--lambda", "0.05", "--lambda-share", "0.2"], 2, "--lambda-share: --lambda gives the penalty"),
                                      (["--exchange", "gossip"], 2, "--exchange"),
                                      ([self.path("absent")], 3, "cannot be opened"), ([path], 3, "header"),
                                      (["--schedule", "unchecked"], 6, "diverged")):
            with self.subTest(words=words):
                _, err = self.run_program("lasso", *words, status=status)
                self.assertIn(reason, err)


if __name__ == "__main__":
    main()
