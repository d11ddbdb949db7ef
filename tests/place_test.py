"""`starling place`, as a user runs it."""
import json
import pathlib
import signal

from program import ProgramTest, main, result_of

SMALL = ["--updates", 20, "--moves", 400]
# Two groups that can run at the same time, and a device of half the speed.
FORK = {"groups": [{"name": "first", "forward_s": 0.001, "backward_s": 0.002, "output_bytes": 1000},
                   {"name": "left", "forward_s": 0.02, "backward_s": 0.04, "inputs": ["first"]},
                   {"name": "right", "forward_s": 0.01, "backward_s": 0.02, "inputs": ["first"]},
                   {"name": "join", "forward_s": 0.001, "backward_s": 0.002, "inputs": ["left", "right"]}],
        "devices": [{"speed": 1}, {"speed": 0.5}],
        "link": {"latency_s": 0.0001, "bytes_per_s": 1e9}}


def rows_of(events, graph):
    return {e["method"]: e for e in events if e["event"] == "placement" and e["graph"] == graph}


class Place(ProgramTest):
    def graph(self, value, name="graph.json"):
        path = pathlib.Path(self.path(name))
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="ascii")
        return str(path)

    def test_without_a_flag_it_places_two_graphs_and_measures_one(self):
        events, _ = self.run_program("place", "--json")
        result = result_of(events)
        self.assertEqual((result["graph"], result["ranks"]), ("gpt", 2))
        towers = rows_of(events, "towers")
        self.assertTrue([e for e in events if e["event"] == "graph"][0]["exhaustive"])
        self.assertLessEqual(towers["policy gradient"]["to_best"], 1.15)  # depends on the workers' speeds
        self.assertLessEqual(towers["annealing"]["to_best"], 1.05)
        self.assertLess(towers["policy gradient"]["seconds"], towers["balanced cut"]["seconds"])
        gpt = rows_of(events, "gpt")
        self.assertLessEqual(gpt["policy gradient"]["to_best"], 1.15)
        self.assertLess(gpt["policy gradient"]["seconds"], gpt["balanced cut"]["seconds"])
        self.assertIn("dynamic programming", gpt)
        measured = [e for e in events if e["event"] == "measured"]
        self.assertGreaterEqual(len(measured), 2)
        for e in measured:  # a wait never ends early; the time above it depends on the machine
            self.assertGreater(e["paced_s"], 0)
            self.assertGreaterEqual(e["measured_s"], e["paced_s"])

    def test_a_graph_in_a_file(self):
        path = self.graph(FORK)
        for ranks in (1, 2):
            events, _ = self.run_program("place", "--json", "-n", ranks, *SMALL, "--micro-batches", 1, path)
            rows = rows_of(events, path)
            self.assertEqual(rows["exhaustive search"]["devices"], [0, 0, 1, 0])
            self.assertAlmostEqual(rows["exhaustive search"]["to_best"], 1)
            self.assertEqual(rows["annealing"]["devices"], [0, 0, 1, 0])
            self.assertNotIn("dynamic programming", rows)
            if ranks == 1:
                self.assertLessEqual(rows["policy gradient"]["to_best"], 1.05)
            result = result_of(events)
            self.assertEqual(result["ranks"], ranks)
            if ranks > 1:  # a push and a pull of fp32 values per update, with their heads
                least = 2 * 4 * result["policy_parameters"] * 20
                self.assertGreater(result["policy_bytes"], 0.95 * least)
                self.assertLess(result["policy_bytes"], 1.3 * least)

    def test_one_rank_repeats_its_result(self):
        path = self.graph(FORK)
        runs = [self.run_program("place", "--json", "-n", 1, "--seed", 3, *SMALL, path)[0] for _ in range(2)]
        self.assertEqual(*runs)

    def test_the_graph_of_a_model_is_kept(self):
        out = self.path("lenet5.json")
        events, _ = self.run_program("place", "--json", "-n", 1, *SMALL, "lenet5", "--save-graph", out)
        groups = json.loads(pathlib.Path(out).read_text(encoding="ascii"))["groups"]
        self.assertEqual(len(groups), result_of(events)["groups"])
        self.assertEqual(sum(g["state_bytes"] for g in groups), 3 * 4 * 61706)
        self.run_program("place", "--json", "-n", 1, *SMALL, out)
        events, _ = self.run_program("place", "--json", "-n", 1, *SMALL, "googlenet", "--branches",
                                     "--pixels", 32, "--samples", 4)
        self.assertGreater(result_of(events)["groups"], 13)

    def test_memory_limits_are_obeyed(self):
        value = json.loads(json.dumps(FORK))
        for group in value["groups"]:
            group["state_bytes"] = 100
        value["devices"] = [{"speed": 1, "memory_bytes": 210}, {"speed": 0.5, "memory_bytes": 210}]
        value["groups"][0]["output_bytes"] = 1
        path = self.graph(value)
        events, _ = self.run_program("place", "--json", "-n", 1, *SMALL, path)
        rows = rows_of(events, path)
        self.assertFalse(rows["fastest device"]["fits"])
        self.assertNotIn("seconds", rows["fastest device"])
        self.assertEqual(sorted(rows["exhaustive search"]["devices"]), [0, 0, 1, 1])

    def test_wrong_input_is_refused(self):
        folder = pathlib.Path(self.path("folder.json"))
        folder.mkdir()
        named = self.graph(FORK, "named.json")  # has devices of its own
        for words, part in ((["nonet"], "nonet"), (["--devices", "1,x"], "--devices"),
                            (["towers", "--measure"], "--measure"),
                            (["gpt", "--measure", "--devices", "2"], "speed"),
                            (["--devices", "1,2"], "speed"),
                            (["gpt", "--measure", "--branches"], "--branches"),
                            (["towers", "--branches"], "--branches"), (["--samples", 7], "--samples"),
                            (["googlenet", "--pixels", 16], "pixels"), (["gpt", "--rounds", 3], "--measure"),
                            (["--save-graph", self.path("out.json")], "MODEL"),
                            ([named, "--devices", "1"], "--devices"), ([named, "--latency", 3], "--latency"),
                            ([named, "--bandwidth", 3], "--bandwidth"),
                            ([self.graph("{")], "is no JSON"),
                            ([self.graph("[" * 100_000, "deep.json")], "nested deeper"),
                            ([self.graph({"groups": []}, "none.json")], "groups"),
                            ([self.graph({"groups": [{}]}, "zero.json")], "take 0 s"),
                            ([str(folder)], "cannot be read"),
                            ([self.path("missing.json")], "missing.json"), (["--updates", 0], "--updates")):
            with self.subTest(words=words):
                _, err = self.run_program("place", *words, status=2)
                self.assertIn(part, err)

    def test_a_dry_run_names_the_devices(self):
        for words, part in (([], "1,0.5 and 0.2,0.1"), (["towers"], "speeds 1,0.5 "),
                            (["towers", "--devices", "1,3"], "speeds 1,3 "),
                            ([self.graph({**FORK, "devices": [{"speed": 4}, {}]})], "speeds 4,1 ")):
            with self.subTest(words=words):
                events, _ = self.run_program("place", "--dry-run", "--json", *words)
                self.assertIn(part, json.dumps(events))

    def test_sigterm_ends_a_long_search(self):
        for ranks in (1, 2):
            process = self.start("place", "towers", "-n", ranks, "--moves", 10 ** 12, piped=True)
            self.assertIn("towers", process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            self.ended(process)
            self.assertEqual(process.returncode, 143)

    def test_sigterm_ends_it(self):
        for ranks in (1, 2):
            process = self.start("place", "towers", "-n", ranks, "--updates", 100_000, piped=True)
            self.assertIn("towers", process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            self.ended(process)
            self.assertEqual(process.returncode, 143)


if __name__ == "__main__":
    main()
