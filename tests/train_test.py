"""Training from the command line: one process, threads, several ranks, environments of torchrun and srun."""
import os
import pathlib
import sqlite3
import subprocess
import unittest

from own_program_test import tensors_of
from program import BUILD, SMALL, STARLING, ProgramTest, distance, environment, events_of, main, ranks_of, result_of, some, wait_for_step

# Runs a program in a network namespace of its own, then prints the bytes that the namespace's loopback has
# carried.
COUNTED = ("unshare", "-n", "sh", "-c", 'ip link set lo up || exit 98; "$@"; status=$?; grep lo: /proc/net/dev >&2; exit $status', "sh")


def refused_namespace():
    """Returns why this machine does not permit network namespaces, or ""."""
    try:
        done = subprocess.run([*COUNTED, "true"], capture_output=True, text=True, timeout=20)
    except OSError as error:
        return f"network namespaces are not permitted here: {error}"
    return "" if done.returncode == 0 else f"network namespaces are not permitted here: {done.stderr.strip()}"


REFUSED = refused_namespace()


def choices_of(events):
    return next(e["choices"] for e in events if "choices" in e)


class Waiting(ProgramTest):
    def variables(self, *args, **given):
        """Starts a run and returns the environment of the process that trains."""
        env = environment(**given)
        if not given:
            del env["GOMP_SPINCOUNT"]
        run = self.path(f"run{len(os.listdir(self.dir))}")
        process = self.start("train", "--run-dir", run, *SMALL, "--steps", 10**6, *args, env=env)
        wait_for_step(run, 2)
        text = pathlib.Path(f"/proc/{process.pid}/environ").read_bytes().decode()
        self.end(process)
        return dict(line.split("=", 1) for line in text.split("\0") if line)

    def test_several_threads_of_one_rank_spin_briefly(self):
        self.assertEqual(self.variables("--threads", 2).get("GOMP_SPINCOUNT"), "1000")
        self.assertNotIn("GOMP_SPINCOUNT", self.variables("--threads", 1))
        self.assertEqual(self.variables("--threads", 2, GOMP_SPINCOUNT=7).get("GOMP_SPINCOUNT"), "7")


class Start(ProgramTest):
    def test_copied_and_executed_ranks_train_to_the_same_bits(self):
        files = []
        for start, names in (("auto", [b"starling:0", b"starling:1"]), ("exec", [b"starling", b"starling"])):
            with self.subTest(start=start):
                run, how = self.path(start), ["-n", 2, "--set", f"launch.start={start}", "--set", "train.gemm=mkl"]
                process = self.start("train", "--run-dir", run, *SMALL, *how, "--steps", 10**6)
                wait_for_step(run, 2)
                ranks = [pathlib.Path(f"/proc/{pid}") for _, pid in sorted(ranks_of(process.pid).items())]
                self.assertEqual([(rank / "comm").read_bytes().strip() for rank in ranks], names)
                self.end(process)
                files.append(self.path(f"{start}.safetensors"))
                self.train(*SMALL, *how, "--steps", 20, "--save", files[-1])
        self.assertEqual(tensors_of(files[0]), tensors_of(files[1]))

    def test_ranks_start_with_closed_standard_descriptors(self):
        for start in ("fork", "exec"):
            with self.subTest(start=start):
                words = [STARLING, "train", "--run-dir", self.path(start), *SMALL, "-n", 2, "--steps", 5, "--set", f"launch.start={start}"]
                done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *map(str, words)], cwd=self.dir, env=environment(), timeout=60,
                                      check=False)
                self.assertEqual(done.returncode, 0)

    def test_other_hosts_have_no_copies(self):
        _, err = self.train(*SMALL, "-n", 2, "--hosts", "a:2", "--set", "launch.start=fork", status=2)
        self.assertIn("launch.start: fork starts ranks on this host only", err)


