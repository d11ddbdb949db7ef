"""The MPI engine under this machine's mpiexec: collectives against the naive reference, errors, training."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

from exchanges_test import FLAT
from mpi_here import ENGINE, mpiexec, missing, variables
from program import (BUILD, SMALL, STARLING, ProgramTest, distance, environment, events_of, main, result_of, wait_for_step,
                     wait_until_all_stand)

RANKS = BUILD / "tests/mpi_ranks"
REASON = missing()


def only_mpiexec_is_left(pid):
    """Returns whether all ranks of this mpiexec have ended."""
    # The state stands behind the name of the program, which is in parentheses.
    states = [stat.rpartition(")")[2].split()[:2] for stat in all_stats()]
    return not any(parent == str(pid) and state != "Z" for state, parent in states)


def all_stats():
    """Yields /proc/PID/stat of all processes."""
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            yield path.read_text()
        except OSError:  # the process has ended
            continue


@unittest.skipIf(REASON, REASON)
class Mpi(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.how = mpiexec()

    def begin(self, ranks, *words):
        """Starts a job of `ranks` ranks and returns the process of mpiexec."""
        process = subprocess.Popen([*self.how, "-n", str(ranks), *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, cwd=self.dir, env=environment(**variables(self.dir)))
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        """Ends a job. After SIGTERM, mpiexec ends its ranks."""
        if process.poll() is None:
            process.terminate()
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    @staticmethod
    def finish(process, timeout):
        """Waits for the end of a job and returns (standard output, standard error).

        In Open MPI 4.1.4, two threads of mpiexec can block each other in PMIx_server_finalize, after all
        ranks have ended. Such an mpiexec is killed, so that its status is -9.
        """
        deadline, alone = time.monotonic() + timeout, 0
        while True:
            try:
                return process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                alone = alone + 1 if only_mpiexec_is_left(process.pid) else 0
                if alone == 3:
                    print(f"mpiexec hangs after its ranks have ended: {' '.join(map(str, process.args))}", flush=True)
                    process.kill()
                elif time.monotonic() > deadline:
                    raise

    def mpiexec(self, ranks, *words, fails=False, timeout=120):
        """Runs a job to its end and returns (standard output, standard error).

        If mpiexec hangs after its ranks have ended, it cannot say that the job succeeded, and the job runs
        again.
        """
        process = self.begin(ranks, *words)
        out, err = self.finish(process, timeout)
        if process.returncode == -signal.SIGKILL and not fails:
            process = self.begin(ranks, *words)
            out, err = self.finish(process, timeout)
        self.assertEqual(process.returncode != 0, fails, f"{process.returncode}\n{out[-2000:]}\n{err[-3000:]}")
        return out, err

    def words(self, run, *more):
        return ["train", "--json", "--run-dir", self.path(run), *SMALL, "--precision", "fp64", "--global-batch", 24, "--steps", 12, *more]

    def train(self, ranks, run, *more):
        """Trains over MPI and returns the result event."""
        out, _ = self.mpiexec(ranks, STARLING, *self.words(run, *ENGINE, *more))
        result = result_of(events_of(out))
        self.assertEqual(result["steps"], 12, more)
        return result

    def collectives(self, ranks):
        out, _ = self.mpiexec(ranks, RANKS)
        self.assertIn(f"345 cases over MPI on {ranks} ranks", out)

    def test_collectives_of_2(self):
        self.collectives(2)

    def test_collectives_of_3(self):
        self.collectives(3)

    def test_collectives_of_4(self):
        self.collectives(4)

    # MPI does not say what it moves. The count is that of the formulas of docs/reference/collectives.md.
    def test_counted_bytes_are_those_of_the_formulas(self):
        for ranks in range(2, 9):
            out, _ = self.mpiexec(ranks, RANKS, "bytes")
            self.assertIn(f"bytes over MPI on {ranks} ranks", out)

    def faults(self, kind):
        """Returns the messages of the ranks of a group of 3, by rank.

        A rank has no message if another rank ended the job before.
        """
        self.mpiexec(3, RANKS, kind, fails=True)
        return {int(p.name[5:]): p.read_text() for p in pathlib.Path(self.dir).glob("said-*")}

    def test_collectives_that_differ_are_named(self):
        said = [text for text in self.faults("unequal").values() if text]
        self.assertTrue(said)
        for text in said:
            self.assertRegex(text, r"collectives differ: rank 0 \(.*\) is in all-reduce #2 \(sum of 256 bytes fp32\), rank 1 \(.*\) in barrier #2")

    def test_splits_that_differ_are_named(self):
        said = self.faults("splits")
        for rank in range(3):
            self.assertRegex(said.get(rank, ""), r"rank 1 \(.*\) sends 2 elements to rank 0 \(.*\), which expects 1")

    def test_splits_that_mpi_cannot_count_are_an_error_on_all_ranks(self):
        said = self.faults("many")
        for rank in range(3):
            self.assertRegex(said.get(rank, ""), r"all-to-all #2.*: rank 1 \(.*\) has 2147483649 elements, more than the 2147483647 that MPI can count")

    def test_a_late_rank_is_named(self):
        said = self.faults("late")
        for rank in (0, 2):
            self.assertRegex(said.get(rank, ""), r"rank 1 \([^)]*\).* did not enter barrier #2 within 3000 ms")

    def test_a_rank_that_is_killed_ends_the_job(self):
        self.mpiexec(3, RANKS, "dead", fails=True, timeout=60)
        waits = self.doctor(self.dir)["waits"]
        for rank in (0, 2):
            self.assertRegex(waits[rank], rf"rank {rank} \(node\) (waits|stopped waiting) in barrier #2 of group world")
        self.assertRegex(waits[1], r"rank 1 \(node\) did not begin #2 of group world; its last operation was all-gather #1")

    def doctor(self, folder):
        """Returns the event of `starling doctor` about the flight recorders in `folder`."""
        events, _ = self.run_program("doctor", "--recorder", folder, "--json")
        return events[0]

    def train_until_rank_1_is_waited_for(self, *more):
        """Trains on 3 ranks and stops rank 1 between two collectives.

        Returns (job, process ID of rank 1, number of the collective in which ranks 0 and 2 wait).
        """
        job = self.begin(3, STARLING, "train", "--run-dir", self.path("run"), *SMALL, "--global-batch", 240, "--steps", 100000, *ENGINE, *more)
        wait_for_step(self.path("run"), 5)
        victim = next(r["pid"] for r in self.doctor(self.path("run"))["ranks"] if r["rank"] == 1)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            os.kill(victim, signal.SIGSTOP)
            if self.doctor(self.path("run"))["ranks"][1]["operations"][-1]["ended_ns"]:
                wait_until_all_stand(self, self.path("run"))
                waits = "\n".join(self.doctor(self.path("run"))["waits"])
                absent = re.search(r"rank 1 \(.*\) did not begin #(\d+) of group world", waits)
                if absent and len(re.findall(rf"rank [02] \(.*\) waits in \S+ #{absent[1]} ", waits)) == 2:
                    return job, victim, absent[1]
            os.kill(victim, signal.SIGCONT)  # rank 1 was stopped inside a collective
        raise AssertionError("rank 1 was never stopped outside of a collective")

    def test_after_a_kill_the_recorders_say_who_waited_for_whom(self):
        job, victim, number = self.train_until_rank_1_is_waited_for("--set", "comm.timeout_s=600")
        os.kill(victim, signal.SIGKILL)
        self.finish(job, 60)
        self.assertNotEqual(job.returncode, 0)
        out = subprocess.run([STARLING, "doctor", "--recorder", self.path("run")], capture_output=True, text=True, timeout=60).stdout
        for rank in (0, 2):
            # The duration of the wait follows the name of the group.
            self.assertRegex(out, rf"rank {rank} \(.*\) (waits|stopped waiting) in \S+ #{number}( .*)? of group world"
                             r"(; it had waited| after) \d+\.\d+ s")
        self.assertRegex(out, rf"rank 1 \(.*\) did not begin #{number} of group world; its last operation was .* #{int(number) - 1}\b")

    def test_recorders_lie_in_the_folder_that_rank_0_names(self):
        self.mpiexec(2, STARLING, "train", *SMALL, "--steps", 2, *ENGINE)
        kept = sorted(p.relative_to(self.dir).parts for p in pathlib.Path(self.dir).glob("runs/*/recorder/*"))
        self.assertEqual([(p[0], *p[2:]) for p in kept], [("runs", "recorder", "rank-0"), ("runs", "recorder", "rank-1")])
        self.assertEqual(len({p[1] for p in kept}), 1)

    def test_a_folder_that_one_rank_s_environment_names(self):
        words = " ".join(map(str, [STARLING, "train", *SMALL, "--steps", 2, *ENGINE]))
        for one in range(2):
            folder = pathlib.Path(self.path(f"of-rank-{one}"))
            script = f'[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = {one} ] && export STARLING_RUN_DIR={folder}; exec {words}'
            self.mpiexec(2, "sh", "-c", script)
            found = [folder] if one == 0 else list(pathlib.Path(self.dir).glob("runs/*"))
            self.assertEqual([sorted(p.name for p in f.glob("recorder/*")) for f in found], [["rank-0", "rank-1"]])
            self.assertEqual(folder.exists(), one == 0)

    def test_who_gives_up_says_who_waited_for_whom(self):
        job, _, number = self.train_until_rank_1_is_waited_for("--set", "comm.timeout_s=20")
        _, err = self.finish(job, 240)
        self.assertNotEqual(job.returncode, 0)
        self.assertEqual(err.count("who waited for whom"), 1, err)
        self.assertRegex(err, rf"rank [02] \(.*\) stopped waiting in \S+ #{number}( .*)? of group world")
        self.assertRegex(err, rf"rank 1 \(.*\) did not begin #{number} of group world")
        self.assertRegex(err, rf"error: rank 1 \(.*\) did not enter \S+ #{number} .*within 20000 ms")

    def test_weights_equal_those_of_one_process(self):
        one, over_mpi = self.path("one.safetensors"), self.path("mpi.safetensors")
        self.run_program(*self.words("alone", "--save", one))
        result = self.train(2, "run", "--save", over_mpi)
        self.assertEqual(result["ranks"], 2)
        # A step sends the gradient of each of the two ranks, in fp64. At the start rank 0 sends the
        # parameters.
        self.assertGreaterEqual(result["bytes_sent"], 12 * 2 * 8 * FLAT)
        self.assertLess(result["bytes_sent"], (12 * 2 + 1) * 8 * FLAT + 20000)
        self.assertLess(distance(one, over_mpi), 1e-10)

    def test_a_program_that_has_begun_mpi_joins_and_ends_mpi_itself(self):
        # By Starling's own connections and by MPI. The sums of MPI before and after are compared by the
        # program.
        outputs = [self.mpiexec(2, BUILD / "tests/mpi_join", *words)[0] for words in ([], ["comm.engine=mpi"])]
        for output in outputs:
            self.assertRegex(output, r"\A2 ranks, loss 0\.\d{9}\n\Z")
        self.assertEqual(outputs[0][:25], outputs[1][:25])  # seven digits of the loss

    def test_bench_comm(self):
        words = ["bench", "comm", *ENGINE, "--seconds", 0, "--smallest", 256, "--largest", 4096]
        out, _ = self.mpiexec(2, STARLING, *words, "--json")
        timings = [e for e in events_of(out) if e["event"] == "collective_timing"]
        sizes = {256, 1024, 4096}
        self.assertEqual({(e["collective"], e["bytes"]) for e in timings},
                         {(kind, n) for kind in ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast") for n in sizes}
                         | {("barrier", 0)})
        self.assertEqual({(e["algorithm"], e["link"], e["ranks"], e["errors"]) for e in timings}, {("mpi", "mpi", 2, 0)})
        _, err = self.mpiexec(2, STARLING, *words, "--tune", fails=True)
        self.assertIn("--tune: MPI selects its own algorithms", err)

    def test_gossip(self):
        self.train(3, "run", "--exchange", "gossip")

    def test_parameter_server(self):
        self.assertEqual(self.train(3, "run", "--exchange", "parameter-server")["ranks"], 2)

    def test_pipeline(self):
        self.train(2, "run", "--mesh", "stage=2")

    def test_sharded_optimizer(self):
        self.train(2, "run", "--set", "train.shard=optimizer")

    def test_what_mpi_does_not_carry(self):
        for words, pattern in ((["--exchange", "central"], "an exchange in the shared memory of one host needs comm.engine = .starling."),
                               (["--collective", "ring"], "a named collective algorithm needs comm.engine = .starling."),
                               (["--net-security", "encrypt"], "authenticated or encrypted data needs comm.engine = .starling.")):
            _, err = self.run_program(*self.words("run", *ENGINE, *words), status=2)
            self.assertRegex(err, pattern)

    def test_without_mpiexec(self):
        _, err = self.run_program(*self.words("run", *ENGINE, "-n", 2), status=2)
        self.assertRegex(err, r"comm.engine: the ranks of an MPI job are started by mpiexec \(or srun\): mpiexec -n 2 .*starling")

    def test_a_launcher_that_mpi_does_not_know(self):
        env = environment(RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=29500, HOME=self.dir, TMPDIR=self.dir,
                          OMPI_MCA_pml="ob1", OMPI_MCA_btl="^openib,tcp", OMPI_MCA_oob_tcp_if_include="lo")
        done = subprocess.run([RANKS], capture_output=True, text=True, timeout=60, cwd=self.dir, env=env)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"MPI \((\S+ )*\S+\) says that this is rank 0 of 1, but torchrun says rank 0 of 2; start the program with the mpiexec")

    def test_a_rank_that_fails_ends_the_job(self):
        script = (f'[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = 1 ] && exec {STARLING} train --data idx:/none --set comm.engine=mpi; '
                  f'exec {STARLING} {" ".join(map(str, self.words("run", *ENGINE)))}')
        _, err = self.mpiexec(2, "sh", "-c", script, fails=True, timeout=60)
        self.assertIn("/none", err)

    def test_another_build(self):
        done = subprocess.run([RANKS, "other-build"], capture_output=True, text=True, timeout=60, env=environment())
        self.assertEqual(done.stdout, "the engine is of another build than the program; build and install both together\n")

    def test_the_program_itself_sees_no_mpi(self):
        needed = subprocess.run(["ldd", STARLING], capture_output=True, text=True, timeout=60).stdout
        self.assertIn("libtorch_cpu", needed)
        self.assertNotRegex(needed, r"libmpi|libmpich")


class NoMpi(ProgramTest):
    def test_no_plug_in(self):
        alone = shutil.copy(RANKS, self.path("mpi_ranks"))
        done = subprocess.run([alone], capture_output=True, text=True, timeout=60, env=environment())
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"comm.engine: the engine cannot be loaded: .*libstarling_mpi.so.*use comm.engine=starling")


if __name__ == "__main__":
    main()
