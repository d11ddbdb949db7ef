"""The plug-in of python/ as a backend of torch.distributed, in real processes.

Results equal those of Gloo. DDP, FSDP2, DeviceMesh and pipelining run on the plug-in. After a killed rank,
the other ranks get an error that names it. Ranks on two hosts need the job key.
"""
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import unittest

import torch

from peer import ROOT, FolderTest

RANKS = pathlib.Path(__file__).with_name("c10d_ranks.py")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks(FolderTest):
    def start(self, words, size, prefix=lambda rank: [], master="127.0.0.1", **more):
        """Starts a job in torchrun's environment and returns the processes of its ranks."""
        port = free_port()
        started = []
        for rank in range(size):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR=master,
                       MASTER_PORT=str(port), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", **more)
            process = subprocess.Popen([*prefix(rank), sys.executable, *map(str, words)], env=env, cwd=self.dir, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
            self.addCleanup(self.end, process)
            started.append(process)
        return started

    @staticmethod
    def end(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()

    def ended(self, processes, statuses=None, timeout=250):
        """Waits for the processes and returns their outputs.

        Their exit statuses must be `statuses`, by default 0.
        """
        outputs = [p.communicate(timeout=timeout)[0] for p in processes]
        self.assertEqual([p.returncode for p in processes], statuses or [0] * len(processes), "\n".join(outputs))
        return outputs


class OneHost(Ranks):
    def test_two_ranks(self):
        self.ended(self.start([RANKS, "collectives", "objects_and_messages", "waiting_lets_others_run", "devices", "ddp", "buckets",
                               "remade_ddp", "fsdp", "mesh", "pipeline"], 2))

    def test_four_ranks(self):
        self.ended(self.start([RANKS, "collectives", "objects_and_messages", "one_sided", "ddp", "fsdp", "mesh", "pipeline"], 4))

    def test_hooks_and_coalescing(self):
        # The second check ends the group.
        self.ended(self.start([RANKS, "one_sided", "hooks_and_coalescing"], 2))

    def test_a_killed_rank_is_named(self):
        for size in (2, 4):
            outputs = self.ended(self.start([RANKS, "killed"], size), [0] * (size - 1) + [-signal.SIGKILL])
            for output in outputs[:-1]:
                self.assertIn("named the lost rank", output)

    def test_ranks_may_end_without_a_word(self):
        """Ranks may end without destroy_process_group and at different times."""
        outputs = self.ended(self.start([RANKS, "mesh"], 2, no_farewell="1"))
        for output in outputs:
            self.assertNotIn("is lost", output)
            self.assertNotIn("left the group", output)

    def test_one_rank_alone(self):
        self.ended(self.start(["-c", "import torch, torch.distributed as d; d.init_process_group('starling'); "
                               "t = torch.ones(3); d.all_reduce(t); assert t.sum() == 3; d.destroy_process_group()"], 1))


class Gpus(Ranks):
    @unittest.skipIf(torch.cuda.device_count() == 0, "no GPU is lent here")
    def test_nccl_carries_their_tensors(self):
        self.ended(self.start([RANKS, "gpu"], min(2, torch.cuda.device_count())))

    def test_the_plug_in_for_programs_in_cpp_compiles(self):
        """plugins/nccl compiles against this torch. The torch of `make build` has no headers of NCCL."""
        packages = pathlib.Path(torch.__file__).parents[1]
        includes = [packages / "torch/include", packages / "torch/include/torch/csrc/api/include", *packages.glob("nvidia/*/include"),
                    packages / "triton/backends/nvidia/include"]
        if not all(any((folder / name).is_file() for folder in includes) for name in ("nccl.h", "crt/host_config.h")):
            self.skipTest("NCCL's headers are not installed here")
        command = [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", "-DUSE_DISTRIBUTED", "-DUSE_C10D", "-DUSE_C10D_NCCL",
                   "-I.", *(word for folder in includes for word in ("-isystem", str(folder))), "plugins/nccl/plugin.cc"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)


def shell(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=20)


def unavailable():
    """Returns why this machine does not permit network namespaces, or ""."""
    name = f"starling-{os.getpid()}-try"
    try:
        made = shell("ip", "netns", "add", name)
        shell("ip", "netns", "del", name)
    except OSError as error:
        return f"network namespaces are not permitted here: {error}"
    return "" if made.returncode == 0 else f"network namespaces are not permitted here: {made.stderr.strip()}"


REASON = unavailable()


@unittest.skipIf(REASON, REASON)
class TwoHosts(Ranks):
    """Runs ranks in two network namespaces, which a virtual cable connects. Each has two ranks."""

    def setUp(self):
        super().setUp()
        self.names = [f"starling-{os.getpid()}-{h}" for h in range(2)]
        for name in self.names:
            self.must("netns", "add", name)
            self.addCleanup(shell, "ip", "netns", "del", name)
        self.must("-n", self.names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.names[1])
        for h, name in enumerate(self.names):
            self.must("-n", name, "addr", "add", f"10.97.0.{h + 1}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                self.must("-n", name, "link", "set", link, "up")

    def must(self, *words):
        done = shell("ip", *words)
        self.assertEqual(done.returncode, 0, done.stderr)

    def hosts(self, words, **more):
        return self.start(words, 4, lambda rank: ["ip", "netns", "exec", self.names[rank // 2]], "10.97.0.1",
                          GLOO_SOCKET_IFNAME="eth0", **more)

    def key_file(self):
        key = self.dir / "job.key"
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(32) + "\n")
        return str(key)

    def test_with_a_key(self):
        self.ended(self.hosts([RANKS, "collectives", "one_sided", "ddp"], STARLING_KEY_FILE=self.key_file()))

    def test_data_between_hosts_is_protected_as_the_variable_says(self):
        key = self.key_file()
        self.ended(self.hosts([RANKS, "collectives"], STARLING_KEY_FILE=key, STARLING_NET_SECURITY="encrypt"))
        for output in self.ended(self.hosts([RANKS, "collectives"], STARLING_KEY_FILE=key, STARLING_NET_SECURITY="yes"), [1] * 4):
            self.assertIn("STARLING_NET_SECURITY", output)
            self.assertIn("none, auth or encrypt", output)

    def test_different_protection_is_named_on_both_hosts(self):
        key = self.key_file()
        setting = {0: "auth", 1: "encrypt"}

        def on_host(rank):
            host = rank // 2
            return ["ip", "netns", "exec", self.names[host], "env", "STARLING_NET_SECURITY=" + setting[host]]

        ranks = self.start([RANKS, "collectives"], 4, on_host, "10.97.0.1", GLOO_SOCKET_IFNAME="eth0", STARLING_KEY_FILE=key)
        for rank in ranks[2:]:
            self.assertIn("the peer uses --net-security auth and this process uses encrypt", rank.communicate(timeout=250)[0])

    def test_without_a_key_the_error_says_how_to_make_one(self):
        outputs = self.ended(self.hosts([RANKS]), [1] * 4)
        for output in outputs:
            self.assertIn("several hosts", output)
            self.assertIn("token_hex(32)", output)
            self.assertIn("STARLING_KEY_FILE", output)


if __name__ == "__main__":
    unittest.main()
