"""Training on two hosts, which are network namespaces: equal weights, traffic, keys, lost ranks, ports."""
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import unittest

from program import SMALL, STARLING, ProgramTest, distance, environment, events_of, main, result_of, wait_for_step

ADDRESS = [f"10.98.0.{h + 1}" for h in range(8)]
ADDRESS_6 = [f"fd98::{h + 1}" for h in range(8)]  # IPv6
PORT = 29500


def shell(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=20)


def unavailable():
    """Returns why this machine does not permit network namespaces, or ""."""
    name = f"starling-{os.getpid()}-try"
    try:
        made = shell("ip", "netns", "add", name)
        if made.returncode == 0:
            made = shell("ip", "-n", name, "link", "add", "br0", "type", "bridge")
            shell("ip", "netns", "del", name)
    except OSError as error:
        return f"network namespaces are not permitted here: {error}"
    return "" if made.returncode == 0 else f"network namespaces are not permitted here: {made.stderr.strip()}"


REASON = unavailable()


class Hosts:
    """Network namespaces that stand for hosts. Each has an address and a host name. A bridge connects them.

    close() removes the namespaces and kills every process inside. If this process ends without close(), for
    example by a signal, a shell that outlives it removes them.
    """

    KEEPER = ('trap "" INT TERM HUP; read line; for name; do ip netns pids $name | xargs -r kill -9; ip netns del $name; done')

    def __init__(self, count=2):
        self.bridge = f"starling-{os.getpid()}-bridge"
        self.names = [f"starling-{os.getpid()}-host{h}" for h in range(count)]
        self.keeper = subprocess.Popen(["sh", "-c", self.KEEPER, "sh", *self.names, self.bridge], stdin=subprocess.PIPE,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.must("netns", "add", self.bridge)
        self.must("-n", self.bridge, "link", "add", "br0", "type", "bridge")
        self.must("-n", self.bridge, "link", "set", "br0", "up")
        for h, name in enumerate(self.names):
            self.must("netns", "add", name)
            self.must("-n", name, "link", "set", "lo", "up")
            self.must("-n", self.bridge, "link", "add", f"port{h}", "type", "veth", "peer", "name", "eth0", "netns", name)
            self.must("-n", self.bridge, "link", "set", f"port{h}", "master", "br0", "up")
            self.must("-n", name, "addr", "add", f"{ADDRESS[h]}/24", "dev", "eth0")
            self.must("-n", name, "link", "set", "eth0", "up")

    def add_ipv6(self):
        """Gives each host an IPv6 address beside its IPv4 address."""
        for h, name in enumerate(self.names):
            self.must("-n", name, "addr", "add", f"{ADDRESS_6[h]}/64", "dev", "eth0", "nodad")

    @staticmethod
    def must(*words):
        done = shell("ip", *words)
        if done.returncode != 0:
            raise AssertionError(f"ip {' '.join(words)}: {done.stderr}")

    def close(self):
        self.keeper.communicate()

    def command(self, host, words):
        """Returns the command that runs `words` on a host. Inside, the host's name is host-0, host-1, …"""
        rename = f'echo host-{host} > /proc/sys/kernel/hostname; exec "$@"'
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", rename, "sh", *words]

    def sent_bytes(self, host):
        """Returns the bytes that the host has sent to the network."""
        done = shell(*self.command(host, ["cat", "/sys/class/net/eth0/statistics/tx_bytes"]))
        return int(done.stdout)


@unittest.skipIf(REASON, REASON)
class EndOfHosts(unittest.TestCase):
    MAKER = ("import subprocess, sys; from hosts_test import Hosts; hosts = Hosts(1); "
             "inside = subprocess.Popen(hosts.command(0, ['sleep', '1000'])); print(inside.pid, flush=True); sys.stdin.read()")

    def test_they_go_with_their_process_however_that_ends(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            with subprocess.Popen([sys.executable, "-B", "-c", self.MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  cwd=os.path.dirname(os.path.abspath(__file__))) as maker:
                inside = int(maker.stdout.readline())
                self.assertIn(f"starling-{maker.pid}-host0", shell("ip", "netns", "list").stdout)
                maker.send_signal(number)
            end = time.monotonic() + 30
            while f"starling-{maker.pid}-" in shell("ip", "netns", "list").stdout:
                self.assertLess(time.monotonic(), end, "namespaces are left")
                time.sleep(0.02)
            try:
                with open(f"/proc/{inside}/cmdline", "rb") as command:
                    self.assertEqual(command.read(), b"", "what ran inside is left")
            except FileNotFoundError:
                pass


class OnHosts(ProgramTest):
    COUNT = 2

    def setUp(self):
        super().setUp()
        self.hosts = Hosts(self.COUNT)
        self.addCleanup(self.hosts.close)
        self.key = self.key_file("job.key")

    def key_file(self, name):
        with open(os.open(self.path(name), os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as f:
            f.write(secrets.token_hex(32) + "\n")
        return self.path(name)

    def start_rank(self, words, rank, ranks_on, key=None, master=ADDRESS[0]):
        """Starts a rank of a job with ranks_on[h] ranks on host h, with torchrun's environment variables."""
        host = next(h for h in range(len(ranks_on)) if rank < sum(ranks_on[:h + 1]))
        env = environment(RANK=rank, WORLD_SIZE=sum(ranks_on), LOCAL_RANK=rank - sum(ranks_on[:host]),
                          LOCAL_WORLD_SIZE=ranks_on[host], MASTER_ADDR=master, MASTER_PORT=PORT, OMP_NUM_THREADS=1)
        process = subprocess.Popen(self.hosts.command(host, [STARLING, *map(str, words), "--set", f"comm.key_file={key or self.key}"]),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.dir, env=env)
        self.addCleanup(self.end, process)
        return process

    def start_job(self, words, ranks_on):
        return [self.start_rank(words, rank, ranks_on) for rank in range(sum(ranks_on))]

    def job(self, words, ranks_on):
        """Runs a job, which must succeed. Returns the events of rank 0."""
        processes = self.start_job(words, ranks_on)
        ends = [self.ended(p, timeout=120) for p in processes]
        self.assertEqual([p.returncode for p in processes], [0] * len(processes), [e[2] for e in ends])
        return events_of(ends[0][1])

    def training(self, *more):
        return ["train", "--json", "--run-dir", self.path("run"), "--resume", "never", *SMALL, "--global-batch", 24, "--precision",
                "fp64", *more]


@unittest.skipIf(REASON, REASON)
class FourHosts(OnHosts):
    COUNT = 4

    def sent(self, steps, *more):
        """Runs four ranks.

        Returns the bytes of the steps as the ranks count them, and the bytes that crossed the network.
        """
        before = sum(self.hosts.sent_bytes(h) for h in range(4))
        words = ["train", "--json", "--run-dir", self.path("run"), "--resume", "never", *SMALL, "--global-batch", 24, "--steps", steps,
                 "--set", "model.widths=[784,1024,10]", "--set", "train.hash_every=0", *more]
        result = result_of(self.job(words, [1, 1, 1, 1]))
        return result["strategy"]["step_bytes"], sum(self.hosts.sent_bytes(h) for h in range(4)) - before

    def test_steps_send_on_the_wire_what_they_count(self):
        # Two runs differ by their steps only, so that the bytes of the start and the end do not matter.
        for words, steps in (([], 4), (["--codec", "fp16"], 8), (["--codec", "int8"], 15), (["--exchange", "gossip"], 3)):
            with self.subTest(words=words):
                few, many = self.sent(1, *words), self.sent(1 + steps, *words)
                counted, wire = many[0] - few[0], many[1] - few[1]
                self.assertGreater(counted, 64e6)
                self.assertLess(abs(wire - counted), 0.07 * counted, (counted, wire))


@unittest.skipIf(REASON, REASON)
class TwoHosts(OnHosts):
    def test_weights_equal_one_process(self):
        words = self.training("--steps", 12)
        self.run_program(*words, "--save", self.path("alone.safetensors"))
        for ranks_on, more in (([1, 1], []), ([2, 2], []), ([2, 1], []), ([2, 2], ["--set", "optimizer.share=replicated"]),
                               ([1, 1], ["--threads", 2, "--set", "train.threads_mode=batch"]),
                               ([2, 1], ["--set", "optimizer.clip_norm=1e9"])):
            events = self.job([*words, "--save", self.path("hosts.safetensors"), *more], ranks_on)
            self.assertEqual(result_of(events)["ranks"], sum(ranks_on))
            self.assertLess(distance(self.path("alone.safetensors"), self.path("hosts.safetensors")), 1e-12, (ranks_on, more))

    def test_ranks_meet_and_train_over_ipv6(self):
        self.hosts.add_ipv6()
        for more in ([], ["--set", "comm.interface=eth0"]):
            processes = [self.start_rank(self.training("--steps", 4, *more), rank, [1, 1], master=ADDRESS_6[0]) for rank in range(2)]
            ends = [self.ended(p, timeout=120) for p in processes]
            self.assertEqual([p.returncode for p in processes], [0, 0], [e[2] for e in ends])
            self.assertEqual(result_of(events_of(ends[0][1]))["ranks"], 2)

    def test_bytes_sent_are_those_on_the_wire(self):
        before = sum(self.hosts.sent_bytes(h) for h in range(2))
        words = self.training("--steps", 10, "--set", "model.widths=[784,256,10]", "--set", "train.hash_every=0")
        result = result_of(self.job(words, [1, 1]))
        wire = sum(self.hosts.sent_bytes(h) for h in range(2)) - before
        # Each of the two hosts sends its part of one half and the sum of the other half, 8 bytes per element.
        self.assertGreater(result["bytes_sent"], 10 * 2 * 8 * result["params"])
        self.assertLess(abs(wire - result["bytes_sent"]), 0.05 * wire, result)

    def test_codecs_send_on_the_wire_what_they_count(self):
        sent = {}
        for codec in ("none", "fp16", "int8", "1bit"):
            before = sum(self.hosts.sent_bytes(h) for h in range(2))
            words = ["train", "--json", "--run-dir", self.path("run"), "--resume", "never", *SMALL, "--global-batch", 24, "--steps", 20,
                     "--set", "model.widths=[784,1024,10]", "--set", "train.hash_every=0", "--codec", codec]
            result = result_of(self.job(words, [1, 1]))
            wire = sum(self.hosts.sent_bytes(h) for h in range(2)) - before
            sent[codec] = result["strategy"]["step_bytes"]
            self.assertLess(result["bytes_sent"], wire, codec)
            # After the result rank 1 sends its state: parameters, momentum and residual. Rank 0 writes the
            # weights.
            state = 0 if codec == "none" else 3 * 4 * result["params"]
            self.assertLess(wire, 1.07 * (result["bytes_sent"] + state), codec)
        for codec, least in (("fp16", 1.99), ("int8", 3.9), ("1bit", 24)):
            self.assertGreater(sent["none"] / sent[codec], least)

    def test_verify(self):
        small = ["verify", "--json", "--data", "digits", "--global-batch", 4, "--set", "data.samples=64", "--set",
                 "data.test_samples=4", "--set", "verify.steps=2"]
        for more in (["--model", "lenet5"], ["--model", "resnet18", "--set", "model.batch_norm=sync"]):
            events = self.job([*small, *more], [1, 1])
            self.assertTrue(events[-1]["passed"])
            self.assertLess(events[-1]["largest"], 1e-10)

    def test_wrong_key(self):
        other = self.key_file("other.key")
        words = self.training("--steps", 8, "--set", "comm.timeout_s=15")
        processes = [self.start_rank(words, 0, [1, 1]), self.start_rank(words, 1, [1, 1], other)]
        ends = [self.ended(p, timeout=120) for p in processes]
        self.assertEqual([p.returncode for p in processes], [4, 4], ends)
        self.assertRegex(ends[1][2], "key")
        self.assertRegex(ends[0][2], "rank 1")

    def test_a_rank_killed_on_the_other_host_is_named(self):
        processes = self.start_job(self.training("--steps", 100000), [2, 2])
        wait_for_step(self.path("run"), 5)
        # `sh` has replaced itself by the program (exec), so the started process is the rank.
        os.kill(processes[3].pid, signal.SIGKILL)
        begin = time.monotonic()
        ends = [self.ended(p, timeout=60) for p in processes]
        self.assertLess(time.monotonic() - begin, 30)  # the promise is 5 s; a busy machine adds some
        for process, end in zip(processes[:3], ends):
            self.assertEqual(process.returncode, 4, end)
            self.assertRegex(end[2], r"rank 3")
        self.assertRegex(ends[0][2], "host-1")
        said = [end[2] for end in ends if "who waited for whom" in end[2]]
        self.assertEqual(len(said), 1, said)  # without a launcher, the first rank that stopped waiting reports it
        self.assertRegex(said[0], r"rank [0-2] \(.*\) stopped waiting in \S+ #\d+")
        # The report covers one host.
        self.assertEqual(len(set(re.findall(r"^  rank \d \((host-\d)\)", said[0], re.MULTILINE))), 1, said)
        self.assertIn("2 ranks of other hosts left out", said[0])

    def test_listens_on_the_chosen_address_only(self):
        processes = self.start_job(self.training("--steps", 100000), [2, 1])
        wait_for_step(self.path("run"), 5)
        for host in range(2):
            listening = shell(*self.hosts.command(host, ["ss", "-ltnH"])).stdout
            addresses = {line.split()[3].rsplit(":", 1)[0] for line in listening.splitlines()}
            self.assertLessEqual(addresses, {ADDRESS[host]}, listening)
        for process in processes:
            process.terminate()
        self.assertEqual([(self.ended(p), p.returncode)[1] for p in processes], [128 + signal.SIGTERM] * 3)

    def test_port_in_use(self):
        taken = subprocess.Popen(self.hosts.command(0, ["python3", "-c", "import socket, sys; s = socket.create_server(("
                                                        f"'{ADDRESS[0]}', {PORT + 1})); print('ready', flush=True); sys.stdin.read()"]),
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (taken.communicate(timeout=10)))
        self.assertEqual(taken.stdout.readline(), "ready\n")
        rank = self.start_rank(self.training("--steps", 8, "--set", "comm.timeout_s=4"), 0, [1, 1])
        _, _, err = self.ended(rank)
        self.assertEqual(rank.returncode, 4, err)
        self.assertIn(f"port {PORT + 1} of {ADDRESS[0]} is in use", err)
        self.assertIn("MASTER_PORT", err)


if __name__ == "__main__":
    main()
