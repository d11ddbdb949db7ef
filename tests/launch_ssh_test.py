"""One command that starts ranks on several hosts over a real sshd in each of two network namespaces."""
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

import hosts_test
from hosts_test import ADDRESS, Hosts, shell
from launched import Launched, variables_of_all
from program import SMALL, STARLING, distance, events_of, main, result_of, wait_for_step

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def no_sshd():
    """Why no sshd can be started here, or ""."""
    if not SSHD or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        return "sshd is not installed here"
    return "" if os.geteuid() == 0 else "sshd is not installed here for this user: it wants root"


@unittest.skipIf(hosts_test.REASON or no_sshd(), hosts_test.REASON or no_sshd())
class OverSsh(Launched):
    """An sshd in each namespace, with keys and a configuration of the test's own."""
    PORT = 2222

    def setUp(self):
        super().setUp()
        self.hosts = Hosts()
        self.addCleanup(self.hosts.close)
        os.makedirs("/run/sshd", exist_ok=True)  # where sshd shuts itself in before anybody has logged in
        for name in ("host_key", "user_key"):
            done = shell("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(name))
            self.assertEqual(done.returncode, 0, done.stderr)
        for host in range(2):
            self.serve(host)
        self.client = (f"ssh -F none -i {self.path('user_key')} -p {self.PORT} -o BatchMode=yes -o StrictHostKeyChecking=no -o "
                       "UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=10")

    def serve(self, host):
        with open(self.path(f"sshd{host}"), "w", encoding="utf-8") as f:
            f.write(f"ListenAddress {ADDRESS[host]}:{self.PORT}\nHostKey {self.path('host_key')}\nPidFile none\nUsePAM no\n"
                    f"AuthorizedKeysFile {self.path('user_key.pub')}\nStrictModes no\nPasswordAuthentication no\n"
                    "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nPrintMotd no\n")
        log = open(self.path(f"sshd{host}.log"), "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen(self.hosts.command(host, [SSHD, "-D", "-e", "-f", self.path(f"sshd{host}")]), stderr=log, stdout=log)
        self.addCleanup(process.wait, 20)
        self.addCleanup(process.terminate)
        end = time.monotonic() + 30
        while f":{self.PORT}" not in shell(*self.hosts.command(host, ["ss", "-ltnH"])).stdout:
            self.assertLess(time.monotonic(), end, pathlib.Path(self.path(f"sshd{host}.log")).read_text(encoding="utf-8"))
            self.assertIsNone(process.poll(), pathlib.Path(self.path(f"sshd{host}.log")).read_text(encoding="utf-8"))
            time.sleep(0.05)

    def launch(self, hosts, *more):
        words = self.hosts.command(0, [STARLING, *self.words(hosts, self.client, *more)])
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.dir, env=self.env)
        self.addCleanup(self.end, process)
        return process

    def ranks(self):
        """PIDs by rank: sshd gives the program an environment of its own, so the run's folder tells."""
        mine = self.path("run").encode()
        return {int(v[b"RANK"]): pid for pid, v in variables_of_all() if v.get(b"STARLING_RUN_DIR") == mine}

    def gone(self):
        end = time.monotonic() + 20
        while self.ranks() and time.monotonic() < end:
            time.sleep(0.05)
        return not self.ranks()

    def test_training(self):
        self.run_program("train", "--json", "--run-dir", self.path("alone"), *SMALL, "--precision", "fp64", "--global-batch", 24,
                         "--steps", 8, "-n", 2, "--save", self.path("alone.safetensors"), env=self.env)
        process = self.launch(",".join(ADDRESS), "--steps", 8, "--save", self.path("hosts.safetensors"))
        _, out, err = self.ended(process)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(result_of(events_of(out))["ranks"], 2)
        self.assertEqual(distance(self.path("alone.safetensors"), self.path("hosts.safetensors")), 0)

    def test_a_connection_that_is_killed(self):
        process = self.launch(",".join(ADDRESS), "--steps", 1000000)
        wait_for_step(self.path("run"), 5)
        client = [p for p in self.family() if "ssh" in self.words_of(p)[0] and
                  ADDRESS[1] in self.words_of(p)]
        os.kill(client[-1], signal.SIGKILL)
        _, _, err = self.ended(process, timeout=60)
        self.assertEqual(process.returncode, 4, err)
        self.assertRegex(err, rf"error: rank 1 \({ADDRESS[1]}\): the connection to host {ADDRESS[1]} ended \(signal 9\)")
        self.assertTrue(self.gone())

    def test_nobody_survives_the_launcher(self):
        process = self.launch(",".join(ADDRESS), "--steps", 1000000)
        wait_for_step(self.path("run"), 5)
        process.kill()  # `ip netns exec` and `sh` became the program
        process.communicate()
        self.assertTrue(self.gone())

    def test_a_host_where_nobody_listens(self):
        process = self.launch(f"{ADDRESS[0]},10.98.0.77", "--steps", 8)
        _, _, err = self.ended(process, timeout=60)
        self.assertEqual(process.returncode, 4, err)
        self.assertRegex(err, r"host 10.98.0.77 cannot be reached \(ssh ended with exit status 255\): ssh: connect to host")


if __name__ == "__main__":
    main()
