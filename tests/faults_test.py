"""What goes wrong: killed ranks, bad numbers, too little memory, Ctrl-C; each with its message and exit status."""
import os
import re
import signal
import time

from program import SMALL, ProgramTest, environment, main, ranks_of, wait_for_step


class Faults(ProgramTest):
    def test_a_killed_rank_ends_all_and_is_named(self):
        process = self.start("train", "--run-dir", self.path("run"), *SMALL, "-n", 3, "--global-batch", 24, "--steps", 100000)
        wait_for_step(self.path("run"), 5)
        ranks = ranks_of(process.pid)
        os.kill(ranks[2], signal.SIGKILL)
        seconds, _, err = self.ended(process)
        self.assertLess(seconds, 10)  # 5 s and the noise of a busy machine
        self.assertNotEqual(process.returncode, 0)
        self.assertEqual(len(re.findall(r"rank 2 .*SIGKILL", err)), 1, err)
        for pid in ranks.values():
            self.assertFalse(os.path.exists(f"/proc/{pid}/exe"))
        self.assertTrue(os.path.exists(self.path("run/log/rank-1.log")), os.listdir(self.path("run")))

    def test_nan_loss_names_rank_step_and_parameter(self):
        _, err = self.train(*SMALL, "--lr", 1e30, "-n", 2, "--epochs", 3, status=6)
        self.assertRegex(err, r"rank \d.*loss is (nan|inf|-nan).*step \d+")

    def test_out_of_memory_is_said_without_a_stack_trace(self):
        _, err = self.run_program("train", "--model", "mlp", "--data", "digits", "--set", "model.widths=[784,900000,900000,10]",
                                  "--steps", 1, "--run-dir", self.path("run"), status=1)
        self.assertIn("out of memory", err)
        self.assertNotIn("frame #", err)

    def test_ctrl_c_twice_ends_at_once(self):
        process = self.start("train", "--run-dir", self.path("run"), *SMALL, "-n", 2, "--steps", 100000)
        wait_for_step(self.path("run"), 5)
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.5)  # a terminal's repeat within 0.2 s counts as one
        os.kill(process.pid, signal.SIGINT)
        self.ended(process, timeout=20)
        self.assertIsNotNone(process.returncode)

    def test_several_hosts_need_a_key_file(self):
        env = environment(RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=29733)
        _, err = self.run_program("train", *SMALL, status=2, env=env)
        self.assertIn("comm.key_file", err)

    def test_a_rank_that_never_comes_is_named(self):
        env = environment(RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=29745)
        _, err = self.run_program("train", *SMALL, "--set", "comm.timeout_s=2", status=4, env=env)
        self.assertIn("rank 1", err)


if __name__ == "__main__":
    main()
