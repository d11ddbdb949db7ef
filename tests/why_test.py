"""`starling why` on real runs: it names what was planted, and its categories add up.

No test depends on absolute speed.
"""
import os
import re
import signal
import subprocess

from program import SMALL, STARLING, ProgramTest, environment, main, recorded_events, wait_for_checkpoint, wait_for_step

# Each rank computes a step in 30 ms, asleep for most of it, so that the shares do not depend on the machine.
PACED = "compute=30ms"
SHARED_CORE = len(os.sched_getaffinity(0)) < 2  # the two ranks share it, so that may be the first advice
PAIR = [*SMALL, "-n", "2", "--threads", "1", "--global-batch", "16"]


class Why(ProgramTest):
    def why(self, run="run"):
        events, _ = self.run_program("why", self.path(run), "--json")
        answer = events[-1]
        self.assertEqual(answer["event"], "why")
        self.assertAlmostEqual(sum(answer["time"].values()), answer["wall_s"], places=6)
        self.assertTrue(all(seconds >= 0 for seconds in answer["time"].values()), answer)
        return answer

    def share(self, answer, *keys):
        return sum(answer["time"][key] for key in keys) / answer["wall_s"]

    def test_a_slow_rank_is_named(self):
        for late in (0, 1):
            with self.subTest(late=late):
                run = f"run{late}"
                self.run_program("train", "--json", "--run-dir", self.path(run), *PAIR, "--steps", 30,
                                 "--emulate", f"{PACED},slow-rank={late}:5x")
                answer = self.why(run)
                self.assertEqual(answer["late_rank"]["rank"], late, answer)
                self.assertEqual(answer["late_rank"]["cause"], "computation")
                self.assertTrue(answer["late_rank"]["host"])
                self.assertGreater(answer["late_rank"]["share"], 0.3)
                if answer["advice"]["rule"] != "shared-cores" or not SHARED_CORE:
                    self.assertEqual(answer["advice"]["rule"], "late-rank", answer)
                    self.assertIn(f"rank {late} ", answer["advice"]["why"])
                # Rank 0 reports its own time. It does not wait for itself.
                waits = self.share(answer, "waiting_s")
                self.assertLess(waits, 0.01) if late == 0 else self.assertGreater(waits, 0.3)
        events = recorded_events(self.path("run1"))
        self.assertEqual([one["rank"] for one in events[-1]["rank_times"]], [0, 1])
        self.assertEqual(len(next(e for e in events if e["event"] == "run")["hosts"]), 2)

    def test_a_slow_network_is_named(self):
        # A step computes for so long that two ranks are worth having: one process is not the better advice.
        self.train(*PAIR, "--steps", 20, "--emulate", "compute=100ms,bandwidth=4mbit")
        answer = self.why()
        self.assertGreater(self.share(answer, "exchange_s", "waiting_s"), 0.5, answer)
        self.assertGreater(answer["phases"]["gradients"], 0)
        self.assertEqual((answer["advice"]["rule"], answer["advice"]["try"]), ("network", "--codec int8"), answer)
        # The advice is a flag of the program.
        self.run_program("train", *PAIR, "--dry-run", *answer["advice"]["try"].split())

    def test_a_slow_evaluation_is_named(self):
        self.train(*PAIR, "--steps", 4, "--set", "data.test_samples=20000",
                   "--set", "train.eval_batch=1")
        answer = self.why()
        self.assertEqual(answer["advice"]["rule"], "evaluation", answer)
        self.assertTrue(answer["advice"]["try"].startswith("--set data.test_samples="))
        self.assertNotIn("of evaluations is missing", " ".join(answer["missing"]))

    def test_a_killed_and_resumed_run(self):
        words = [*PAIR, "--run-dir", self.path("run"), "--set", "checkpoint.every=10", "--emulate", PACED, "--steps", 80]
        process = self.start("train", "--json", *words)
        wait_for_checkpoint(self.path("run"), 0)
        wait_for_step(self.path("run"), 25)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with open(self.path("run/events.jsonl"), "a", encoding="utf-8") as f:
            f.write('{"event":"step","step":')  # as if it had been killed while it wrote
        killed = self.why()
        self.assertEqual((killed["ended"], killed["starts"]), (False, 1))
        self.assertGreater(killed["steps"], 24)
        self.assertGreater(killed["time"]["checkpoints_s"], 0)
        self.assertRegex(" ".join(killed["missing"]), "times of each rank are missing.*One line of events.jsonl")
        self.run_program("train", "--json", *words)
        whole = self.why()
        self.assertEqual((whole["ended"], whole["starts"]), (True, 2))
        self.assertGreater(whole["wall_s"], killed["wall_s"])
        self.assertGreaterEqual(whole["steps"], 80)

    def test_an_interrupted_run_of_one_rank(self):
        process = self.start("train", "--json", "--run-dir", self.path("run"), *SMALL, "--global-batch", "16", "--emulate", PACED,
                             "--steps", 100000)
        wait_for_step(self.path("run"), 60)
        process.send_signal(signal.SIGTERM)
        self.ended(process)
        answer = self.why()
        self.assertEqual((answer["interrupted"], answer["ranks"], answer["hosts"]), (True, 1, 1))
        self.assertEqual(answer["one_process"], {"how": "This run is one process."})
        self.assertNotIn("late_rank", answer)
        self.assertGreater(self.share(answer, "computation_s"), 0.1)

    def test_the_text_is_a_few_lines(self):
        self.train(*PAIR, "--steps", 30, "--emulate", f"{PACED},slow-rank=1:5x")
        text = self.text_of("why", self.path("run"))
        lines = text.splitlines()
        self.assertLess(len(lines), 25)
        self.assertRegex(lines[0], r"run: 30 steps in .* on 2 ranks$")
        self.assertRegex(text, r"waiting +[0-9.]+ % .*for rank 1 on \S+, which computes longer")
        self.assertIn("One process: It is not known, because ranks shared cores" if SHARED_CORE else "One process: about ", text)
        self.assertIn("Try first: --hosts HOST,HOST\n" if SHARED_CORE else "Try first: --share auto\n", text)
        # The run accepts the advice. On a shared core, the advice names hosts that are to be filled in.
        advice = re.search(r"Try first: (.*)", text)[1].replace("HOST,HOST", "host0,host1").split()
        self.run_program("train", "-c", self.path("run/config.toml"), "--dry-run", *advice)

    def test_bad_input(self):
        for words, reason in (([self.path("none")], "there is no folder"),
                              ([self.dir], "is not the folder of a run"),
                              ([], "RUN_DIR is required")):
            with self.subTest(words=words):
                _, err = self.run_program("why", *words, status=2)
                self.assertIn(reason, err)
        events, _ = self.run_program("why", self.path("none"), "--json", status=2)
        self.assertEqual(events[-1]["event"], "error")
        self.train(*SMALL, "--steps", 2)
        os.remove(self.path("run/config.toml"))
        self.assertIn("config.toml is missing", " ".join(self.why()["missing"]))

    def text_of(self, *words):
        done = subprocess.run([STARLING, *words], capture_output=True, text=True, timeout=60, env=environment(), cwd=self.dir)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout


if __name__ == "__main__":
    main()
