"""`starling queue`, as a user runs it: a daemon, real jobs, and kill -9."""
import contextlib
import json
import os
import pathlib
import signal
import stat
import time

from program import SMALL, STARLING, ProgramTest, main, result_of, wait_for_step

TRAIN = ["train", *SMALL, "--global-batch", 32]


class Queue(ProgramTest):
    def setUp(self):
        super().setUp()
        self.state = self.path("state")
        self.addCleanup(self.end_jobs)

    def end_jobs(self):
        """Kills the keepers of jobs that a failed test has left. Their launchers and ranks end with them."""
        for claim in pathlib.Path(self.state).glob("jobs/*/claim-*"):
            ended = claim.with_name(claim.name.replace("claim", "end"))
            with contextlib.suppress(OSError, ValueError):
                process = json.loads(claim.read_text(encoding="utf-8"))
                stat_file = pathlib.Path("/proc", str(process["pid"]), "stat")
                if ended.exists() or process["pid"] == 0:
                    continue
                stat = stat_file.read_text(encoding="utf-8", errors="replace")
                started = stat.rsplit(")", 1)[1].split()[19]
                if int(started) == process["started"]:  # no later process of this number
                    os.kill(process["pid"], signal.SIGKILL)

    def queue(self, command, *args, **options):
        return self.run_program("queue", command, "--json", "--state", self.state, *args, **options)

    def serve(self, *args):
        """Starts the daemon and waits until it serves."""
        process = self.start("queue", "serve", "--json", "--state", self.state, *args)
        self.wait(lambda: '"serving"' in process.written()[0] or process.poll() is not None,
                  "the daemon did not begin")
        return process

    def submit(self, *args):
        return result_of(self.queue("submit", *args)[0])["job"]

    def jobs(self):
        """Returns the events of all jobs, by number."""
        return {e["job"]: e for e in self.queue("list", "--all")[0] if e["event"] == "job"}

    def wait(self, condition, otherwise, pause=0.02):
        end = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), end, otherwise)
            time.sleep(pause)

    def wait_for(self, job, *states):
        """Waits until the job has one of the states. Each look starts a process."""
        self.wait(lambda: self.jobs()[job]["state"] in states,
                  f"job {job} has none of the states {states}", 0.2)

    def finish(self, *args):
        """Serves until no job is left. Returns the transitions."""
        events, _ = self.queue("serve", "--until-empty", *args)
        self.assertEqual(result_of(events)["jobs"], 0)
        return [e for e in events if e["event"] == "transition"]

    def run_dir(self, job):
        return os.path.join(self.state, "jobs", str(job), "run")

    def lines(self, job, name="out"):
        return pathlib.Path(self.state, "jobs", str(job), name).read_text(encoding="utf-8").splitlines()

    def test_without_a_command_it_simulates_days(self):
        events, _ = self.run_program("queue", "--json")
        days = [e for e in events if e["event"] == "day"]
        self.assertEqual([e["seed"] for e in days], [1, 2, 3, 4, 5])
        for day in days:
            self.assertGreaterEqual(day["busy"], 0.9)
            self.assertGreaterEqual(day["jain"], 0.95)
            self.assertLessEqual(day["longest_wait_s"], 8 * 3600)
        self.assertEqual(result_of(events)["least_busy"], min(e["busy"] for e in days))
        text = self.completed([STARLING, "queue", "simulate", "--days", "1", "--no-preemption"]).stdout
        self.assertIn("Jain", text)
        other, _ = self.run_program("queue", "simulate", "--days", 1, "--seed", 2, "--json")
        self.assertEqual(other[0], days[1])

    def test_jobs_end_with_their_statuses(self):
        self.finish("--hosts", "localhost:2")
        self.assertEqual(stat.S_IMODE(os.stat(self.state).st_mode), 0o700)
        good = self.submit("-n", 2, "sh", "-c", "echo rank $RANK of $WORLD_SIZE in $PWD")
        bad = self.submit("sh", "-c", "exit 3")
        absent = self.submit("./absent")
        training = self.submit(*TRAIN, "--steps", 3)
        cancelled = self.submit("true")
        self.queue("cancel", cancelled)
        self.finish("--hosts", "localhost:2")
        jobs = self.jobs()
        self.assertEqual([jobs[j]["state"] for j in (good, bad, absent, training, cancelled)],
                         ["done", "failed", "failed", "done", "cancelled"])
        self.assertEqual(jobs[bad]["status"], 3)
        self.assertEqual(self.lines(good), [f"rank 0 of 2 in {os.path.realpath(self.dir)}"])
        self.assertTrue(os.path.isdir(self.run_dir(training)))
        shown, _ = self.queue("show", good)
        self.assertEqual([e["to"] for e in shown if e["event"] == "transition"],
                         ["queued", "starting", "running", "done"])
        words = [STARLING, "queue", "show", str(good), "--state", self.state]
        self.assertIn("ended with status 0", self.completed(words).stdout)

    def test_a_job_makes_room_and_resumes(self):
        options = ["--hosts", "localhost:2", "--users", "ada,bert:1:5", "--min-run", 0]
        self.finish(*options)
        daemon = self.serve(*options)
        words = [*TRAIN, "--steps", 100000, "--emulate", "compute=5ms"]
        long = self.submit("-n", 2, "--user", "ada", *words)
        wait_for_step(self.run_dir(long), 5)
        urgent = self.submit("-n", 2, "--user", "bert", "--priority", 5, "true")
        self.wait_for(urgent, "done")
        self.wait(lambda: [line for line in self.lines(long, "err") + self.lines(long)
                           if "resuming after step" in line], "the job did not resume")
        self.queue("cancel", long)
        self.wait_for(long, "cancelled", "failed")
        job = self.jobs()[long]
        self.assertEqual((job["state"], job["preemptions"], job["attempt"]), ("cancelled", 1, 2),
                         self.lines(long, "err"))
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(60), 0)

    def test_a_killed_daemon_neither_loses_nor_doubles_a_job(self):
        options = ["--hosts", "localhost:2", "--users", "ada,bert:1:5", "--min-run", 0]
        self.finish(*options)
        daemon = self.serve(*options)
        script = "echo begins; while [ ! -e go ]; do sleep 0.02; done; echo ends"
        ends = self.submit("--user", "ada", "sh", "-c", script)
        training = self.submit("--user", "ada", *TRAIN, "--steps", 300, "--emulate", "compute=5ms")
        self.wait_for(ends, "running")
        wait_for_step(self.run_dir(training), 3)
        daemon.kill()
        daemon.wait(60)
        pathlib.Path(self.path("go")).touch()  # the job ends while there is no daemon
        self.wait(lambda: os.path.exists(os.path.join(self.state, "jobs", str(ends), "end-1")),
                  "the job did not end")
        self.assertEqual(self.jobs()[ends]["state"], "running")
        urgent = self.submit("-n", 2, "--user", "bert", "--priority", 5, "true")
        daemon = self.serve(*options)
        self.wait_for(training, "stopping", "queued", "starting", "done")
        daemon.kill()
        daemon.wait(60)
        self.finish(*options)
        jobs = self.jobs()
        self.assertEqual([jobs[j]["state"] for j in (ends, training, urgent)], ["done"] * 3)
        self.assertEqual(self.lines(ends), ["begins", "ends"])
        for job in jobs:
            shown, _ = self.queue("show", job)
            ends_of_jobs = ("done", "failed", "cancelled")
            ended = [e["to"] for e in shown if e["event"] == "transition" and e["to"] in ends_of_jobs]
            self.assertEqual(ended, ["done"])

    def test_a_running_job_is_cancelled(self):
        self.finish("--hosts", "localhost:1")
        daemon = self.serve("--hosts", "localhost:1")
        job = self.submit("sleep", 600)
        self.wait_for(job, "running")
        self.queue("cancel", job)
        self.wait_for(job, "cancelled")
        daemon.send_signal(signal.SIGINT)
        self.assertEqual(daemon.wait(60), 0)

    def test_a_run_folder_of_a_configuration_is_kept(self):
        pathlib.Path(self.path("job.toml")).write_text('[run]\ndir = "mine"\n', encoding="utf-8")
        self.finish("--hosts", "localhost:1")
        job = self.submit(*TRAIN, "-c", "job.toml", "--steps", 2)
        self.finish("--hosts", "localhost:1")
        self.assertEqual(self.jobs()[job]["state"], "done", self.lines(job, "err"))
        self.assertTrue(os.path.isdir(self.path("mine")))
        self.assertFalse(os.path.exists(self.run_dir(job)))

    def test_many_jobs_of_several_users(self):
        """Twenty jobs with STARLING_THOROUGH=1, which `make check-deep` sets, and else six."""
        options = ["--hosts", "localhost:2", "--users", "ada:2,bert,cleo:1:3", "--min-run", 1000]
        self.finish(*options)
        count = 20 if os.environ.get("STARLING_THOROUGH") == "1" else 6
        expected = {}
        for i in range(count):
            user = ("ada", "bert", "cleo")[i % 3]
            priority = ["--priority", 3] if user == "cleo" and i % 2 else []
            words = (["true"], ["sh", "-c", "exit 5"], [*TRAIN, "--steps", 40, "--emulate", "compute=5ms"],
                     ["sh", "-c", "sleep 0.3"])[i % 4]
            job = self.submit("-n", 1 + i % 2, "--user", user, "--time", 0.05, *priority, *words)
            expected[job] = "failed" if i % 4 == 1 else "done"
        moves, jobs, held = self.finish(*options), self.jobs(), {}
        for e in moves:
            if e["to"] == "starting":
                held[e["job"]] = jobs[e["job"]]["slots"]
            elif e["to"] not in ("running", "stopping"):
                held.pop(e["job"], None)
            self.assertLessEqual(sum(held.values()), 2, held)
        self.assertEqual({job: e["state"] for job, e in jobs.items()}, expected)

    def test_what_cannot_be_is_refused(self):
        _, err = self.queue("submit", "true", status=2)
        self.assertIn("starling queue serve", err)
        self.finish("--hosts", "localhost:2", "--users", "ada:2,bert")
        for words, reason in (
                (["submit", "-n", 3, "--user", "ada", "true"],
                 "needs 3 slots, and all hosts of the queue have 2"),
                (["submit", "--user", "eve", "true"], "eve has no share"),
                (["submit", "--user", "ada", "--priority", 1, "true"], "largest priority of ada"),
                (["submit", "--user", "ada"], "name the program"), (["submit", "-n", 0, "true"], "--ranks"),
                (["submit", "--nme", "true"], "--nme"), (["cancel", 7], "there is no job 7"),
                (["show", 7], "there is no job 7"), (["serve", "--hosts", "a:0"], "a:0"),
                (["serve", "--users", "ada:-1"], "--users"), (["serve", "--grace", 0], "--grace"),
                (["simulate", "--load", "nan"], "not a number"),
                (["simulate", "--largest", 65], "--largest")):
            with self.subTest(words=words):
                if words[0] == "simulate":
                    _, err = self.run_program("queue", *words, status=2)
                else:
                    _, err = self.queue(*words, status=2)
                self.assertIn(reason, err)
        self.assertEqual(self.jobs(), {})
        self.serve("--hosts", "localhost:2")
        _, err = self.queue("serve", "--until-empty", status=2)
        self.assertIn("serves the queue of", err)
        os.chmod(self.state, 0o755)
        _, err = self.queue("list", status=2)
        self.assertIn("chmod 700", err)


if __name__ == "__main__":
    main()
