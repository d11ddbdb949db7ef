"""One launcher starts ranks on two hosts over a command that stands for ssh.

The hosts are network namespaces.
"""
import os
import pathlib
import re
import signal
import time

from hosts_test import ADDRESS, shell
from launched import LaunchedOnHosts
from program import main

HOSTS = "host0:2,host1:2"


class SeveralHosts(LaunchedOnHosts):
    def reach(self, how="exec"):
        """Makes a command that stands for ssh. The hosts are named host0 and host1."""
        return self.script("reach", f'echo "Welcome to $1"\ncd /\n{how} ip netns exec {self.hosts.bridge.removesuffix("bridge")}"$1" sh -c "$2"\n')

    def apart(self):
        """Like reach(), but the agent is in another process group, as with ssh.

        It only notices the end of its input.
        """
        return self.reach("cat | setsid")

    def connections(self):
        """Returns the process groups of the commands that stand for ssh, by host."""
        groups = {self.words_of(p)[2]: os.getpgid(p) for p in self.family() if self.words_of(p)[1:2] == [self.path("reach")]}
        return [groups["host0"], groups["host1"]]

    def agents_by_host(self):
        where = {shell("ip", "netns", "identify", str(pid)).stdout.strip(): pid for pid in self.agents()}
        return [where[name] for name in self.hosts.names]

    def test_ranks_meet_where_all_hosts_reach(self):
        out = self.ends(self.launch(HOSTS, self.reach(), "meet"), 0, "^$")
        self.assertIn("rank 1 says hello", out)
        said = [re.search(r"rank (\d) of 4, local (\d) of 2, master ([\d.]+):(\d+)", text) for text in [out, *map(self.log, range(1, 4))]]
        self.assertEqual([(s[1], s[2], s[3]) for s in said], [(str(r), str(r % 2), ADDRESS[0]) for r in range(4)])
        self.assertEqual(len({s[4] for s in said}), 1)

    def test_a_killed_rank_is_named_with_its_host(self):
        known = set(re.findall(rb"[0-9a-f]{64}", pathlib.Path("/proc/self/environ").read_bytes()))
        process = self.begun(HOSTS, self.reach(), "stay")
        for host in range(2):  # the launcher listens only at the address where the ranks meet
            listening = shell(*self.hosts.command(host, ["ss", "-ltnH"])).stdout
            addresses = [line.split()[3].rsplit(":", 1)[0] for line in listening.splitlines()]
            self.assertEqual(addresses, [ADDRESS[0]] if host == 0 else [], listening)
        for pid in self.family():  # no command line and no environment shows the key
            shown = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() + pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            self.assertLessEqual(set(re.findall(rb"[0-9a-f]{64}", shown)), known, pid)
        os.kill(self.pid_of(3), signal.SIGKILL)
        self.ends(process, 4, r"error: rank 3 \(host1\) was killed by signal 9 \(SIGKILL\)")

    def test_a_stopped_rank_that_a_rank_of_another_host_gave_up_is_ended(self):
        self.ends(self.launch(HOSTS, self.reach(), "stuck", "0", KILL_AFTER_MS="20000"), 0, "^$")
        self.assertIn("ended by the launcher: it did not answer within 3 ms", self.log(0))
        self.assertIn("rank 3 continues", self.log(3))

    def test_a_connection_that_is_killed(self):
        process = self.begun(HOSTS, self.apart(), "stay")
        os.killpg(self.connections()[1], signal.SIGKILL)
        self.ends(process, 4, r"error: rank 2 \(host1\): the connection to host host1 ended \(signal 9\)")

    def test_an_agent_that_is_killed(self):
        process = self.begun("host0,host1", self.reach(), "stay")
        os.kill(self.agents_by_host()[1], signal.SIGKILL)
        self.ends(process, 4, r"error: rank 1 \(host1\): the connection to host host1 ended \(signal 9\)")

    def test_a_host_that_falls_silent(self):
        # As with a cut cable, no process ends and no bytes arrive.
        process = self.begun("host0,host1", self.apart(), "stay", LAUNCH_SILENCE_MS="4000")
        os.killpg(self.connections()[1], signal.SIGSTOP)
        self.ends(process, 4, r"error: rank 1 \(host1\): host host1 has not answered for 4 s")

    def test_hosts_where_nobody_listens_to_the_ranks_any_more(self):
        # The launcher neither reads nor writes, and the ranks print more than pipes hold.
        process = self.begun("host0,host1", self.apart(), "chatter", LAUNCH_SILENCE_MS="4000")
        process.send_signal(signal.SIGSTOP)
        end = time.monotonic() + 30
        while self.agents():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        process.send_signal(signal.SIGCONT)
        self.ends(process, 4, r"error: rank \d \(host\d\): (the connection to host host\d ended|host host\d has not answered)")

    def test_nobody_survives_the_launcher(self):
        process = self.begun(HOSTS, self.apart(), "stay")
        process.kill()
        process.communicate(timeout=30)
        self.assert_nobody_left()

    def test_ctrl_c_lets_ranks_end_in_order(self):
        process = self.begun(HOSTS, self.reach(), "wait")
        process.send_signal(signal.SIGINT)
        self.ends(process, 0, "Ctrl-C: the ranks save their state and end")
        for rank in range(4):
            self.assertIn(f"saved by {rank}", self.log(rank))

    def test_the_second_ctrl_c_ends_even_a_host_that_hangs(self):
        process = self.begun("host0,host1", self.reach(), "stay", LAUNCH_SILENCE_MS="10000")
        os.kill(self.agents_by_host()[1], signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        self.wait_until_said(process, "Repeat the signal to kill them")
        process.send_signal(signal.SIGINT)
        self.ends(process, 130, "Ctrl-C: killing the ranks")

    def test_hosts_that_do_not_reach_each_other(self):
        self.hosts.must("-n", self.hosts.bridge, "link", "set", "port1", "down")
        self.addCleanup(self.hosts.must, "-n", self.hosts.bridge, "link", "set", "port1", "up")
        process = self.launch(HOSTS, self.reach(), "ok", LAUNCH_REACH_MS="1000")
        self.ends(process, 4, r"host host1 does not reach host host0 at 10\.98\.0\.1:\d+.*comm\.interface")

    def test_an_unknown_host(self):
        self.ends(self.launch("host0:2,host7:2", self.reach(), "ok"), 4, "host host7 cannot be reached .*Cannot open network namespace")


if __name__ == "__main__":
    main()
