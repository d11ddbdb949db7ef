"""Ranks on two hosts over a real sshd in each of two network namespaces."""
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

import hosts_test
from hosts_test import ADDRESS, Hosts, shell
from launched import CHILD, LaunchedOnHosts
from program import main

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
PORT = 2222
SILENT = "10.98.0.3"  # an address of the second host where nobody listens


def no_sshd():
    """Returns why no sshd can be started here, or ""."""
    if not SSHD or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        return "sshd is not installed here"
    if os.geteuid() != 0:
        return "sshd is not installed here for this user: it wants root"
    return "sshd is not installed here for root, whose account is locked" if ":!" in shell("getent", "shadow", "root").stdout else ""


REASON = hosts_test.REASON or no_sshd()


@unittest.skipIf(REASON, REASON)
class OverSsh(LaunchedOnHosts):
    """Runs an sshd in each namespace, with keys and a configuration of the test."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        Hosts.must("-n", cls.hosts.names[1], "addr", "add", f"{SILENT}/24", "dev", "eth0")

    def setUp(self):
        super().setUp()
        self.make_folder_of_sshd()
        for name in ("host_key", "user_key"):
            done = shell("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(name))
            self.assertEqual(done.returncode, 0, done.stderr)
        for host in range(2):
            self.serve(host)
        self.client = (f"ip netns exec {self.hosts.names[0]} ssh -F none -i {self.path('user_key')} -p {PORT} -o BatchMode=yes -o "
                       "StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=10")

    def make_folder_of_sshd(self):
        """Makes the empty folder to which sshd confines itself before a login, if the machine lacks it."""
        if not os.path.isdir("/run/sshd"):
            os.mkdir("/run/sshd")
            self.addCleanup(os.rmdir, "/run/sshd")

    def serve(self, host):
        with open(self.path(f"sshd{host}"), "w", encoding="utf-8") as f:
            f.write(f"ListenAddress {ADDRESS[host]}:{PORT}\nHostKey {self.path('host_key')}\nPidFile none\nUsePAM no\n"
                    f"AuthorizedKeysFile {self.path('user_key.pub')}\nStrictModes no\nPasswordAuthentication no\n"
                    "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nPrintMotd no\n")
        log = open(self.path(f"sshd{host}.log"), "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen(self.hosts.command(host, [SSHD, "-D", "-e", "-f", self.path(f"sshd{host}")]), stderr=log, stdout=log)
        self.addCleanup(process.wait, 20)
        self.addCleanup(process.terminate)
        end = time.monotonic() + 30
        while f":{PORT}" not in shell(*self.hosts.command(host, ["ss", "-ltnH"])).stdout:
            said = pathlib.Path(self.path(f"sshd{host}.log")).read_text(encoding="utf-8")
            self.assertLess(time.monotonic(), end, said)
            self.assertIsNone(process.poll(), said)
            time.sleep(0.02)

    def assert_nobody_left(self):
        """Expects that only sshd remains in each namespace.

        sshd gives the ranks another environment, so that the mark in the environment does not find them.
        """
        super().assert_nobody_left()
        end = time.monotonic() + 20
        while len(self.guests()) > 0 and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(self.guests(), [])

    def guests(self):
        pids = [int(p) for name in self.hosts.names for p in shell("ip", "netns", "pids", name).stdout.split()]
        words = [self.words_of(p) for p in pids]
        return [w for w in words if w != [""] and "[listener]" not in w[0]]

    def test_ranks_meet_and_end_with_their_connection_and_their_launcher(self):
        hosts = f"{ADDRESS[0]}:2,{ADDRESS[1]}"
        out = self.ends(self.launch(hosts, self.client, "meet"), 0, "^$")
        self.assertIn(f"rank 0 of 3, local 0 of 2, master {ADDRESS[0]}:", out)
        self.assertIn(f"rank 2 of 3, local 0 of 1, master {ADDRESS[0]}:", self.log(2))

        shutil.rmtree(self.path("run"))
        process = self.begun(hosts, self.client, "stay")
        client = [p for p in self.family() if self.words_of(p)[0] == "ssh" and ADDRESS[1] in self.words_of(p)]
        os.kill(client[0], signal.SIGKILL)
        self.ends(process, 4, rf"error: rank 2 \({ADDRESS[1]}\): the connection to host {ADDRESS[1]} ended \(signal 9\)")

        shutil.rmtree(self.path("run"))
        process = self.begun(hosts, self.client, "stay")
        process.kill()
        process.communicate(timeout=30)
        self.assert_nobody_left()

    def test_a_host_where_nobody_listens(self):
        self.ends(self.launch(f"{ADDRESS[0]},{SILENT}", self.client, "ok"), 4,
                  rf"host {SILENT} cannot be reached \(ip ended with exit status 255\): ssh: connect to host {SILENT}")

    def test_a_program_that_the_host_lacks(self):
        self.ends(self.launch(ADDRESS[1], self.client, "ok", LAUNCH_PROGRAM=CHILD + "-none"), 2, rf"host {ADDRESS[1]} cannot run {CHILD}-none: ")


if __name__ == "__main__":
    main()
