"""`starling topics`, as a user runs it."""
import os
import pathlib
import random
import signal
import time

from factorize_test import numbers_of_npy
from program import STARLING, ProgramTest, events_of, main, result_of

QUICK = ["--sweeps", 12, "--warm-sweeps", 6]


def write_bag(path, documents, words):
    """Writes lists of words, which count from 0, as a bag of words."""
    entries = [(d + 1, w + 1, document.count(w)) for d, document in enumerate(documents) for w in sorted(set(document))]
    with open(path, "w", encoding="ascii") as f:
        f.write(f"{len(documents)}\n{words}\n{len(entries)}\n")
        f.writelines(f"{d} {w} {n}\n" for d, w, n in entries)


class Topics(ProgramTest):
    def bag(self, name="docword.txt", documents=300):
        """Writes documents of three topics, which have the words 0 to 9, 10 to 19, and 20 to 29."""
        rng = random.Random(4)
        bag = []
        for _ in range(documents):
            own = rng.sample(range(3), 2)  # nine tenths of the tokens have the first one
            bag.append([10 * own[rng.random() < 0.1] + rng.randrange(10) for _ in range(40)])
        path = self.path(name)
        write_bag(path, bag, 30)
        return path

    def wait_for_a_sweep(self, process, folder):
        deadline = time.monotonic() + 120
        while not (pathlib.Path(folder) / "job.json").exists():
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline, "no checkpoint in 120 s")
            time.sleep(0.01)

    def test_without_a_flag_it_finds_the_topics_of_a_generated_corpus(self):
        events, _ = self.run_program("topics", "--json")
        result = result_of(events)
        self.assertEqual((result["ranks"], result["topics"], result["sweeps"]), (2, 20, 100))
        self.assertGreaterEqual(result["topics_found"], 19)
        self.assertLess(result["perplexity"], 1.03 * result["true_perplexity"])
        self.assertGreater(result["bytes_sent"], 0)
        self.assertEqual(sum(e["event"] == "sweep" for e in events), 100)

    def test_a_person_sees_a_few_lines_of_the_sweeps(self):
        words = ["topics", "-n", 1, "--topics", 3, "--sweeps", 100, self.bag()]
        for more, least, most in (([], 21, 99), (["-v"], 100, 100)):  # a slow run has more lines, because one is due every 10 s
            out = self.completed([STARLING, *map(str, words), *more]).stdout
            lines = [line for line in out.splitlines() if line.startswith("sweep ")]
            self.assertTrue(least <= len(lines) <= most, out)
            self.assertIn("sweep  100", lines[-1])
            self.assertRegex(out, r"model [0-9.]+ k?B; rank 0 sent 0 B and received 0 B")

    def test_every_number_of_ranks_finds_the_topics_of_a_file_and_writes_them(self):
        path = self.bag()
        vocabulary = self.path("vocab.txt")
        with open(vocabulary, "w", encoding="ascii") as f:
            f.writelines(f"w{i}\n" for i in range(30))
        for ranks in (1, 2, 4):
            with self.subTest(ranks=ranks):
                out = self.path(f"out{ranks}")
                words = ["--topics", 3, "--sweeps", 40, "--vocabulary", vocabulary, "--save-topics", out]
                events, _ = self.run_program("topics", "--json", "-n", ranks, *words, path)
                result = result_of(events)
                self.assertEqual((result["ranks"], result["documents"]), (ranks, 300))
                self.assertEqual(result["bytes_sent"] > 0, ranks > 1)
                shape, phi = numbers_of_npy(out + "/phi.npy")
                self.assertEqual(shape, (30, 3))
                for k in range(3):
                    self.assertAlmostEqual(sum(phi[k::3]), 1, places=4)
                with open(out + "/topics.txt", encoding="ascii") as f:
                    lines = f.read().splitlines()
                tens = {frozenset(int(w[1:]) // 10 for w in line.split()[1:11]) for line in lines}
                self.assertEqual(tens, {frozenset([0]), frozenset([1]), frozenset([2])})
                # The scorer of exported topics gives the score of the run.
                events, _ = self.run_program("topics", "--json", "-n", ranks, path, "--score", out + "/phi.npy")
                self.assertAlmostEqual(result_of(events)["perplexity"] / result["perplexity"], 1, places=4)
                self.assertLess(result["perplexity"], 22)  # two topics of ten words each

    def test_a_model_larger_than_the_limit_of_a_rank_trains(self):
        words = ["topics", "--json", "-n", 4, *QUICK, "--topics", 200, "--documents", 3000, "--words", 2000,
                 "--alpha", 1, "--beta", 0.5, "--start", "random"]
        free, _ = self.run_program(*words)
        limit = 0.9 * result_of(free)["model_bytes"]
        limited, _ = self.run_program(*words, "--memory-limit", limit / 1e6)
        result = result_of(limited)
        self.assertGreater(result["model_bytes"], limit)
        self.assertGreater(limit, 1e6)
        self.assertGreater(result["score_bytes"], 0)
        self.assertLess(result["slice_bytes"] + result["shard_bytes"] + result["score_bytes"], limit)
        self.assertGreater(result["slices"], result_of(free)["slices"])
        _, err = self.run_program(*words, "--memory-limit", 0.5, status=2)
        self.assertIn("--memory-limit: 0.5 MB; give at least 1", err)

    def test_files_are_the_same_for_every_number_of_ranks_that_write_them(self):
        path = self.bag()
        written = []
        folder = self.path("ck")
        train = ["topics", "--json", "--topics", 3, path, *QUICK, "--checkpoint", folder]
        self.run_program(*train)
        for ranks in (1, 3):  # both go on from equal topics, and only write them
            out = self.path(f"written{ranks}")
            os.mkdir(out)
            with open(out + "/phi.npy.part", "wb") as f:
                f.write(b"of a run that was ended")
            with open(out + "/phi.npy", "wb") as f:
                f.write(b"of an earlier run")
            events, _ = self.run_program(*train, "-n", ranks, "--save-topics", out)
            self.assertEqual(result_of(events)["resumed_from"], 12)
            self.assertEqual(sorted(os.listdir(out)), ["phi.npy", "topics.txt"])
            written.append([(pathlib.Path(out) / name).read_bytes() for name in ("phi.npy", "topics.txt")])
        self.assertEqual(written[0], written[1])

    def test_more_than_2000_topics_are_not_compared(self):
        events, _ = self.run_program("topics", "--json", "--topics", 2001, "--words", 60, "--documents", 60, "--sweeps", 1)
        self.assertNotIn("topics_found", result_of(events))
        out = self.completed([STARLING, "topics", "--topics", "2001", "--words", "60", "--documents", "60", "--sweeps",
                              "1"]).stdout
        self.assertIn("not compared with the true ones, because there are more than 2000", out)

    def test_a_small_corpus_that_announces_many_tokens_is_named(self):
        # A header and a line announce 8 GB of tokens.
        path = self.path("many.txt")
        with open(path, "w", encoding="ascii") as f:
            f.write("1\n2\n1\n1 1 2000000000\n")
        done = self.completed(["bash", "-c", f"ulimit -v 4000000; exec '{STARLING}' topics -n 1 '{path}'"])
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("many.txt, line 4: 2000000000 tokens up to here; a file may have 16777216", done.stderr)

    def test_ctrl_c_writes_a_checkpoint_and_the_resumed_run_has_equal_topics(self):
        path = self.bag(documents=2000)
        found = []
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                folder = self.path(f"ck{ranks}")
                words = ["topics", "--json", "-n", ranks, "--topics", 3, path]
                process = self.start(*words, "--sweeps", 10**9, "--checkpoint", folder, "--checkpoint-every", 3,
                                     piped=True)
                self.wait_for_a_sweep(process, folder)
                process.send_signal(signal.SIGINT)
                _, shown, _ = self.ended(process)
                self.assertEqual(process.returncode, 130)
                self.assertIn('"interrupted":true', shown)
                sweeps = result_of(events_of(shown))["sweeps"] + 5
                for name, more in ((f"a{ranks}", ["--checkpoint", folder]), (f"b{ranks}", [])):
                    os.mkdir(self.path(name))
                    events, _ = self.run_program(*words, "--sweeps", sweeps, "--save-topics", self.path(name), *more)
                    self.assertEqual(result_of(events)["resumed_from"], sweeps - 5 if more else -1)
                    found.append(numbers_of_npy(self.path(name) + "/phi.npy"))
                self.assertEqual(found[-1], found[-2])
                _, err = self.run_program(*words, "--checkpoint", folder, "--alpha", 3, status=2)
                self.assertIn("alpha is 0.1 there and 3 here", err)

    def test_what_cannot_be_is_refused(self):
        path = self.bag()
        with open(self.path("empty"), "w", encoding="ascii") as f:
            f.write("3\n4\n0\n")
        with open(self.path("one"), "w", encoding="ascii") as f:
            f.write("2\n4\n2\n1 1 5\n2 2 1\n")
        write_bag(self.path("singles"), [[0]] * 40, 4)
        for name, text in (("short", "3\n4\n"), ("word", "2\n4\n1\n1 5 1\n"), ("text", "2\n4\n1\n1 x 1\n"),
                           ("fewer", "2\n4\n9\n1 1 1\n"), ("other", "1\n7\n1\n1 1 1\n"), ("phi", "no array")):
            with open(self.path(name), "w", encoding="ascii") as f:
                f.write(text)
        cases = (([self.path("absent")], 3, "cannot be opened"),
                 ([self.path("short")], 3, "first three lines"),
                 ([self.path("word")], 3, "line 4: word 5; there are the words 1 to 4"),
                 ([self.path("text")], 3, "line 4: 3 whole numbers"),
                 ([self.path("fewer")], 3, "announces 9 entries, and the file has 1"),
                 ([path, "--held-out", self.path("other")], 3, "both need one vocabulary"),
                 ([path, "--score", self.path("phi")], 3, "no .npy file"),
                 ([path, "--vocabulary", self.path("word"), "--save-topics", self.dir, "--sweeps", 1], 3, "4 lines"),
                 ([path, "--vocabulary", self.path("word")], 2, "give --save-topics, too"),
                 ([self.path("one")], 2, "0.05 of 2 documents is less than one document; use a larger"),
                 (["-n", 2, self.path("one")], 2, "0.05 of 2 documents is less than one document"),
                 ([self.path("singles")], 2, "0.05 of 40 documents holds out no document with two tokens; use a larger"),
                 ([self.path("empty")], 3, "empty: no document has a token; give documents with words"),
                 (["-n", 2, self.path("empty")], 3, "empty: no document has a token"),
                 ([self.path("empty"), "--test-share", 0], 3, "no document for training has a token"),
                 ([self.path("one"), "--held-out", self.path("empty")], 3, "no document has two tokens"),
                 ([path, "--words", 7], 2, "--words: DOCWORD has its own words"),
                 ([path, "--documents", 7], 2, "--documents: DOCWORD has its own documents"),
                 (["--sampler", "saber", "--cycles", 3], 2, "--cycles: the sampler saber makes no proposals"),
                 (["--checkpoint-every", 3], 2, "give --checkpoint, too"),
                 ([path, "--held-out", path, "--test-share", 0.1], 2, "--held-out gives the documents"),
                 (["--score-every", 3, "--test-share", 0], 2, "--score-every: no document is held out"),
                 ([path, "--score", "phi.npy", "--test-share", 0], 2, "--score: no document is held out"),
                 ([path, "--score", "phi.npy", "--sweeps", 3], 2, "--sweeps: --score samples nothing"),
                 ([path, "--score", "phi.npy", "--save-topics", self.dir], 2, "--save-topics: --score samples nothing"),
                 (["--documents", 1 << 32], 2, "generate fewer documents"),
                 (["--beta", "1e-9"], 2, "--beta"),
                 (["--sampler", "gibbs"], 2, "write light or saber"),
                 (["--start", "warm"], 2, "write anchors or random"),
                 (["--topics", "0"], 2, "--topics: 0 is too small; give a whole number from 1 to 65535"),
                 (["--topics", "65536"], 2, "--topics: 65536 is too large; give a whole number from 1 to 65535"),
                 (["--topics", "3.5"], 2, "--topics: 3.5 is no whole number; give one from 1 to 65535"),
                 (["--topics", "abc"], 2, "--topics: abc is no whole number"),
                 (["--sweeps", "0"], 2, "--sweeps: 0 is too small; give a whole number of at least 1"),
                 (["--sweeps", "99999999999999999999"], 2, "is too large; give a whole number of at most 1099511627776"),
                 (["--sweeps", "1e3"], 2, "write the digits of a whole number"),
                 (["--alpha", "0"], 2, "--alpha"),
                 (["--save-topics", self.path("no/where")], 2, "not a folder"),
                 (["--exchange", "gossip"], 2, "--exchange"))
        for words, status, reason in cases:
            with self.subTest(words=words):
                _, err = self.run_program("topics", *words, status=status)
                self.assertIn(reason, err)


if __name__ == "__main__":
    main()
