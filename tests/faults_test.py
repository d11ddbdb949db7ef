"""Faults and their messages and exit statuses: killed ranks, bad numbers, too little memory, Ctrl-C."""
import array
import json
import os
import pathlib
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
        self.assertLess(seconds, 30)  # the promise is 5 s; a busy machine adds some
        self.assertNotEqual(process.returncode, 0)
        self.assertEqual(len(re.findall(r"rank 2 .*SIGKILL", err)), 1, err)
        for pid in ranks.values():
            self.assertFalse(os.path.exists(f"/proc/{pid}/exe"))
        self.assertTrue(os.path.exists(self.path("run/log/rank-1.log")), os.listdir(self.path("run")))

    def test_nan_loss_names_rank_step_and_parameter(self):
        _, err = self.train(*SMALL, "--lr", 1e30, "-n", 2, "--epochs", 3, status=6)
        self.assertRegex(err, r"rank \d.*loss is (nan|inf|-nan).*step \d+")

    DEEP = [*SMALL, "--set", "model.widths=[784,16,16,10]", "--global-batch", 16, "--set", "optimizer.momentum=0"]

    def weights(self, *scales):
        """Returns a file of initial parameters of DEEP: layers multiplied by `scales`, and biases of zero."""
        plain, scaled = self.path("plain.safetensors"), self.path(f"scaled{scales}.safetensors")
        if not os.path.exists(plain):
            self.train(*self.DEEP, "--steps", 1, "--save", plain)
        data = pathlib.Path(plain).read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        header, body = json.loads(data[8:begin]), bytearray(data[begin:])
        for name, entry in header.items():
            if entry.get("dtype") != "F32":
                continue
            scale = scales[sorted(n for n in header if "weight" in n).index(name)] if "weight" in name else 0
            first, last = entry["data_offsets"]
            values = array.array("f", bytes(body[first:last]))
            body[first:last] = array.array("f", [v * scale for v in values]).tobytes()
        pathlib.Path(scaled).write_bytes(data[:begin] + body)
        return scaled

    def test_a_gradient_that_is_not_finite_though_the_loss_is(self):
        # The gradient of the first layer is a product of the weights of all later layers, and overflows fp32.
        init = self.weights(1e-30, 1e20, 1e20)
        # Clipping the elements would make an infinity finite.
        clipped = ["--set", "optimizer.clip_value=1"]
        for flags in (["-n", 1, *clipped], ["-n", 2, *clipped], ["-n", 2, *clipped, "--shard", "gradients"],
                      ["-n", 2, *clipped, "--shard", "parameters"], ["-n", 2, *clipped, "--hybrid", "fc2"],
                      ["-n", 2, *clipped, "--exchange", "gossip"],
                      ["-n", 1], ["-n", 2], ["-n", 2, "--set", "optimizer.clip_norm=1"], ["-n", 2, "--set", "comm.shared_memory=false"],
                      ["-n", 2, "--shard", "optimizer"], ["-n", 2, "--shard", "parameters"], ["-n", 2, "--exchange", "central"],
                      ["-n", 2, "--exchange", "local-sgd"], ["-n", 2, "--exchange", "gossip"],
                      ["-n", 2, "--exchange", "parameter-server"], ["-n", 2, "--exchange", "parameter-server", "--staleness", "inf"]):
            with self.subTest(flags=flags):
                saved = self.path("spoilt.safetensors")
                _, err = self.train(*self.DEEP, *flags, "--steps", 1, "--init", init, "--save", saved, status=6)
                self.assertRegex(err, r"rank \d.* gradients? .*is not finite at step 1, though the loss is; try a lower --lr", err)
                self.assertEqual(len(re.findall("error: ", err)), 1, err)
                self.assertFalse(os.path.exists(saved))
                if "optimizer.clip_norm=1" not in flags:
                    self.assertRegex(err, r"of (\S*0\S*|\S*1\S*)\.(weight|bias)", err)

    def test_a_codec_that_makes_a_gradient_infinite_is_named(self):
        init = self.weights(1, 1, 1e9)
        _, err = self.train(*self.DEEP, "-n", 2, "--codec", "fp16", "--steps", 1, "--init", init, status=6)
        self.assertRegex(err, r"rank \d: what codec fp16, whose largest number is 65504 \(that of bf16 is 3e38\), makes of the "
                              r"gradient of \S+ is not finite")

    def test_weights_that_averaging_makes_infinite_are_not_saved(self):
        run, saved = self.path("averaged"), self.path("averaged.safetensors")
        _, err = self.train(*self.DEEP, "-n", 2, "--exchange", "local-sgd", "--set", "exchange.every=1", "--codec", "fp16", "--lr", 1e7,
                            "--steps", 1, "--set", "checkpoint.every=1", "--run-dir", run, "--save", saved, status=6)
        self.assertRegex(err, r"the parameter \S+ is not finite after step 1, so it is not saved")
        self.assertFalse(os.path.exists(saved))
        self.assertEqual(list(pathlib.Path(run).glob("checkpoints/step-*")), [])

    def test_a_server_refuses_what_a_codec_has_made_infinite(self):
        # The gradient is finite in fp32, but above 65,504, the largest number of fp16.
        init = self.weights(1, 1, 1e9)
        for staleness in (0, "inf"):
            with self.subTest(staleness=staleness):
                _, err = self.train(*self.DEEP, "-n", 2, "--exchange", "parameter-server", "--staleness", staleness, "--codec", "fp16",
                                    "--steps", 1, "--init", init, status=4)
                self.assertRegex(err, r"refused the push of worker \d at clock 0: its gradient is not finite", err)
                self.assertIn("bf16", err)

    def test_out_of_memory_is_said_without_a_stack_trace(self):
        _, err = self.run_program("train", "--model", "mlp", "--data", "digits", "--set", "model.widths=[784,900000,900000,10]",
                                  "--steps", 1, "--run-dir", self.path("run"), status=1)
        self.assertIn("out of memory", err)
        self.assertNotIn("frame #", err)

    def test_ctrl_c_twice_ends_at_once(self):
        process = self.start("train", "--run-dir", self.path("run"), *SMALL, "-n", 2, "--steps", 100000)
        wait_for_step(self.path("run"), 5)
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.5)  # a second Ctrl-C within 0.2 s would count as the first
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
