"""One command that starts ranks on several hosts, which are network namespaces, over a stand-in for ssh."""
import os
import pathlib
import re
import shutil
import signal
import unittest

import hosts_test
from hosts_test import ADDRESS, Hosts, shell
from launched import Launched
from program import SMALL, distance, events_of, main, result_of, wait_for_step


@unittest.skipIf(hosts_test.REASON, hosts_test.REASON)
class SeveralHosts(Launched):
    HOSTS = "host0:2,host1:2"

    def setUp(self):
        super().setUp()
        self.hosts = Hosts()
        self.addCleanup(self.hosts.close)

    def reach(self, how="exec"):
        """Stands for ssh: the hosts are called host0 and host1."""
        enter = 'unshare --uts sh -c \'echo "$1" > /proc/sys/kernel/hostname; cd /; exec sh -c "$2"\' sh "$1" "$2"'
        return self.script("reach", f'echo "Welcome to $1"\n{how} ip netns exec {self.hosts.bridge.removesuffix("bridge")}"$1" {enter}\n')

    def begin(self, *more, command=None):
        process = self.start(*self.words(self.HOSTS, command or self.reach(), "--steps", 1000000, *more), env=self.env)
        wait_for_step(self.path("run"), 5)
        return process

    def test_weights_equal_those_of_one_host(self):
        def trained(name, *words):
            events, _ = self.run_program(*words, "--steps", 12, "--save", self.path(name + ".safetensors"), env=self.env)
            return result_of(events)

        alone = ["train", "--json", "--run-dir", self.path("alone"), "--resume", "never", *SMALL, "--precision", "fp64", "--global-batch", 24]
        trained("two", *alone, "-n", 2)
        trained("four", *alone, "-n", 4)
        self.assertEqual(trained("hosts2", *self.words("host0,host1", self.reach()))["ranks"], 2)
        self.assertLess(distance(self.path("two.safetensors"), self.path("hosts2.safetensors")), 1e-12)
        self.assertEqual(trained("hosts4", *self.words(self.HOSTS, self.reach()))["ranks"], 4)
        self.assertLess(distance(self.path("four.safetensors"), self.path("hosts4.safetensors")), 1e-12)
        self.assertEqual(trained("hosts3", *self.words(self.HOSTS, self.reach(), "-n", 3, "--set", "comm.interface=eth0"))["ranks"], 3)
        self.assertEqual(sorted(os.listdir(self.path("run/log"))), [f"rank-{r}.log" for r in range(4)])
        self.assert_nobody_left()

    def test_parameter_servers(self):
        events, _ = self.run_program(*self.words(self.HOSTS, self.reach(), "--exchange", "parameter-server", "--servers", 1, "--steps", 4), env=self.env)
        self.assertEqual(result_of(events)["ranks"], 3)

    def test_a_killed_rank_is_named_with_its_host(self):
        process = self.begin()
        os.kill(self.pid_of(3), signal.SIGKILL)
        seconds, _, err = self.ended(process, timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(err, r"error: rank 3 \(host1\) was killed by signal 9 \(SIGKILL\) after step \d+")
        self.assertEqual(err.count("error: "), 1, err)
        self.assertLess(seconds, 30)
        self.assert_nobody_left()

    def test_others_go_on_without_a_killed_rank(self):
        for rank, host in ((2, "host1"), (0, "host0")):
            process = self.start(*self.words(self.HOSTS, self.reach(), "--steps", 400, "--on-failure", "continue"), env=self.env)
            wait_for_step(self.path("run"), 5)
            os.kill(self.pid_of(rank), signal.SIGKILL)
            _, out, err = self.ended(process, timeout=120)
            self.assertEqual(process.returncode, 0, err)
            self.assertRegex(err, rf"warning: rank {rank} \({host}\) was killed by signal 9 .*; 3 ranks go on")
            self.assertEqual(result_of(events_of(out))["steps"], 400)
            shutil.rmtree(self.path("run"))

    def test_a_connection_that_ends(self):
        # What it runs on the host is not in its process group: only the end of its input tells the agent.
        process = self.begin(command=self.reach(how="cat | setsid"))
        agents = [p for p, v in self.family().items() if b"RANK" not in v and self.words_of(p)[0] == "cat"]
        self.assertEqual(len(agents), 2)
        os.killpg(os.getpgid(max(agents)), signal.SIGKILL)
        _, _, err = self.ended(process, timeout=60)
        self.assertEqual(process.returncode, 4, err)
        self.assertRegex(err, r"error: rank \d \(host[01]\): the connection to host host[01] ended \(signal 9\)")
        self.assertEqual(err.count("error: "), 1, err)
        self.assert_nobody_left()

    def test_nobody_survives_the_launcher(self):
        process = self.begin(command=self.reach(how="cat | setsid"))
        process.kill()
        process.communicate()
        self.assert_nobody_left()

    def test_ctrl_c_ends_in_order(self):
        for sent in (signal.SIGINT, signal.SIGTERM):
            process = self.begin()
            process.send_signal(sent)
            _, _, err = self.ended(process, timeout=60)
            self.assertEqual(process.returncode, 0, err)
            self.assertTrue(list(pathlib.Path(self.path("run/checkpoints")).glob("step-*")))
            self.assert_nobody_left()
            shutil.rmtree(self.path("run"))

    def test_the_key_is_seen_nowhere(self):
        known = set(re.findall(rb"[0-9a-f]{64}", pathlib.Path("/proc/self/environ").read_bytes()))
        process = self.begin()
        agent = [p for p in self.family() if self.words_of(p)[1:2] == ["--starling-host-agent"]][0]
        memory = pathlib.Path(f"/proc/{self.pid_of(0)}/environ").read_bytes()
        self.assertRegex(memory, rb"STARLING_KEY_FD=\d+")
        for pid in self.family():
            shown = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() + pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            self.assertLessEqual(set(re.findall(rb"[0-9a-f]{64}", shown)), known, pid)
        self.assertEqual(self.words_of(agent)[2:], [""])
        process.terminate()
        self.ended(process)

    def test_listens_where_the_ranks_meet_only(self):
        process = self.begin()
        for host in range(2):
            listening = shell(*self.hosts.command(host, ["ss", "-ltnH"])).stdout
            addresses = {line.split()[3].rsplit(":", 1)[0] for line in listening.splitlines()}
            self.assertLessEqual(addresses, {ADDRESS[host]}, listening)
        process.terminate()
        self.ended(process)

    def test_hosts_that_do_not_reach_each_other(self):
        Hosts.must("-n", self.hosts.bridge, "link", "set", "port1", "down")
        self.refused(4, r"host host1 does not reach host host0 at 10\.98\.0\.1:\d+.*comm\.interface", *self.words(self.HOSTS, self.reach()))

    def test_an_unknown_host(self):
        self.refused(4, "host host7 cannot be reached .*Cannot open network namespace", *self.words("host0:2,host7:2", self.reach()))


if __name__ == "__main__":
    main()
