"""One command that starts ranks on a host which it reaches by a command; hosts that cannot be."""
import os
import signal
import subprocess
import time

from launched import Launched
from program import SMALL, STARLING, distance, main, result_of


class OneHost(Launched):
    def test_a_host_that_is_reached_by_a_command(self):
        self.run_program("train", "--json", "--run-dir", self.path("alone"), *SMALL, "--precision", "fp64", "--global-batch", 24,
                         "--steps", 8, "-n", 2, "--save", self.path("alone.safetensors"), env=self.env)
        for hosts in ("other:2", "localhost:2"):
            events, _ = self.run_program(*self.words(hosts, self.here(), "--steps", 8, "--save", self.path("other.safetensors")), env=self.env)
            self.assertEqual(result_of(events)["ranks"], 2)
            self.assertEqual(distance(self.path("alone.safetensors"), self.path("other.safetensors")), 0)
        self.assertTrue(os.path.exists(self.path("run/log/rank-1.log")))

    def test_a_hostfile_that_only_the_launcher_reads(self):
        with open(self.path("hosts"), "w", encoding="utf-8") as f:
            f.write("# one\nother slots=3\n")
        words = self.words(None, self.script("here", f'rm -f {self.path("hosts")}\nexec sh -c "$2"\n'), "--steps", 4, "--hostfile", self.path("hosts"))
        events, _ = self.run_program(*words, env=self.env)
        self.assertEqual(result_of(events)["ranks"], 3)

    def test_hosts_that_cannot_be(self):
        here = self.here()
        self.refused(2, "host a is named twice", *self.words("a:2,b,a", here))
        self.refused(2, "3 slots on 2 hosts are too few for 4 processes", *self.words("a:2,b", here, "-n", 4))
        self.refused(2, r"a and b are one host, .*name it once with all its ranks, a:3", *self.words("a:2,b", here, "--global-batch", 24))
        self.refused(2, "is no host", *self.words("a;reboot", here))
        self.refused(2, "both --hosts and --hostfile", *self.words("a", here, "--hostfile", self.path("none")))
        self.refused(2, "cannot read .*/none", *self.words(None, here, "--hostfile", self.path("none")))

    def test_commands_that_do_not_reach(self):
        silent = self.script("nowhere", 'echo "ssh: Could not resolve hostname $1: Name or service not known" >&2\nexit 255\n')
        self.refused(4, r"host a cannot be reached .*255.*Could not resolve hostname a.*nowhere a true", *self.words("a:2", silent))
        self.refused(2, r"launch.command: \"no-such-ssh\" is no program of this host; install it", *self.words("a:2", "no-such-ssh -x"))
        self.refused(2, r"host a cannot run /opt/none/starling: .*not found; install the same version", *self.words("a:2", self.here()), "--set",
                     "launch.program=/opt/none/starling")
        self.refused(4, r"host a cannot be reached \(.*exit status 0\): Welcome to a", *self.words("a:2", self.script("mute", 'echo "Welcome to $1"\n')))

    def test_another_version(self):
        other = self.script("starling", f'{STARLING} "$@" | sed -u \'s/"version":"[^"]*"/"version":"9.8.7"/\'\n')
        self.refused(2, r"host a has starling 9.8.7 at .*, this is \d.*; install the same version", *self.words("a:2", self.here()), "--set",
                     f"launch.program={other}")

    def test_a_folder_that_the_host_lacks(self):
        away = self.script("away", f'mv {self.path("work")} {self.path("gone")}\nexec sh -c "$2"\n')
        os.mkdir(self.path("work"))
        done = subprocess.run([STARLING, *self.words("a:2", away)], capture_output=True, text=True, timeout=60, cwd=self.path("work"), env=self.env)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"host a: the folder .*/work, in which the run was started, cannot be entered there")

    def test_interrupted_while_a_host_does_not_answer(self):
        process = self.start(*self.words("a:2", self.script("slow", f'echo $$ > {self.path("began")}\nexec sleep 600\n')), env=self.env)
        end = time.monotonic() + 60
        while not os.path.exists(self.path("began")) and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, _, err = self.ended(process, timeout=30)
        self.assertEqual(process.returncode, 130, err)
        self.assert_nobody_left()


if __name__ == "__main__":
    main()
