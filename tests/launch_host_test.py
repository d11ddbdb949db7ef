"""Ranks on a host that a command reaches, and hosts that no command reaches."""
import os
import signal
import time

from launched import CHILD, Launched
from program import main


class OneHost(Launched):
    def here(self):
        """Makes a command that stands for ssh.

        It runs on this machine, prints a greeting and changes the folder.
        """
        return self.script("here", 'echo "Welcome to $1"\ncd /\nexec sh -c "$2"\n')

    def refused(self, status, pattern, hosts, command, **options):
        self.ends(self.launch(hosts, command, "ok", **options), status, pattern)
        self.assertFalse(self.log(0))

    def test_a_host_that_is_reached_by_a_command(self):
        for hosts in ("other:2", "localhost:2"):
            self.assertIn("rank 0 of 2, local 0 of 2", self.ends(self.launch(hosts, self.here(), "ok"), 0, "^$"))
            self.assertIn("rank 1 of 2, local 1 of 2", self.log(1))

    def test_commands_that_do_not_reach(self):
        silent = self.script("nowhere", 'echo "ssh: Could not resolve hostname $1: Name or service not known" >&2\nexit 255\n')
        self.refused(4, r"host a cannot be reached .*255.*Could not resolve hostname a.*nowhere a true", "a:2", silent)
        self.refused(2, r"launch.command: \"no-such-ssh\" is not a program on this host. Install it", "a:2", "no-such-ssh -x")
        self.refused(2, r"host a cannot run /opt/none/starling: .*not found.*\. Install the same version", "a:2", self.here(),
                     LAUNCH_PROGRAM="/opt/none/starling")
        self.refused(4, r"host a cannot be reached \(.*exit status 0\): Welcome to a", "a:2", self.script("mute", 'echo "Welcome to $1"\n'))

    def test_two_names_of_one_host(self):
        self.refused(2, r"a and b are one host, .*Name it once with all its ranks, a:3", "a:2,b", self.here())

    def test_another_version(self):
        other = self.script("other", f'{CHILD} "$@" | sed -u \'s/"version":"[^"]*"/"version":"9.8.7"/\'\n')
        self.refused(2, r"host a has starling 9.8.7 at .*, and this is \d.*Install the same version", "a:2", self.here(), LAUNCH_PROGRAM=other)

    def test_a_folder_that_the_host_lacks(self):
        away = self.script("away", f'mv {self.path("work")} {self.path("gone")}\nexec sh -c "$2"\n')
        os.mkdir(self.path("work"))
        self.refused(2, r"host a: the run was started in the folder .*/work, which cannot be entered on this", "a:2", away, cwd=self.path("work"))

    def test_interrupted_while_a_host_does_not_answer(self):
        process = self.launch("a:2", self.script("slow", f'echo $$ > {self.path("began")}\nexec sleep 600\n'), "ok")
        end = time.monotonic() + 30
        while not os.path.exists(self.path("began")) and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        self.ends(process, 130, "the run was interrupted before its ranks were started")


if __name__ == "__main__":
    main()
