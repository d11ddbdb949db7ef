"""`starling factorize` and `starling bench scaling`, as a user runs them."""
import array

from program import SMALL, STARLING, ProgramTest, main, result_of

MADE = ["--rows", 400, "--columns", 300, "--entries", 12000, "--epochs", 6, "--lr", 0.05]


def numbers_of_npy(path):
    """Returns (shape, numbers) of an fp32 .npy file."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    begin = 10 + int.from_bytes(data[8:10], "little")
    assert begin % 64 == 0
    header = eval(data[10:begin], {"__builtins__": {}})  # noqa: S307  (a dictionary of three constants)
    assert header["descr"] == "<f4" and not header["fortran_order"], header
    values = array.array("f")
    values.frombytes(data[begin:])
    return header["shape"], values


class Factorize(ProgramTest):
    def factorize(self, name, *args):
        folder = self.path(name)
        events, _ = self.run_program("factorize", "--json", *MADE, "--save-factors", folder, *args)
        self.assertEqual(sum(e["event"] == "epoch" for e in events), 6)
        return result_of(events), numbers_of_npy(folder + "/W.npy"), numbers_of_npy(folder + "/H.npy")

    def test_without_a_flag_two_ranks_factorize_a_generated_matrix(self):
        events, _ = self.run_program("factorize", "--json")
        result = result_of(events)
        self.assertEqual((result["ranks"], result["epochs"], result["form"]), (2, 20, "rotation"))
        self.assertEqual(result["bytes_sent"], 20 * 2 * 1000 * 16 * 4)  # epochs · ranks · H
        self.assertLess(result["test_rmse"], 1.3)  # the deviation of the entries

    def test_both_forms_learn_and_write_the_factors(self):
        single, (shape_w, w1), (shape_h, h1) = self.factorize("one", "-n", 1)
        self.assertEqual((shape_w, shape_h), ((400, 16), (300, 16)))
        self.assertEqual(single["ranks"], 1)
        rotated, (_, w3), (_, h3) = self.factorize("three", "-n", 3)
        self.assertEqual((len(w3), len(h3)), (len(w1), len(h1)))
        self.assertTrue(all(x == x and x != 0 for x in w3) and all(x == x and x != 0 for x in h3))
        stream = 4096 * 12  # bytes of entries that are read at a time
        self.assertLess(max(rotated["peak_bytes"]) - stream, 0.4 * rotated["matrix_bytes"])
        tables, (_, wt), _ = self.factorize("tables", "-n", 2, "--exchange", "parameter-server", "--staleness", "1")
        self.assertEqual(len(wt), len(w1))
        self.assertEqual(tables["form"], "tables")
        for result in (single, rotated, tables):
            self.assertLess(result["train_rmse"], 0.6)
            self.assertLess(result["test_rmse"], 0.8)
        self.assertEqual(rotated["bytes_sent"], 6 * 3 * 300 * 16 * 4)  # epochs · ranks · H
        # The files contain the factors: an element of their product is near the entries' mean, which is about
        # 3.
        self.assertAlmostEqual(sum(w1[i] * h1[i] for i in range(16)), 3, delta=3)

    def test_the_rotation_updates_rows_by_priority(self):
        words = ["factorize", "--json", *MADE, "-n", 2, "--checkpoint", self.path("ck"), "--priority"]
        events, _ = self.run_program(*words, 0.25)
        result = result_of(events)
        self.assertEqual(result["row_updates"], 400 + 5 * 100)  # the first epoch updates all rows
        self.assertLess(result["steps"], 6 * result["ratings"])
        self.assertLess(result["train_rmse"], 1.2)  # 1.3 is the deviation of the entries
        _, err = self.run_program(*words, 0.5, status=2)
        self.assertIn("priority is 0.25 there", err)

    def test_tables_go_on_from_a_checkpoint(self):
        words = ["factorize", "--json", *MADE[:6], "--lr", 0.05, "-n", 2, "--checkpoint", self.path("ck")]
        tables = ["--exchange", "parameter-server"]
        first, _ = self.run_program(*words, *tables, "--epochs", 2)
        rest, _ = self.run_program(*words, *tables, "--epochs", 4)
        self.assertEqual((result_of(first)["epochs"], result_of(rest)["epochs"]), (2, 4))
        self.assertEqual(result_of(rest)["resumed_from"], 2)
        self.assertEqual([e["epoch"] for e in rest if e["event"] == "epoch"], [3, 4])
        self.assertLess(result_of(rest)["train_rmse"], result_of(first)["train_rmse"])
        _, err = self.run_program(*words, "--epochs", 6, status=2)  # by the rotation
        self.assertIn("checkpoint of another run", err)

    def test_few_entries_have_no_test_entries_and_small_sizes(self):
        path = self.path("ratings.txt")
        with open(path, "w", encoding="ascii") as f:
            f.write("0 0 5\n1 1 3\n")
        words = ["factorize", "-n", "1", "--test-share", "1e-9", "--epochs", "1", path]
        out = self.completed([STARLING, *words]).stdout
        self.assertRegex(out, r"rmse [0-9.]+, there are no test entries; .* at most [0-9.]+ kB, and all entries and factors are 280 B")
        events, _ = self.run_program(*words, "--json")
        self.assertEqual(result_of(events)["test_rmse"], -1)

    def test_what_cannot_be_is_refused(self):
        path = self.path("ratings.csv")
        with open(path, "w", encoding="ascii") as f:
            f.write("user,item,rating\n0,0,5\n1,1,3\n2,oops,1\n")
        for words, status, reason in (([path], 3, "line 4"), ([self.path("absent")], 3, "cannot be opened"),
                                      (["--memory-limit", "0.02"], 1, "limit of 20000 bytes"),
                                      (["--exchange", "gossip"], 2, "parameter-server"), (["--factors", "0"], 2, "factors"),
                                      (["--exchange", "parameter-server", "--priority", "0.5"], 2,
                                       "--priority"),
                                      (["--priority", "nan"], 2, "--priority"),
                                      (["--epochs", "1e300"], 2, "--epochs"),
                                      (["--rows", "1", "-n", "2"], 2, "ranks"),
                                      ([path, "--rows", "5"], 2, "--rows: the option describes generated data, which RATINGS replaces"),
                                      (["--save-factors", self.path("no/where")], 2, "not a folder")):
            with self.subTest(words=words):
                _, err = self.run_program("factorize", *words, status=status)
                self.assertIn(reason, err)


class Scaling(ProgramTest):
    def test_a_table_of_ranks_and_where_the_time_goes(self):
        words = ["bench", "scaling", "--counts", "1,2", "--bench-steps", 8, "--compute", 100, *SMALL]
        events, _ = self.run_program(*words, "--json")
        self.assertEqual(events.pop(), {"event": "result", "objects": 6})
        self.assertEqual([(e["series"], e["ranks"]) for e in events],
                         [(s, n) for s in ("alone", "slow link", "slow link, straggler") for n in (1, 2)])
        for e in events:
            self.assertGreaterEqual(e["compute_s"], 0.1)
            self.assertGreaterEqual(e["step_s"], 0.1)
            self.assertAlmostEqual(e["samples_per_s"] * e["step_s"] / e["global_batch"], 1, delta=0.3)
        straggler = events[-1]
        self.assertIn("slow-rank=1:2x", straggler["emulate"])
        self.assertGreater(straggler["waiting_s"], 0.02)  # half of the ranks wait 100 ms in each step
        self.assertEqual(events[0]["scaling"], "one rank")
        self.assertNotEqual(straggler["scaling"], "linear")
        words[words.index("--compute") + 1] = 0  # the actual time
        events, _ = self.run_program(*words[:3], "1", *words[4:], "--straggler", "", "--json")
        self.assertEqual([e["emulated_compute"] for e in events[:-1]], [False, False])
        self.assertGreater(events[0]["samples_per_s"], 0)
        _, err = self.run_program("bench", "scaling", "--counts", "2,4", status=2)
        self.assertIn("--counts", err)
        _, err = self.run_program("bench", "scaling", "--link", "nonsense", status=2)
        self.assertIn("emulat", err)


if __name__ == "__main__":
    main()
