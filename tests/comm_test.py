"""Communication from the command line: bench comm, tuning, algorithms, emulated links, flight recorders."""
import json
import os
import pathlib
import re
import signal
import subprocess

from exchanges_test import FLAT
from program import (BUILD, SMALL, STARLING, ProgramTest, distance, environment, main, ranks_of, result_of, wait_for_step,
                     wait_until_all_stand)

APART = ["--set", "comm.shared_memory=false"]
START = 300000  # more than the bytes with which a run measures the link and agrees, without the parameters
ALL_REDUCE = {"direct", "ring", "halving-doubling", "binomial-tree", "double-tree", "bruck", "star"}


class Comm(ProgramTest):
    def test_bench_comm_finds_no_errors_and_tunes(self):
        env = environment(XDG_CACHE_HOME=self.path("cache"))
        events, err = self.run_program("bench", "comm", "-n", 3, *APART, "--seconds", 0, "--smallest", 4096, "--largest", "64kb",
                                       "--tune", "--json", env=env)
        timings = [e for e in events if e["event"] == "collective_timing"]
        self.assertEqual({e["errors"] for e in timings}, {0})
        self.assertEqual({(e["ranks"], e["hosts"]) for e in timings}, {(3, 3)})
        self.assertEqual({e["algorithm"] for e in timings if e["collective"] == "all-reduce"}, ALL_REDUCE)
        self.assertEqual({e["collective"] for e in timings},
                         {"all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "barrier"})
        self.assertTrue(all(0 < e["min_us"] <= e["median_us"] <= e["max_us"] for e in timings))
        tuned = [line.split() for line in pathlib.Path(self.path("cache/starling/tuning")).read_text().splitlines()[1:]]
        self.assertIn("tuning", err)
        kinds = {(e["collective"], str(e["bytes"])) for e in timings}
        self.assertEqual({(line[0], line[1]) for line in tuned}, kinds)
        # A later run reads the tuning file. A malformed file is refused with the number of its bad line.
        self.train(*SMALL, *APART, "-n", 3, "--global-batch", 24, "--steps", 2, env=env)
        pathlib.Path(self.path("cache/starling/tuning")).write_text("all-reduce quickly\n")
        _, err = self.run_program("train", "--run-dir", self.path("other"), *SMALL, *APART, "-n", 3, "--global-batch", 24,
                                  "--steps", 2, env=env, status=2)
        self.assertIn("tuning:1", err)

    def test_bench_comm_in_shared_memory(self):
        events, _ = self.run_program("bench", "comm", "-n", 2, "--seconds", 0, "--largest", 4096, "--json")
        self.assertEqual(events[-1], {"event": "result", "objects": len(events) - 1})
        self.assertEqual({(e["algorithm"], e["errors"]) for e in events[:-1]}, {("shared-memory", 0)})

    def test_named_algorithms_and_emulated_links_train_the_same(self):
        common = [*SMALL, "-n", 3, "--global-batch", 24, "--steps", 4, "--precision", "fp64"]
        saved = []
        for i, more in enumerate([[], [*APART, "--collective", "ring"], [*APART, "--collective", "double-tree"],
                                  ["--collective", "halving-doubling", "--emulate", "bandwidth=500mbit,latency=200us,loss=0.1%"]]):
            saved.append(self.path(f"{i}.safetensors"))
            self.run_program("train", "--json", "--run-dir", self.path(f"run{i}"), *common, *more, "--save", saved[i])
        for other in saved[1:]:
            self.assertLess(distance(saved[0], other), 1e-10)

    def test_an_emulated_link_is_as_slow_as_asked(self):
        events, _ = self.train(*SMALL, "-n", 2, "--global-batch", 16, "--steps", 3, "--emulate", "latency=20ms")
        # A step sends gradients over the link at least once, and twice if it reduces and then gathers.
        self.assertGreater(min(e["step_s"] for e in events if e["event"] == "step"), 0.02)
        # A step sends the gradient of each of the two ranks. At the start rank 0 sends the parameters. It
        # also measures the link.
        self.assertGreaterEqual(result_of(events)["bytes_sent"], 3 * 2 * 4 * FLAT)
        self.assertLess(result_of(events)["bytes_sent"], (3 * 2 + 1) * 4 * FLAT + START)

    def test_training_over_ucx_is_the_same(self):
        if not (BUILD / "lib/starling/libstarling_ucx.so").exists():
            self.skipTest("UCX is not installed here: its engine was not built")
        env = environment(UCX_TLS="tcp")
        common = [*SMALL, "-n", 3, "--global-batch", 24, "--steps", 4, "--precision", "fp64", *APART]
        saved = []
        for engine in ("starling", "ucx"):
            saved.append(self.path(f"{engine}.safetensors"))
            events, _ = self.run_program("train", "--json", "--run-dir", self.path(engine), *common, "--set", f"comm.engine={engine}",
                                         "--save", saved[-1], env=env)
            # The formula of docs/explanation/all-reduce.md is 2 (p - 1) |W|. Bruck's algorithm, which may be
            # faster, sends p (p - 1) |W|.
            self.assertGreaterEqual(result_of(events)["bytes_sent"], 4 * 2 * 2 * 8 * FLAT)
            self.assertLess(result_of(events)["bytes_sent"], (4 * 3 * 2 + 2) * 8 * FLAT + START)
        self.assertLess(distance(*saved), 1e-10)
        _, err = self.run_program("train", *common, "--set", "comm.engine=ucx", "--emulate", "latency=1ms", env=env, status=2)
        self.assertIn("link emulation works with Starling's own TCP", err)

    def test_after_a_kill_recorders_say_who_waited_for_whom(self):
        process = self.start("train", "--run-dir", self.path("run"), *SMALL, *APART, "-n", 3, "--global-batch", 24, "--steps", 100000)
        wait_for_step(self.path("run"), 5)
        os.kill(ranks_of(process.pid)[1], signal.SIGSTOP)  # ranks 0 and 2 then wait for rank 1
        wait_until_all_stand(self, self.path("run"))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        _, _, err = self.ended(process)
        self.assertRegex(err, r"rank 1 .*SIGKILL")
        self.assertRegex(err, r"rank [02] \(.*\) (waits|stopped waiting) in (all-reduce|barrier) #\d+")
        events, _ = self.run_program("doctor", "--recorder", self.path("run"), "--json")
        self.assertEqual([r["rank"] for r in events[0]["ranks"]], [0, 1, 2])
        self.assertTrue(events[0]["waits"])
        _, err = self.run_program("doctor", "--recorder", self.path("nowhere"), status=2)
        self.assertIn("holds no recordings", err)

    # A recording may be damaged, or come from a host whose name is not UTF-8.
    def test_names_in_a_recorder_that_are_not_utf_8(self):
        self.run_program("train", "-q", "--run-dir", self.path("run"), *SMALL, *APART, "-n", 2, "--global-batch", 24, "--steps", 2)
        with open(self.path("run/recorder/rank-1"), "r+b") as recorder:
            recorder.seek(48)  # RecorderHeader: the host's name, and then those of the groups
            recorder.write(b"host\xff\xc3\0")
            recorder.seek(128)
            recorder.write(b"group\xed\xa0\x80\x1b[31m\0")
        found = json.loads(self.doctor(self.path("run"), "--json").stdout.decode())
        self.assertRegex(found["ranks"][1]["host"], "^host\ufffd+$")
        self.assertTrue(any(re.match("group\ufffd+", o["group"]) for o in found["ranks"][1]["operations"]))
        text = self.doctor(self.path("run")).stdout
        self.assertIn(b"rank 1 (host", text)
        self.assertNotIn(b"\x1b", text)
        refused = self.doctor(self.path("nowhere").encode() + b"\xff", "--json")
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("holds no recordings", json.loads(refused.stdout.decode())["message"])

    @staticmethod
    def doctor(folder, *words):
        """Runs `starling doctor` on the recorders in `folder` and returns its output as bytes."""
        return subprocess.run([STARLING, "doctor", "--recorder", folder, *words], capture_output=True, timeout=60, env=environment(),
                              check=False)


if __name__ == "__main__":
    main()
