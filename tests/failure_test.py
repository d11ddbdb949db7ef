"""A run with --on-failure continue loses a rank. It ends with the right loss and names the lost rank."""
import json
import os
import random
import re
import signal

from program import SMALL, ProgramTest, distance, events_of, main, ranks_of, result_of, wait_for_step

SEED = 20240817
STEPS = 600
# fp64, so that the result of a run that lost a rank can be compared with that of a complete run.
RUN = [*SMALL, "-n", 4, "--global-batch", 24, "--precision", "fp64", "--steps", STEPS, "--lr", 0.02]


class Failure(ProgramTest):
    def setUp(self):
        super().setUp()
        self.random = random.Random(f"{SEED} {self.id()}")

    def killed(self, *args, ranks, name="run", at=None):
        """Kills `ranks` one after another at random steps. Returns (exit status, events, stderr)."""
        run_dir = self.path(name)
        process = self.start("train", "--json", "--run-dir", run_dir, *RUN, *args)
        step = 0
        for rank in ranks:
            step += at or self.random.randrange(5, 60)
            wait_for_step(run_dir, step)
            os.kill(ranks_of(process.pid)[rank], signal.SIGKILL)
        _, out, err = self.ended(process, timeout=240)
        return process.returncode, events_of(out), err

    def check_went_on(self, status, events, err, lost, steps=STEPS):
        self.assertEqual(status, 0, err)
        result = result_of(events)
        self.assertEqual(result["lost_ranks"], lost, err)
        self.assertEqual(result["steps"], steps)
        self.assertLess(result["recovery_s"], 30 * len(lost))
        for rank in lost:
            self.assertEqual(len(re.findall(rf"rank {rank} was killed by signal 9", err)), 1, err)
        told = [e for e in events if e["event"] == "lost"]
        self.assertEqual(sorted(r for e in told for r in e["ranks"]), sorted(lost), told)
        self.assertGreater(result["test_accuracy"], 0.5)
        return result

    def test_asynchronous_workers_go_on_by_default(self):
        for staleness in ("3", "inf"):
            with self.subTest(staleness=staleness):
                status, events, err = self.killed("--exchange", "parameter-server", "--staleness", staleness, "--set",
                                                  "optimizer.momentum=0", ranks=[2], name=staleness)
                result = self.check_went_on(status, events, err, [2])
                self.assertEqual(result["strategy"]["retired_workers"], 1)

    def test_elastic_workers_go_on_by_default_and_the_center_is_saved(self):
        for lost in (2, 0):
            with self.subTest(lost=lost):
                saved = self.path(f"{lost}.safetensors")
                status, events, err = self.killed("--exchange", "async-easgd", "--every", 2, "--save", saved, ranks=[lost], name=f"run-{lost}")
                result = self.check_went_on(status, events, err, [lost])
                self.assertEqual(result["strategy"]["retired_workers"], 1)
                self.assertTrue(os.path.exists(saved))

    def test_all_reduce_redoes_the_broken_step_and_ends_as_if_nothing_had_happened(self):
        self.run_program("train", "--run-dir", self.path("whole"), *RUN, "--save", self.path("whole.safetensors"))
        for lost in ([2], [0, 3]):
            with self.subTest(lost=lost):
                name = f"lost {lost}"
                status, events, err = self.killed("--on-failure", "continue", "--save", self.path(name + ".safetensors"), ranks=lost, name=name)
                self.check_went_on(status, events, err, lost)
                self.assertLess(distance(self.path("whole.safetensors"), self.path(name + ".safetensors")), 1e-9)
                steps = [e["step"] for e in events if e["event"] == "step"]
                self.assertEqual(steps[-1], STEPS)
                if 0 not in lost:
                    self.assertEqual(steps, list(range(1, STEPS + 1)))

    def test_of_all_reduce_the_last_rank_finishes(self):
        status, events, err = self.killed("--on-failure", "continue", ranks=[1, 0, 3])
        self.check_went_on(status, events, err, [1, 0, 3])

    def test_all_reduce_continues_without_a_stopped_rank_0(self):
        run_dir = self.path("run")
        process = self.start("train", "--json", "--run-dir", run_dir, *SMALL, "-n", 3, "--global-batch", 24, "--steps", STEPS, "--lr", 0.02,
                             "--on-failure", "continue", "--set", "comm.timeout_s=10")
        wait_for_step(run_dir, 20)
        os.kill(ranks_of(process.pid)[0], signal.SIGSTOP)
        _, out, err = self.ended(process, timeout=120)
        self.assertEqual(process.returncode, 0, err)
        result = result_of(events_of(out))
        self.assertEqual(result["lost_ranks"], [0], err)
        self.assertEqual(result["steps"], STEPS)
        self.assertRegex(err, "rank 0 was ended by the launcher after step .* it did not answer within 10000 ms")

    def test_all_reduce_stops_by_default(self):
        status, _, err = self.killed(ranks=[2])
        self.assertNotEqual(status, 0)
        self.assertEqual(len(re.findall("error: ", err)), 1, err)

    def test_a_synchronous_server_has_the_broken_step_redone(self):
        server = ["--exchange", "parameter-server", "--save"]
        self.run_program("train", "--run-dir", self.path("whole"), *RUN, *server, self.path("whole.safetensors"))
        status, events, err = self.killed(*server, self.path("lost.safetensors"), "--on-failure", "continue", ranks=[1, 3])
        self.check_went_on(status, events, err, [1, 3])
        self.assertLess(distance(self.path("whole.safetensors"), self.path("lost.safetensors")), 1e-9)

    def test_rank_0_is_lost_and_rank_1_speaks_for_the_run(self):
        status, events, err = self.killed("--exchange", "parameter-server", "--staleness", 3, "--save", self.path("model.safetensors"),
                                          ranks=[0])
        self.check_went_on(status, events, err, [0])
        self.assertTrue(os.path.exists(self.path("model.safetensors")))
        with open(self.path("run/events.jsonl"), encoding="utf-8") as f:
            steps = [e["step"] for e in events_of(f.read()) if e["event"] == "step"]
        self.assertEqual(steps[-1], STEPS)

    def test_all_workers_but_one_are_lost_and_the_last_one_finishes(self):
        status, events, err = self.killed("--exchange", "parameter-server", "--on-failure", "continue", ranks=[3, 0, 1])
        self.check_went_on(status, events, err, [3, 0, 1])

    def test_stop_ends_with_one_message(self):
        status, events, err = self.killed("--exchange", "parameter-server", "--staleness", 3, "--on-failure", "stop", ranks=[2])
        self.assertNotEqual(status, 0)
        self.assertNotEqual(events[-1]["event"], "result")
        self.assertEqual(len(re.findall("error: ", err)), 1, err)
        self.assertRegex(err, "rank 2 was killed")

    def test_a_lost_server_ends_the_run(self):
        run_dir = self.path("run")
        process = self.start("train", "--run-dir", run_dir, *RUN[:-4], "--steps", 100000, "--exchange", "parameter-server", "--staleness", "inf")
        wait_for_step(run_dir, 5)
        os.kill(ranks_of(process.pid)[4], signal.SIGKILL)
        seconds, _, err = self.ended(process)
        self.assertLess(seconds, 30)
        self.assertNotEqual(process.returncode, 0)
        self.assertEqual(len(re.findall("error: ", err)), 1, err)
        self.assertRegex(err, "rank 4 was killed")

    def test_what_cannot_go_on_is_refused(self):
        _, err = self.run_program("train", *SMALL, "-n", 2, "--global-batch", 24, "--exchange", "gossip", "--on-failure", "continue", status=2)
        self.assertIn("gossip", err)


if __name__ == "__main__":
    main()
