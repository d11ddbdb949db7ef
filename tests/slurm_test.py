"""`srun` and MPI start ranks under a real Slurm: the system's munged, slurmctld and slurmd, on loopback."""
import os
import pathlib
import pwd
import random
import shlex
import shutil
import socket
import subprocess
import time
import unittest

import mpi_here
from exchanges_test import FLAT
from program import SMALL, STARLING, ProgramTest, environment, events_of, last_step, main, result_of, wait_for_step

DAEMONS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"


def missing():
    """Returns why no Slurm can be started here, or ""."""
    absent = [d for d in DAEMONS if shutil.which(d, path=PATH) is None]
    if absent:
        return f"Slurm is not installed here: {' '.join(absent)}"
    return "" if os.geteuid() == 0 else "Slurm is not installed here for this user: its daemons want root"


def free_ports(count):
    """Returns ports below those that the kernel gives out by itself.

    So no other test gets them meanwhile.
    """
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    ports = []
    while len(ports) < count:
        port = random.randrange(10000, first)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        if port not in ports:
            ports.append(port)
    return ports


class Cluster:
    """A cluster of one node with two processors. The daemons' files are in `folder`."""

    def __init__(self, folder):
        self.folder, self.processes = folder, []
        host = socket.gethostname().split(".")[0]
        control, node = free_ports(2)
        os.makedirs(self.path("munge"), mode=0o755)
        with open(self.path("munge/key"), "wb") as f:
            f.write(os.urandom(1024))
        os.chmod(self.path("munge/key"), 0o400)
        for name in ("state", "spool"):
            os.makedirs(self.path(name))
        with open(self.path("slurm.conf"), "w", encoding="utf-8") as f:
            f.write(f"""ClusterName=starling
SlurmctldHost={host}(127.0.0.1)
SlurmUser={pwd.getpwuid(os.geteuid()).pw_name}
SlurmctldPort={control}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={self.path("munge/socket")}
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={self.path("state")}
SlurmdSpoolDir={self.path("spool")}
SlurmctldPidFile={self.path("slurmctld.pid")}
SlurmdPidFile={self.path("slurmd.pid")}
SlurmctldLogFile={self.path("slurmctld.log")}
SlurmdLogFile={self.path("slurmd.log")}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
""")
        self.daemon("munged", "--foreground", "--force", "--key-file", self.path("munge/key"), "--socket", self.path("munge/socket"),
                    "--pid-file", self.path("munge/pid"), "--log-file", self.path("munge/log"), "--seed-file", self.path("munge/seed"))
        self.wait(lambda: os.path.exists(self.path("munge/socket")), "munged made no socket")
        self.daemon("slurmctld", "-D", "-i", "-f", self.path("slurm.conf"))
        self.daemon("slurmd", "-D", "-f", self.path("slurm.conf"), "-N", host)
        self.wait(self.idle, "the node did not become idle")

    def path(self, name):
        return os.path.join(self.folder, name)

    def environment(self, **extra):
        return environment(SLURM_CONF=self.path("slurm.conf"), PATH=PATH, **extra)

    def daemon(self, *words):
        with open(self.path(words[0] + ".out"), "wb") as out:
            self.processes.append(subprocess.Popen([shutil.which(words[0], path=PATH), *words[1:]], stdout=out,
                                                   stderr=subprocess.STDOUT, env=self.environment()))

    def idle(self):
        try:
            done = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, timeout=20, env=self.environment())
        except subprocess.TimeoutExpired:
            return False
        return done.stdout.strip() == "idle"

    def wait(self, condition, otherwise):
        deadline = time.monotonic() + 180
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{otherwise}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        text = ""
        for name in ("munged.out", "munge/log", "slurmctld.out", "slurmctld.log", "slurmd.out", "slurmd.log"):
            try:
                with open(self.path(name), encoding="utf-8", errors="replace") as f:
                    text += f"== {name}\n{f.read()[-1500:]}\n"
            except FileNotFoundError:
                pass
        return text

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


REASON = missing()


class SlurmTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.cluster = Cluster(self.dir)
        self.addCleanup(self.cluster.close)

    def run_in_slurm(self, words, fails=False, **variables):
        """Runs a command of Slurm to its end and returns its output."""
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120, cwd=self.dir,
                              env=self.cluster.environment(**variables))
        said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        self.assertEqual(done.returncode != 0, fails, f"{said}\n{self.cluster.logs()}")
        return done.stdout

    def words(self, *more):
        return [STARLING, "train", "--json", "--run-dir", self.path("run"), *SMALL, "--epochs", 4, "--lr", 0.1, "--global-batch", 32, *more]

    def check(self, out):
        result = result_of(events_of(out))
        self.assertEqual(result["ranks"], 2)
        self.assertEqual(result["steps"], 64)
        # A step sends 2 (p - 1) |W| on two ranks. Over MPI, rank 0 sends the parameters at the start.
        self.assertGreaterEqual(result["bytes_sent"], 64 * 2 * 4 * FLAT)
        self.assertLess(result["bytes_sent"], (64 * 2 + 1) * 4 * FLAT + 20000)


@unittest.skipIf(REASON, REASON)
class Slurm(SlurmTest):
    def test_srun_trains_two_ranks(self):
        self.check(self.run_in_slurm(["srun", "-n", 2, "--overcommit", *self.words()]))


    def test_the_batch_script_resumes_when_it_is_submitted_again(self):
        script = pathlib.Path(__file__).resolve().parent.parent / "examples/cluster/train.sbatch"
        # Options of the command line replace those of the script. The node has two processors.
        batch = ["sbatch", "--parsable", "-N", 1, "--ntasks-per-node=2", "--cpus-per-task=1", "--time=5", "--overcommit",
                 "-o", self.path("job.out"), "--export=ALL", script, "--json", *SMALL, "--global-batch", 32]
        variables = {"STARLING": STARLING, "STARLING_RUN": self.path("run"), "STARLING_SRUN": "--overcommit"}
        job = self.run_in_slurm([*batch, "--steps", 4000, "--emulate", "compute=10ms"], **variables).strip()
        wait_for_step(self.path("run"), 5)
        self.run_in_slurm(["scancel", "--signal=TERM", job])
        self.cluster.wait(lambda: not self.run_in_slurm(["squeue", "-h", "-j", job, "-o", "%T", "--states=all"]).strip()
                          in ("RUNNING", "COMPLETING", "PENDING"), "the job did not end")
        step = last_step(self.path("run"))
        self.run_in_slurm([*batch[:1], "--wait", *batch[1:], "--steps", step + 5], **variables)
        out = pathlib.Path(self.path("job.out")).read_text(encoding="utf-8")
        self.assertIn('"interrupted":true', out)
        result = result_of(events_of(out))
        self.assertEqual((result["ranks"], result["steps"]), (2, step + 5))
        self.assertFalse(list(pathlib.Path(self.dir).glob(".starling-key-*")))


REASON_MPI = REASON or mpi_here.missing()


@unittest.skipIf(REASON_MPI, REASON_MPI)
class SlurmMpi(SlurmTest):
    """Runs with comm.engine=mpi, whose ranks srun starts, or mpiexec in an allocation."""

    def srun(self):
        way = "pmix" if mpi_here.is_open_mpi() else "pmi2"
        known = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, timeout=60, env=self.cluster.environment())
        if way not in (known.stdout + known.stderr).split():
            self.skipTest(f"Slurm is not installed here with its plug-in mpi/{way}")
        return ["srun", f"--mpi={way}", "--kill-on-bad-exit=1", "-n", 2, "--overcommit"]

    def test_srun(self):
        self.check(self.run_in_slurm([*self.srun(), *self.words(*mpi_here.ENGINE)], **mpi_here.variables(self.dir)))

    def test_srun_ends_the_job_when_a_rank_dies(self):
        script = '[ "$SLURM_PROCID" = 1 ] && kill -9 $$; exec ' + shlex.join(map(str, self.words(*mpi_here.ENGINE)))
        self.run_in_slurm([*self.srun(), "sh", "-c", script], fails=True, **mpi_here.variables(self.dir))

    def test_mpiexec_in_an_allocation(self):
        self.check(self.run_in_slurm(["salloc", "-n", 2, *mpi_here.mpiexec(), "-n", 2, *self.words(*mpi_here.ENGINE)],
                                     **mpi_here.variables(self.dir)))

    def test_mpiexec_in_a_batch_script(self):
        words = [*mpi_here.mpiexec(), "-n", 2, *self.words(*mpi_here.ENGINE)]
        with open(self.path("job.sh"), "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\nexec {shlex.join(map(str, words))}\n")
        self.run_in_slurm(["sbatch", "--wait", "-n", 2, "-o", self.path("job.out"), self.path("job.sh")], **mpi_here.variables(self.dir))
        with open(self.path("job.out"), encoding="utf-8") as f:
            self.check(f.read())


if __name__ == "__main__":
    main()