class Train(ProgramTest):
    def test_one_rank_learns_and_reports(self):
        events, _ = self.train(*SMALL, "--epochs", 6, "--lr", 0.1, "--global-batch", 32)
        result = result_of(events)
        for key in ("samples_per_s", "train_loss", "test_accuracy", "steps", "ranks", "params", "compute_s", "exposed_comm_s",
                    "data_wait_s", "bytes_sent", "peak_rss_mb"):
            self.assertIn(key, result)
        self.assertEqual(result["steps"], 6 * 16)
        self.assertEqual(result["params"], 784 * 64 + 64 + 640 + 10)
        self.assertGreater(result["test_accuracy"], 0.6)
        self.assertEqual(result["bytes_sent"], 0)
        rows = sqlite3.connect(self.path("run/run.sqlite")).execute("select count(*) from step").fetchone()
        self.assertEqual(rows[0], 96)

    def test_choices_that_change_roundings_are_measured_on_request_only(self):
        few = ["--data", "digits", "--set", "data.samples=64", "--set", "data.test_samples=16", "--steps", 2, "--global-batch", 16,
               "--resume", "never"]
        for words, layout in ((["--model", "lenet5"], "channels-last"), (["--model", "lenet5", "--precision", "fp64"], "contiguous"),
                              (["--model", "mlp"], "contiguous"), (["--model", "lenet5", "--set", "train.layout=contiguous"], "contiguous")):
            for ranks in some((2, 1), 1):
                choices = choices_of(self.train(*few, *words, "-n", ranks)[0])
                self.assertEqual(choices, {"gemm": "mkl", "layout": layout}, words)
        choices = choices_of(self.train(*few, "--model", "lenet5", "--tune")[0])
        self.assertIn(choices["gemm"], ("mkl", "onednn"))
        self.assertIn(choices["layout"], ("contiguous", "channels-last"))

    def test_bytes_are_those_of_the_formula(self):
        flat = 784 * 64 + 64 + 640 + 64  # elements; every parameter begins at a multiple of 64
        for ranks in (2, 4):
            for share, formula in (("sharded", 4 * flat * 2 * (ranks - 1)), ("replicated", 4 * flat * ranks * (ranks - 1))):
                events, _ = self.train(*SMALL, "-n", ranks, "--steps", 10, "--global-batch", 16, "--resume", "never", "--set",
                                       f"optimizer.share={share}")
                sent = result_of(events)["bytes_sent"]
                self.assertGreaterEqual(sent, 10 * formula)  # the formula of docs/explanation/all-reduce.md
                # At the start, ranks also send the parameters once, and small messages.
                self.assertLess(sent, 10 * formula + 2 * 4 * flat * ranks + 20000)

    @unittest.skipIf(REFUSED, REFUSED)
    def test_bytes_sent_are_those_on_the_wire(self):
        flat = 784 * 64 + 64 + 640 + 64
        for ranks in (2, 4):
            for share, formula in (("sharded", 4 * flat * 2 * (ranks - 1)), ("replicated", 4 * flat * 2 * (ranks - 1))):
                events, err = self.run_program(
                    *COUNTED[1:], STARLING, "train", "--json", "--run-dir", self.path("run"), *SMALL, "-n", ranks, "--steps", 10,
                    "--global-batch", 16, "--resume", "never", "--set", f"optimizer.share={share}", "--set",
                    "comm.shared_memory=false", "--set", "comm.algorithm=ring", program=COUNTED[0])
                sent = result_of(events)["bytes_sent"]
                # The counter of sent bytes includes TCP's headers and acknowledgments.
                wire = int(err.split("lo:")[1].split()[8])
                self.assertGreaterEqual(sent, 10 * formula, (ranks, share))
                self.assertLess(sent, 10 * formula + 2 * 4 * flat * ranks + 40000, (ranks, share))
                self.assertLess(sent, wire, (ranks, share))
                self.assertLess(wire, 1.05 * sent, (ranks, share))

    def weights(self, name, *args):
        self.run_program("train", "--json", "--run-dir", self.path("run-" + name), "--save", self.path(name), *SMALL, "--steps", 12,
                         "--global-batch", 24, "--precision", "fp64", *args)
        return self.path(name)

    def assert_close(self, a, b, bound):
        self.assertLess(distance(a, b), bound)

    def test_ranks_and_threads_do_not_change_the_result(self):
        alone = self.weights("one.safetensors")
        self.assert_close(alone, self.weights("two.safetensors", "-n", 2), 1e-12)
        self.assert_close(alone, self.weights("three.safetensors", "-n", 3), 1e-12)
        self.assert_close(alone, self.weights("replicated.safetensors", "-n", 2, "--set", "optimizer.share=replicated"), 1e-12)
        self.assert_close(alone, self.weights("batch.safetensors", "--threads", 2, "--set", "train.threads_mode=batch"), 1e-12)
        self.assert_close(alone, self.weights("clipped.safetensors", "-n", 2, "--set", "optimizer.clip_norm=1e9"), 1e-12)
        self.assert_close(alone, self.weights("tcp.safetensors", "-n", 2, "--set", "comm.shared_memory=false"), 1e-12)

    def test_fifty_steps_stay_with_one_process(self):
        gpt = ["--model", "gpt", "--data", "grammar", "--optimizer", "adamw", "--lr", 0.001, "--set", "model.layers=1", "--set",
               "model.width=32", "--set", "model.heads=2", "--set", "model.tokens=16"]
        for name, words in (("mlp", SMALL), ("lenet5", ["--model", "lenet5", "--data", "digits"]), ("gpt", gpt)):
            for ranks in (1, *some((3, 2, 4), 1)):
                self.run_program("train", *words, "-q", "--run-dir", self.path(f"{name}{ranks}"), "--save", self.path(f"{name}{ranks}.safetensors"),
                                 "--steps", 50, "--global-batch", 12, "--precision", "fp64", "-n", ranks, "--set", "data.samples=256",
                                 "--set", "data.test_samples=12")
                self.assertLess(distance(self.path(f"{name}1.safetensors"), self.path(f"{name}{ranks}.safetensors")), 1e-8, (name, ranks))

    def test_adamw_bf16_and_gpt_run_on_two_ranks(self):
        events, _ = self.train("--model", "gpt", "--data", "grammar", "-n", 2, "--steps", 30, "--global-batch", 8, "--optimizer",
                               "adamw", "--lr", 0.003, "--precision", "bf16", "--set", "model.layers=2", "--set",
                               "model.width=64", "--set", "model.heads=2", "--set", "model.tokens=32", "--set",
                               "data.test_samples=16")
        losses = [e["loss"] for e in events if e["event"] == "step"]
        self.assertLess(sum(losses[-5:]), sum(losses[:5]))
        self.assertNotIn("test_accuracy", result_of(events))  # text has no accuracy
        self.assertGreater(result_of(events)["test_loss"], 0)

    def test_under_torchruns_environment(self):
        processes = []
        for rank in range(2):
            env = environment(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1",
                              MASTER_PORT=29611, TORCHELASTIC_RUN_ID=f"test-{os.getpid()}")
            processes.append(self.start("train", "--json", "--run-dir", self.path("run"), *SMALL, "--steps", 8, env=env))
        outs = [self.ended(p) for p in processes]
        self.assertEqual([p.returncode for p in processes], [0, 0], outs)
        self.assertEqual(result_of(events_of(outs[0][1]))["ranks"], 2)

    def test_under_sruns_environment(self):
        processes = []
        for rank in range(2):
            env = environment(SLURM_PROCID=rank, SLURM_NTASKS=2, SLURM_LOCALID=rank, SLURM_NTASKS_PER_NODE=2, SLURM_NNODES=1,
                              SLURM_JOB_ID=os.getpid(), SLURM_STEP_ID=0, SLURM_NODELIST="localhost", SLURM_STEP_NODELIST="localhost",
                              SLURM_STEP_NUM_TASKS=2, SLURM_TASKS_PER_NODE="2", SLURM_STEP_TASKS_PER_NODE="2",
                              **({"STARLING_RUN_DIR": self.path("of-rank-1")} if rank == 1 else {}))
            processes.append(self.start("train", "--json", "--run-dir", self.path("run"), *SMALL, "--steps", 8, env=env))
        outs = [self.ended(p) for p in processes]
        self.assertEqual([p.returncode for p in processes], [0, 0], outs)
        self.assertEqual(result_of(events_of(outs[0][1]))["ranks"], 2)
        # Rank 0 determines the folder.
        self.assertEqual(sorted(os.listdir(self.path("run/recorder"))), ["rank-0", "rank-1"])
        self.assertFalse(os.path.exists(self.path("of-rank-1")))

    def test_own_program(self):
        program = str(BUILD / "examples" / "own_model")
        for ranks in (1, 2):
            done = subprocess.run([program, "--epochs", "12", "--lr", "0.1", "-n", str(ranks), "--run-dir", self.path(f"own{ranks}")],
                                  capture_output=True, text=True, timeout=240, cwd=self.dir, env=environment())
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(self.path(f"own{ranks}/events.jsonl"), encoding="utf-8") as f:
                result = result_of(events_of(f.read()))
            self.assertEqual(result["ranks"], ranks)
            self.assertGreater(result["test_accuracy"], 0.85)

    def test_eval_of_saved_weights(self):
        events, _ = self.train(*SMALL, "--epochs", 4, "--lr", 0.1, "--save", self.path("w.safetensors"))
        evaluated, _ = self.run_program("eval", "--json", *SMALL, "--init", self.path("w.safetensors"), "-n", 2)
        self.assertAlmostEqual(result_of(evaluated)["test_accuracy"], result_of(events)["test_accuracy"], places=6)

    def test_more_ranks_than_cores_warns_and_runs(self):
        events, err = self.train(*SMALL, "-n", 4, "--steps", 3, "--global-batch", 16)
        self.assertEqual(result_of(events)["ranks"], 4)
        if os.cpu_count() < 4:
            self.assertIn("cores", err)

    def test_no_port_listens_on_one_host(self):
        process = self.start("train", "--json", "--run-dir", self.path("run"), *SMALL, "-n", 2, "--steps", 100000)
        wait_for_step(self.path("run"), 5)
        inodes = set()
        for pid in [process.pid, *ranks_of(process.pid).values()]:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                try:
                    inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
                except OSError:
                    pass
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table, encoding="utf-8") as f:
                for line in f.readlines()[1:]:
                    column = line.split()
                    if column[3] == "0A":
                        self.assertNotIn(f"socket:[{column[9]}]", inodes)
        process.terminate()
        self.ended(process)


if __name__ == "__main__":
    main()
