"""`starling mcmc`, as a user runs it, and a program with a posterior of its own."""
import math
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

from lbfgs_test import weights_of_npy
from program import BUILD, COPIES, STARLING, ProgramTest, environment, main, result_of

OWN = str(BUILD / "tests" / "mcmc_program")
LONG = ["--draws", 10**9]
ESTIMATORS = ["average", "nonparametric", "parametric", "pool", "semiparametric", "semiparametric-w"]


def known_moments():
    """Returns the mean and the deviation of the posterior of tests/mcmc_program.cc, by a sum over a grid."""
    counts, n = sum((i * 7) % 6 for i in range(400)), 400
    grid = [0.5 + i * 1e-4 for i in range(8000)]
    logs = [counts * x - n * math.exp(x) - x * x / 2 for x in grid]
    weights = [math.exp(v - max(logs)) for v in logs]
    mean = sum(w * x for w, x in zip(weights, grid)) / sum(weights)
    return mean, math.sqrt(sum(w * (x - mean)**2 for w, x in zip(weights, grid)) / sum(weights))


class Mcmc(ProgramTest):
    def wait_for_a_checkpoint(self, process, folder):
        """Waits until a sub-posterior has a whole checkpoint in the folder."""
        deadline = time.monotonic() + 120
        while not list(pathlib.Path(folder).glob("*/job.json")):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline, "no checkpoint in 120 s")
            time.sleep(0.01)

    def csv(self):
        rng = random.Random(6)
        path = self.path("data.csv")
        with open(path, "w", encoding="ascii") as f:
            for _ in range(2000):
                x = [rng.gauss(0, 1) for _ in range(2)]
                label = int(rng.random() < 1 / (1 + math.exp(-0.4 * x[0] + 0.3 * x[1] - 0.2)))
                f.write(f"{x[0]!r},{x[1]!r},{label}\n")
        return path

    def test_without_a_flag_it_shows_the_known_posterior(self):
        events, _ = self.run_program("mcmc", "--json")
        result = result_of(events)
        self.assertEqual((result["ranks"], result["sub_posteriors"], result["sampling_bytes"]), (2, 4, 0))
        sent = result["start_bytes"] + result["gathering_bytes"]
        self.assertEqual(sent, 24 * 2 + 64 + 2 * (56 + 8 * 2000 * 2))
        d = len(result["mean"])
        for j in range(d):
            deviation = math.sqrt(result["known_covariance"][j * d + j])
            self.assertLess(abs(result["mean"][j] - result["known_mean"][j]), 0.15 * deviation)
            self.assertAlmostEqual(math.sqrt(result["covariance"][j * d + j]) / deviation, 1, delta=0.1)
        shown = {e["estimator"]: e for e in events if e["event"] == "estimator"}
        self.assertEqual(sorted(shown), ESTIMATORS)
        self.assertLess(shown["semiparametric"]["mean_error"], 0.5)
        # The draws of sub-posteriors are no posterior.
        self.assertGreater(shown["pool"]["deviation_error"], 0.5)
        shown_text = self.completed([STARLING, "mcmc", "-n", "1", "--draws", "200"]).stdout
        self.assertIn("and sent 0 bytes", shown_text)
        self.assertIn("combined by the parametric estimator", shown_text)

    def test_draws_of_a_csv_file_do_not_depend_on_the_ranks(self):
        path = self.csv()
        found = []
        for ranks in (1, 3):
            out = self.path(f"d{ranks}.npy")
            words = ["-n", ranks, "--sub-posteriors", 3, "--draws", 300, "--warmup", 200, path]
            words += ["--combine", "semiparametric", "--save-draws", out]
            events, _ = self.run_program("mcmc", "--json", *words)
            result = result_of(events)
            self.assertEqual((result["samples"], result["parameters"]), (2000, 3))
            self.assertEqual(result["estimator"], "semiparametric")
            found.append(weights_of_npy(out))
            self.assertEqual(len(found[-1]), 900)
            for j in range(3):
                self.assertAlmostEqual(sum(found[-1][j::3]) / 300, result["mean"][j], places=9)
        self.assertEqual(*found)
        for value, truth in zip(result["mean"], (0.4, -0.3, 0.2)):
            self.assertAlmostEqual(value, truth, delta=0.25)  # five posterior deviations

    def test_ctrl_c_writes_checkpoints_and_the_resumed_run_has_equal_bits(self):
        out = pathlib.Path(self.path("d.npy"))
        for ranks, sampler in ((1, "hmc"), (2, "random-walk")):
            with self.subTest(ranks=ranks):
                folder = self.path(f"ck{ranks}")
                first = ["mcmc", "--json", "-n", ranks, "--sub-posteriors", 2, "--sampler", sampler,
                         "--checkpoint", folder]
                out.write_text("old", encoding="ascii")
                words = [*first, *LONG, "--checkpoint-every", 5000, "--save-draws", out]
                process = self.start(*words, piped=True)
                self.wait_for_a_checkpoint(process, folder)
                _, err = self.run_program(*first, "--draws", 500, status=2)
                self.assertRegex(err, rf"--checkpoint: .*/ck{ranks} is in use by process \d+ on ")
                process.send_signal(signal.SIGINT)
                _, shown, _ = self.ended(process)
                self.assertEqual(process.returncode, 130)
                self.assertIn('"interrupted":true', shown)
                self.assertEqual(out.read_text(encoding="ascii"), "old")
                rest, _ = self.run_program(*first, "--draws", 500, "--save-draws", out)
                self.assertGreater(result_of(rest)["chains"][0]["resumed_from"], 0)
                resumed = weights_of_npy(out)
                self.run_program(*first[:-2], "--draws", 500, "--save-draws", out)
                self.assertEqual(weights_of_npy(out), resumed)
                _, err = self.run_program(*first, "--draws", 500, "--warmup", 10, status=2)
                self.assertIn("warmup is 1000 there and 10 here", err)

    def own_words(self, *args, ranks=2):
        """Returns the words of a call of the program of a user, whose run folder does not exist."""
        shutil.rmtree(self.path("run"), ignore_errors=True)
        return [*map(str, [OWN, "-n", ranks, *COPIES, "--run-dir", self.path("run"), "--", *args])]

    def own(self, *args, status=0, ranks=2):
        words = self.own_words(*args, ranks=ranks)
        done = self.completed(words)
        self.assertEqual(done.returncode, status, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done

    def result_line(self, out):
        """Returns the line with the moments. Other lines of stdout are messages of the run."""
        lines = re.findall(r"^mean .*$", out, re.M)
        self.assertEqual(len(lines), 1, out)
        return lines[0]

    def test_a_posterior_of_a_program(self):
        mean, deviation = known_moments()
        shown = []
        for ranks, words in ((1, []), (2, []), (2, ["--walk"])):
            line = self.result_line(self.own("--draws", 20000, *words, ranks=ranks).stdout)
            found = re.fullmatch(r"mean (\S+) deviation (\S+) sampling bytes (\d+)", line)
            self.assertLess(abs(float(found[1]) - mean), 0.1 * deviation)
            self.assertAlmostEqual(float(found[2]) / deviation, 1, delta=0.05)
            self.assertEqual(found[3], "0")
            shown.append(line)
        self.assertEqual(shown[0], shown[1])

    def test_a_posterior_that_is_nan_is_refused(self):
        for words in ([], ["--walk"]):
            with self.subTest(words=words):
                err = self.own("--nan", *words, status=6).stderr
                self.assertIn("sub-posterior 3 of 4: the logarithm of the density is", err)
                self.assertIn("return -infinity where the density is 0", err)

    def test_a_dry_run_of_a_program_writes_no_checkpoint(self):
        folder = pathlib.Path(self.path("ck"))
        words = self.own_words("--draws", 500, "--checkpoint", folder)
        words.insert(1, "--dry-run")
        done = self.completed(words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.result_line(done.stdout)
        self.assertFalse(folder.exists())

    def test_ctrl_c_in_a_program_of_a_user(self):
        folder = self.path("ck")
        # pylint: disable-next=consider-using-with
        process = subprocess.Popen(self.own_words(*LONG, "--checkpoint", folder), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, cwd=self.dir, env=environment())
        self.addCleanup(self.end, process)
        self.wait_for_a_checkpoint(process, folder)
        process.send_signal(signal.SIGTERM)
        _, out, err = self.ended(process)
        self.assertEqual(process.returncode, 143, out + err)
        self.assertNotRegex(out, r"(?m)^mean ")
        resumed = self.own("--draws", 2000, "--checkpoint", folder).stdout
        whole = self.own("--draws", 2000).stdout
        self.assertEqual(self.result_line(resumed), self.result_line(whole))

    def test_a_dry_run_of_the_command_counts_ranks(self):
        for ranks, text in ((1, "on 1 rank"), (2, "on 2 ranks")):
            done = self.completed([STARLING, "mcmc", "--dry-run", "-n", str(ranks)])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, rf"would sample the posterior of generated samples {text}\b(?!s)")

    def test_what_cannot_be_is_refused(self):
        pathlib.Path(self.path("labels")).write_text("1,2\n3,1\n", encoding="ascii")
        cases = ((["--model", "gpt"], 2, "write gaussian or logistic"),
                 (["--sampler", "gibbs"], 2, "write hmc or random-walk"),
                 (["--combine", "mean"], 2, "semiparametric-w, average, pool"),
                 (["--ridge", "0"], 2, "--ridge"),
                 (["-n", "3", "--sub-posteriors", "2"], 2, "at least one per rank"),
                 (["--draws", "1"], 2, "--draws"),
                 (["--model", "gaussian", "x.csv"], 2, "leave out DATA"),
                 ([self.path("absent")], 3, "cannot be opened"),
                 ([self.path("labels")], 3, "neither 0 nor 1"),
                 ([self.path("labels"), "--features", "5"], 2, "--features: the option describes generated data, which DATA replaces"),
                 (["digits"], 2, "mcmc reads a CSV file"),
                 (["--exchange", "gossip"], 2, "--exchange"),
                 (["--save-draws", self.path("no/d.npy")], 5, "no/d.npy"),
                 (["--features", "40", "--draws", "20"], 6, "take more draws"))
        for words, status, reason in cases:
            with self.subTest(words=words):
                _, err = self.run_program("mcmc", *words, status=status)
                self.assertIn(reason, err)


if __name__ == "__main__":
    main()
