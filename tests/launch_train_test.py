"""`starling launch`: training on two hosts equals training on one. Other programs run. Bad input is refused.

The hosts are network namespaces.
"""
import os
import pathlib
import re
import signal
import subprocess
import time

from exchanges_test import FLAT
from hosts_test import ADDRESS
from launched import CHILD, LaunchedOnHosts
from program import BUILD, SMALL, STARLING, distance, events_of, main, recorded_events, result_of, wait_for_step

OWN = str(BUILD / "tests" / "own_program")


class Launch(LaunchedOnHosts):
    def reach(self):
        return self.script("reach", f'exec ip netns exec {self.hosts.bridge.removesuffix("bridge")}"$1" sh -c "$2"\n')

    def training(self, *more):
        return ["train", "--json", "--run-dir", self.path("run"), "--resume", "never", *SMALL, "--precision", "fp64", "--global-batch", "24",
                *map(str, more)]

    def start_launch(self, hosts, *words):
        return self.start("launch", "--hosts", hosts, "--launch-command", self.reach(), "--net-security", "auth", *words, env=self.env)

    def test_training_with_authentic_data_equals_that_on_one_host(self):
        self.run_program(*self.training("--steps", 8, "-n", 2, "--set", "comm.shared_memory=false", "--net-security", "auth", "--save",
                                        self.path("one.safetensors"), "--run-dir", self.path("one")), env=self.env)
        process = self.start_launch("host0,host1", *self.training("--steps", 8, "--save", self.path("two.safetensors")))
        result = result_of(events_of(self.ends(process, 0, "^")))
        self.assertEqual(result["ranks"], 2)
        # A step sends the gradient of each of the two ranks, in fp64. At the start rank 0 sends the
        # parameters. It also measures the link.
        self.assertGreaterEqual(result["bytes_sent"], 8 * 2 * 8 * FLAT)
        self.assertLess(result["bytes_sent"], (8 * 2 + 1) * 8 * FLAT + 300000)
        self.assertLess(distance(self.path("one.safetensors"), self.path("two.safetensors")), 1e-12)

    def test_the_other_goes_on_without_rank_0(self):
        process = self.start_launch("host0,host1", *self.training("--steps", 1000000, "--on-failure", "continue"))
        wait_for_step(self.path("run"), 5)
        os.kill(self.pid_of(0), signal.SIGKILL)
        end = time.monotonic() + 60
        while not any(e["event"] == "lost" for e in recorded_events(self.path("run"))):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        process.terminate()
        out = self.ends(process, 128 + signal.SIGTERM, r"warning: rank 0 \(host0\) was killed by signal 9 .*\. 1 rank continues")
        self.assertEqual(result_of(events_of(out))["lost_ranks"], [0])

    def led_on_another_disk(self, prepare, *words):
        """Trains on two hosts and kills rank 0. Returns standard error.

        On host1, the folder disk is a disk of its own, where the command `prepare` runs first. When host1 has
        ended, its run folder is copied to later.
        """
        with_own_disk = (f'mount -t tmpfs starling-test {self.path("disk")} && {prepare}; (eval "$0"); '
                         f'status=$?; cp -r {self.path("disk/run")} {self.path("later")}; exit $status')
        reach = self.script("reach", f"""case $1 in
  host0) exec ip netns exec {self.hosts.names[0]} sh -c "$2" ;;
  *) exec ip netns exec {self.hosts.names[1]} sh -c '{with_own_disk}' "$2" ;;
esac
""")
        process = self.start("launch", "--hosts", "host0,host1", "--launch-command", reach, "--net-security", "auth",
                             *self.training("--run-dir", self.path("disk/run"), "--on-failure", "continue", *words), env=self.env)
        wait_for_step(self.path("disk/run"), 25)
        os.kill(self.pid_of(0), signal.SIGKILL)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, err)
        return err

    def test_a_rank_with_a_disk_of_its_own_leads_and_sets_an_earlier_run_aside(self):
        os.mkdir(self.path("disk"))
        folder = self.path("disk/run")
        prepare = (f"{STARLING} train --json --run-dir {folder} {' '.join(map(str, SMALL))} --steps 3 </dev/null >/dev/null 2>&1 && "
                   f"cp -r {folder} {self.path('earlier')}")
        err = self.led_on_another_disk(prepare, "--steps", 1500)
        self.assertRegex(err, "files of an earlier run in .* were renamed to")
        earlier, later = pathlib.Path(self.path("earlier")), pathlib.Path(self.path("later"))
        for name, renamed in (("model.safetensors", "model.1.safetensors"), ("config.toml", "config.1.toml"),
                              ("events.jsonl", "events.1.jsonl"), ("result.json", "result.1.json")):
            self.assertEqual((earlier / name).read_bytes(), (later / renamed).read_bytes(), name)
        self.assertIn("steps = 1500", (later / "config.toml").read_text(encoding="utf-8"))
        self.assertNotEqual((earlier / "model.safetensors").read_bytes(), (later / "model.safetensors").read_bytes())

    def test_a_rank_with_a_disk_of_its_own_keeps_what_the_run_continues(self):
        folder, copy = self.path("disk/run"), self.path("copy")
        self.run_program(*self.training("-n", 2, "--run-dir", folder, "--steps", 20, "--set", "checkpoint.every=10"), env=self.env)
        subprocess.run(["cp", "-r", folder, copy], check=True)
        of_another_run = f"cp -r {copy}/checkpoints/step-000020 {folder}/checkpoints/step-000022"
        err = self.led_on_another_disk(f"cp -r {copy} {folder} && {of_another_run}", "--steps", 1500, "--resume", "auto", "--set",
                                       "checkpoint.every=1000", "--set", "checkpoint.keep=5")
        self.assertNotIn("were renamed to", err)
        self.assertIn("step-000022 was written by another run or start and was renamed to aside-step-000022",
                      pathlib.Path(self.path("later/events.jsonl")).read_text(encoding="utf-8"))
        names = os.listdir(self.path("later"))
        self.assertEqual([name for name in names if ".1" in name], [])
        self.assertEqual(sorted(os.listdir(self.path("later/checkpoints"))),
                         ["aside-step-000022", "step-000010", "step-000020", "step-001000", "step-001500"])

    def test_a_users_program_passes_its_own_arguments_to_other_hosts(self):
        self.run_program("--hosts", "host0,host1", "--launch-command", self.reach(), "--steps", 4, "--global-batch", 8, "--threads", 1,
                         "--run-dir", self.path("run"), "--", "--record", self.path("seen"), program=OWN, env=self.env)
        for rank in (0, 1):
            with open(self.path(f"seen.{rank}"), encoding="utf-8") as f:
                self.assertEqual(len(f.readlines()), 4)

    def test_any_program(self):
        shown = 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR:$MASTER_PORT $1"; exit $((RANK == 2 ? 7 : 0))'
        process = self.start_launch("host0:2,host1", "--set", f"launch.program={CHILD}", "--run-dir", self.path("run"), "sh", "-c", shown, "sh", "--hosts")
        out = self.ends(process, 1, r"error: rank 2 \(host1\) ended with exit status 7")
        said = [re.match(rf"(\d of 3, \d of \d), {re.escape(ADDRESS[0])}:(\d+) --hosts$", text.splitlines()[0]) for text in
                [out, self.log(1), self.log(2)]]
        self.assertEqual([s[1] for s in said], ["0 of 3, 0 of 2", "1 of 3, 1 of 2", "2 of 3, 0 of 1"])
        self.assertEqual(len({s[2] for s in said}), 1)


if __name__ == "__main__":
    main()
