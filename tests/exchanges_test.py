"""Every exchange from the command line: the model learns, and statistics and bytes match the formulas."""
import array
import json
import math
import os
import time

from own_program_test import tensors_of
from program import SMALL, ProgramTest, distance, environment, main, result_of, some, wait_for_step

# Number of elements of the flat memory. Every parameter begins at a multiple of 64 elements.
FLAT = 784 * 64 + 64 + 640 + 64
LAYERS = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")  # in the order of the flat memory
WORDS = [*SMALL, "--epochs", 6, "--lr", 0.1, "--global-batch", 32, "--resume", "never"]


LEARNS = 0.2


class Exchanges(ProgramTest):
    # `accuracy` is LEARNS if the result depends on which process is faster. A model that learns nothing
    # reaches 0.1.
    def strategy(self, *args, accuracy=0.5):
        events, _ = self.train(*WORDS, *args)
        result = result_of(events)
        self.assertGreaterEqual(result["test_accuracy"], accuracy, args)
        return result, result["strategy"]

    def refused(self, *args):
        _, err = self.run_program("train", *WORDS, *args, status=2)
        errors = [line for line in err.splitlines() if "error" in line]
        self.assertEqual(len(errors), 1, err)
        return errors[0]

    def tensors_after(self, step, file):
        """Returns the fp32 tensors and the fp64 numbers of a file of a checkpoint, by name."""
        tensors = tensors_of(self.path(f"run/checkpoints/step-{step:06}/{file}.safetensors"))
        return {name: array.array("d" if len(data) == 8 else "f", data) for name, data in tensors.items()}

    def duals_after(self, step):
        """Returns the duals of both ranks of admm as one list, and rho."""
        state = self.tensors_after(step, "optimizer")
        return [x for rank in range(2) for name in LAYERS for x in state[f"{name}/u@{rank}"]], state["fc1.weight/rho"][0]

    def test_local_sgd_counts_its_rounds(self):
        result, strategy = self.strategy("--exchange", "local-sgd", "--every", 4, "-n", 4)
        self.assertEqual(strategy["rounds"], 24)
        # The losses are means over ranks and rounds. The loss begins at ln 10 and falls.
        for loss in ("loss_before_averaging", "loss_after_averaging"):
            self.assertGreater(strategy[loss], 0.05, loss)
            self.assertLess(strategy[loss], math.log(10), loss)
        self.assertNotEqual(strategy["loss_before_averaging"], strategy["loss_after_averaging"])
        # Each of 24 rounds and each evaluation sends 2 (p - 1)/p |W| per rank. Small messages come on top.
        sent = result["bytes_sent"]
        rounds = 24 + 6 + 2
        self.assertLess(sent, 1.15 * 4 * rounds * 2 * 4 * FLAT)
        self.assertGreater(sent, 24 * 2 * 3 / 4 * 4 * FLAT)

    def test_parallel_sgd_moves_three_quarters_of_the_samples(self):
        begin = time.monotonic()
        result, strategy = self.strategy("--exchange", "parallel-sgd", "--partition", "by-label", "-n", 4, "--every", 4)
        self.assertEqual(strategy["samples_moved"], 512 * 3 / 4)
        self.assertEqual(strategy["shuffle_bytes"], 512 * 3 / 4 * (784 * 4 + 8))
        # The share relates to the run time without the shuffle.
        run_s = strategy["shuffle_s"] / strategy["shuffle_share"] - strategy["shuffle_s"]
        self.assertGreater(run_s, result["compute_s"])
        self.assertLess(run_s, time.monotonic() - begin)
        # One average is poor, because the loss is not convex.
        _, once = self.strategy("--exchange", "parallel-sgd", "--rounds", 1, "-n", 2, accuracy=LEARNS)
        self.assertEqual(once["combines"], 1)
        _, best = self.strategy("--exchange", "parallel-sgd", "--combine", "best", "-n", 2, accuracy=0.3)
        self.assertIn(best["best_rank"], (0, 1))
        self.assertEqual(best["combines"], 96 // best["every"])

    def test_admm_moves_no_sample_and_its_residual_stays(self):
        _, strategy = self.strategy("--exchange", "admm", "-n", 2, "--every", 4)
        self.assertEqual(strategy["samples_moved"], 0)
        self.assertEqual(strategy["rounds"], 96 / 4)
        # With momentum the duals would diverge, and the primal residual would grow about a hundredfold.
        self.assertLess(strategy["primal_residual"], 3 * strategy["first_primal_residual"])

    def test_the_residual_of_admm_is_by_how_much_the_duals_moved(self):
        two_rounds = [*SMALL, "--exchange", "admm", "-n", 2, "--every", 4, "--global-batch", 32, "--set", "checkpoint.every=4"]
        self.train(*two_rounds, "--steps", 4)
        before, rho_before = self.duals_after(4)
        events, _ = self.train(*two_rounds, "--steps", 8)
        after, rho_after = self.duals_after(8)
        # A round adds a rank's distance from the mean to its dual. A change of rho keeps rho times the dual.
        moved = math.sqrt(sum((a * rho_after / rho_before - b) ** 2 for a, b in zip(after, before)))
        self.assertAlmostEqual(result_of(events)["strategy"]["primal_residual"], moved, delta=1e-4 * moved)
        self.assertGreater(math.hypot(*before), 0.1 * moved)

    def test_gossip_sends_to_its_neighbors_only(self):
        result, strategy = self.strategy("--exchange", "gossip", "-n", 4)
        self.assertEqual(strategy["degree"], 2)
        self.assertAlmostEqual(strategy["second_eigenvalue"], 1 / 3, places=9)
        mixing = result["steps"] * 4 * 2 * 4 * FLAT
        self.assertGreaterEqual(result["bytes_sent"], mixing)
        # The evaluations send as many bytes as with local SGD.
        self.assertLess(result["bytes_sent"], mixing + 1.15 * 4 * (6 + 2) * 2 * 4 * FLAT)

    def test_ad_psgd_averages_in_pairs(self):
        result, strategy = self.strategy("--exchange", "ad-psgd", "-n", 4, accuracy=LEARNS)
        self.assertEqual((strategy["active_ranks"], strategy["exchanges"]), (2, 2 * result["steps"]))
        self.assertLess(strategy["largest_lead"], result["steps"])
        pairs = strategy["exchanges"] * (2 * 4 * FLAT + 8)
        self.assertGreaterEqual(result["bytes_sent"], pairs)
        # The evaluations send as many bytes as with local SGD.
        self.assertLess(result["bytes_sent"], pairs + 1.15 * 4 * (6 + 2) * 2 * 4 * FLAT)

    def test_ad_psgd_is_resumed(self):
        words = [*SMALL, "--exchange", "ad-psgd", "-n", 2, "--global-batch", 16, "--set", "checkpoint.every=6"]
        self.train(*words, "--steps", 6)
        # The weights of each rank are kept, and they differ.
        kept = self.tensors_after(6, "optimizer")
        self.assertNotEqual(list(kept["fc1.weight/x@0"]), list(kept["fc1.weight/x@1"]))
        events, _ = self.train(*words, "--steps", 12)
        result = result_of(events)
        self.assertEqual((result["first_step"], result["steps"], result["strategy"]["exchanges"]), (6, 12, 6))

    def test_async_easgd_exchanges_with_its_center(self):
        result, strategy = self.strategy("--exchange", "async-easgd", "-n", 3, "--global-batch", 30, "--servers", 2, "--every", 4,
                                         accuracy=LEARNS)
        self.assertEqual((result["steps"], strategy["exchanges"]), (102, 26))  # 6 epochs of 17 steps; t = 0, 4, ..., 100
        for worker in range(3):
            self.assertEqual((strategy[f"pushes_{worker}_0"], strategy[f"pushes_{worker}_1"]), (26, 26))
        self.assertEqual(strategy["updates_0"], 3 * 26)
        self.assertGreater(strategy["center_distance"], 0)
        weights = 4 * (784 * 64 + 64 + 640 + 10)
        exchange = 2 * weights + 2 * 3 * 56
        self.assertEqual(strategy["bytes_per_step_formula"], exchange / 4)
        # Beyond the exchanges there are the load, the first read, and a read for each evaluation.
        self.assertGreaterEqual(strategy["bytes_exchanged"], 26 * exchange)
        self.assertLess(strategy["bytes_exchanged"], 26 * exchange + 11 * weights)

    def test_async_easgd_is_resumed_bit_for_bit_by_one_worker(self):
        common = [*SMALL, "--exchange", "async-easgd", "-n", 1, "--every", 4, "--set", "optimizer.nesterov=true", "--global-batch", 16,
                  "--precision", "fp32", "-q", "--set", "checkpoint.every=6"]
        whole, parts = self.path("whole"), self.path("parts")
        self.run_program("train", *common, "--steps", 12, "--run-dir", whole, "--save", whole + ".safetensors")
        self.run_program("train", *common, "--steps", 6, "--run-dir", parts)
        self.run_program("train", *common, "--steps", 12, "--run-dir", parts, "--save", parts + ".safetensors")
        with open(whole + ".safetensors", "rb") as a, open(parts + ".safetensors", "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_async_easgd_keeps_the_center_and_every_worker(self):
        words = [*SMALL, "--exchange", "async-easgd", "-n", 2, "--every", 2, "--global-batch", 16, "--set", "checkpoint.every=6"]
        saved = self.path("saved.safetensors")
        self.train(*words, "--steps", 6, "--save", saved)
        kept, center = self.tensors_after(6, "optimizer"), self.tensors_after(6, "model")
        self.assertNotEqual(list(kept["fc1.weight/x@0"]), list(kept["fc1.weight/x@1"]))
        self.assertNotEqual(list(kept["fc1.weight/x@0"]), list(center["fc1.weight"]))
        self.assertEqual({"fc1.weight/momentum@0", "fc1.weight/momentum@1"} - set(kept), set())
        self.assertEqual(tensors_of(saved)["fc1.weight"], center["fc1.weight"].tobytes())  # the run saves its center
        events, _ = self.train(*words, "--steps", 12)
        result = result_of(events)
        self.assertEqual((result["first_step"], result["steps"], result["strategy"]["exchanges"]), (6, 12, 3))

    def test_downpour_starts_warm(self):
        result, strategy = self.strategy("--exchange", "downpour", "-n", 2, "--servers", 2, "--optimizer", "adagrad", "--set",
                                         "exchange.push_every=5", "--set", "exchange.fetch_every=5", "--set", "exchange.warm_start=12",
                                         "--set", "exchange.worker_weights=[1.0,1.0]", "--epochs", 10, "--lr", 0.01, accuracy=LEARNS)
        self.assertEqual(result["steps"], 160)
        # Evaluations push what is left, so that each epoch of 16 steps has four pushes.
        self.assertEqual((strategy["pushes_0_0"], strategy["pushes_1_0"]), (40, 40))
        # Worker 1 first reads after the three pushes of the warm start. Worker 0 has read at clock 2 by then.
        self.assertGreaterEqual(strategy["max_staleness"], 2)

    def test_central_holds_one_copy(self):
        for how in ("master", "sharded"):
            _, strategy = self.strategy("--exchange", "central", "--central", how, "-n", 4)
            self.assertEqual(strategy["parameter_bytes"], 4 * FLAT)
            self.assertLess(strategy["resident_parameter_bytes"], 4 * FLAT + 8 * 4096)

    def test_servers_bound_the_staleness_of_reads(self):
        for staleness in ("0", "2"):
            _, strategy = self.strategy("--exchange", "parameter-server", "--servers", 2, "--staleness", staleness, "-n", 3,
                                        "--global-batch", 30, "--set", "optimizer.momentum=0",
                                        accuracy=0.5 if staleness == "0" else LEARNS)
            self.assertLessEqual(strategy["max_staleness"], int(staleness))
            for worker in range(3):
                self.assertEqual(strategy[f"pushes_{worker}_0"], 102)  # 6 epochs of 17 steps
            self.assertEqual(strategy["updates_0"], 102 if staleness == "0" else 3 * 102)
            # Each worker pushes once per step, and reads once in at most s + 1 steps. It may also read before
            # the first step and after the last.
            self.assertGreaterEqual(strategy["requests_0"], 3 * (102 + 102 // (int(staleness) + 1)))
            self.assertLessEqual(strategy["requests_0"], 2 * 3 * 102 + 2 * 3)
            # Clocks 1 and 2 never need an answer if the bound is 2. There are two shards.
            self.assertGreaterEqual(strategy["cached_reads"], 4 if staleness == "2" else 0)
        _, strategy = self.strategy("--exchange", "parameter-server", "--staleness", "inf", "-n", 2, "--set",
                                    "optimizer.momentum=0", accuracy=LEARNS)
        self.assertEqual((strategy["pushes_0_0"], strategy["pushes_1_0"], strategy["updates_0"]), (96, 96, 192))
        _, strategy = self.strategy("--exchange", "parameter-server", "--backup", 1, "-n", 4, accuracy=LEARNS)
        self.assertGreater(strategy["late_dropped"], 0)  # at least the fourth gradient of the first step
        self.assertLessEqual(strategy["late_dropped"], 96)  # at most one of four gradients per step
        # Each update takes the gradients of three of the four workers, which push 4 * 96 gradients in total.
        self.assertGreaterEqual(strategy["updates_0"], 96)
        self.assertLessEqual(strategy["updates_0"], 4 * 96 / 3)
        _, strategy = self.strategy("--exchange", "downpour", "-n", 2, "--set", "exchange.push_every=2", "--set",
                                    "optimizer.momentum=0", accuracy=LEARNS)
        self.assertEqual((strategy["pushes_0_0"], strategy["pushes_1_0"], strategy["updates_0"]), (48, 48, 96))

    def test_one_rank_of_a_team_pushes_for_all(self):
        _, strategy = self.strategy("--exchange", "parameter-server", "-n", 4, "--set", "exchange.team=2", accuracy=LEARNS)
        self.assertGreater(strategy["pushes_0_0"], 0)
        self.assertEqual([strategy[f"pushes_{worker}_0"] for worker in (1, 2, 3)], [0, strategy["pushes_0_0"], 0])

    def test_a_server_tells_which_worker_it_lost(self):
        processes = []
        for rank in range(3):  # ranks 0 and 1 are workers, rank 2 is the server; no launcher ends all
            env = environment(RANK=rank, WORLD_SIZE=3, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=3, MASTER_ADDR="127.0.0.1",
                              MASTER_PORT=29631, TORCHELASTIC_RUN_ID=f"server-{os.getpid()}")
            processes.append(self.start("train", "--run-dir", self.path("run"), *SMALL, "--exchange", "parameter-server",
                                        "--staleness", "inf", "--steps", 100000, "--global-batch", 16, env=env))
        wait_for_step(self.path("run"), 1)
        processes[1].kill()
        processes[0].terminate()
        _, _, err = self.ended(processes[2])
        self.assertIn("worker 1 was lost", err)
        self.assertEqual(processes[2].returncode, 0, err)

    def test_codecs_send_what_they_state(self):
        for codec, least in (("fp16", 1.99), ("int8", 3.9), ("1bit", 20), ("prune:keep=0.05", 6), ("lowrank:rank=2", 8)):
            _, strategy = self.strategy("--codec", codec, "-n", 2)
            self.assertGreater(strategy["compression"], least, codec)
            self.assertEqual(strategy["by_reduce_scatter"], 1 if codec == "lowrank:rank=2" else 0)
            self.assertGreaterEqual(strategy["message_balance"], 1, codec)
            self.assertLess(strategy["message_balance"], 1.1, codec)

    def test_codecs_send_sharded_gradients(self):
        for codec, least in some((("fp16", 1.99), ("int8", 3.9), ("prune:keep=0.05", 12), ("1bit", 20), ("lowrank:rank=2", 8), ("random-k", 9.9),
                                  ("threshold", 1), ("qsgd", 7), ("dgc", 1), ("terngrad", 14)), 4):
            for shard in ("optimizer", "gradients"):
                _, strategy = self.strategy("--shard", shard, "--codec", codec, "-n", 2, accuracy=LEARNS)
                self.assertGreater(strategy["compression"], least, codec)
                self.assertLess(strategy["message_balance"], 1.1, codec)
                # Without a codec, a rank sends half of the gradients, and half of the parameters in any case.
                self.assertAlmostEqual(strategy["compression"] * strategy["message_bytes"], 4 * FLAT / 2, delta=1e-6 * FLAT)
                # A rank also sends 16 bytes about the loss in each of 96 steps.
                self.assertAlmostEqual(strategy["step_bytes"], 2 * 96 * (strategy["message_bytes"] + 4 * FLAT / 2 + 16), delta=1e-6 * FLAT)
                if codec in ("fp16", "int8", "1bit", "random-k", "qsgd", "terngrad"):  # these rates are fixed
                    self.assertAlmostEqual(strategy["traffic_elements"] / strategy["traffic_formula"], 1, delta=2e-3)

    def test_a_sharded_run_with_a_codec_is_resumed_bit_for_bit(self):
        pipelines = ["-n", 4, "--mesh", "replica=2,stage=2", "--micro-batches", 2]
        for words in some((["--shard", "optimizer", "--codec", "1bit", "-n", 3, "--global-batch", 18], ["--shard", "gradients", "--codec", "lowrank"],
                           ["--shard", "gradients", "--codec", "dgc:keep=0.01", "--set", "train.bucket_mb=0.01"],
                           ["--shard", "optimizer", "--codec", "qsgd", "--accumulate", 2], ["--shard", "gradients", "--codec", "1bit", *pipelines]), 2):
            common = [*SMALL, "-n", 2, "--global-batch", 16, *words, "--precision", "fp32", "-q", "--set", "checkpoint.every=6", "--resume", "auto"]
            name = "-".join(map(str, words)).strip("-").replace(":", "-").replace("=", "-")
            whole, parts = self.path(f"{name}-whole"), self.path(f"{name}-parts")
            self.run_program("train", *common, "--steps", 12, "--run-dir", whole, "--save", whole + ".safetensors")
            self.run_program("train", *common, "--steps", 6, "--run-dir", parts)
            self.run_program("train", *common, "--steps", 12, "--run-dir", parts, "--save", parts + ".safetensors")
            with open(whole + ".safetensors", "rb") as a, open(parts + ".safetensors", "rb") as b:
                self.assertEqual(a.read(), b.read(), words)

    def test_windows_and_sockets_count_equal_bytes(self):
        def step_bytes(codec, *more):
            events, _ = self.train(*SMALL, "-n", 4, "--steps", 10, "--global-batch", 16, "--resume", "never", "--codec", codec,
                                   "--set", "train.hash_every=0", *more)
            return result_of(events)["strategy"]["step_bytes"]
        plain = step_bytes("none")
        for codec, least in (("none", 1), ("fp16", 1.97), ("int8", 3.8), ("1bit", 19), ("prune:keep=0.01", 8),
                             ("threshold", 1), ("lowrank:rank=2", 8)):
            # The algorithm for sockets follows the measured links, and some send more bytes to save rounds.
            windows, sockets = step_bytes(codec), step_bytes(codec, "--set", "comm.shared_memory=false", "--set", "comm.algorithm=ring")
            # Each step sends 16 bytes about the loss, in other algorithms.
            self.assertLess(abs(windows - sockets), 0.005 * sockets + 10 * 2 * 16 * 4 * 4, codec)
            self.assertGreater(plain / windows, least - 0.01, codec)

    def test_codecs_code_what_local_sgd_has_moved(self):
        _, strategy = self.strategy("--exchange", "local-sgd", "--every", 4, "-n", 2, "--codec", "1bit")
        self.assertGreater(strategy["compression"], 20)
        # In one round, the weights move as without the codec, but for the mean of the residuals.
        one_round = [*SMALL, "--exchange", "local-sgd", "--every", 4, "-n", 2, "--global-batch", 32, "--steps", 4, "--resume", "never", "--set",
                     "checkpoint.every=4", "--set", "optimizer.momentum=0"]
        self.train(*one_round)
        plain = self.tensors_after(4, "model")
        events, _ = self.train(*one_round, "--codec", "1bit")
        coded, kept = self.tensors_after(4, "model"), self.tensors_after(4, "optimizer")
        residuals = [kept[f"fc1.weight/values@{rank}"] for rank in range(2)]
        norm = math.hypot(*residuals[0])
        self.assertAlmostEqual(result_of(events)["strategy"]["residual_norm"], norm, delta=1e-5 * norm)
        begin = 0
        for name in LAYERS:  # each but the last has a multiple of 64 elements, so that no padding lies between them
            lacks = [a - b for a, b in zip(plain[name], coded[name])]
            means = [sum(both) / 2 for both in zip(*(r[begin:begin + len(lacks)] for r in residuals))]
            self.assertLess(math.dist(lacks, means), 1e-4 * math.hypot(*lacks), name)
            begin += len(lacks)

    def test_codecs_travel_to_and_from_servers(self):
        for push, pull, least in (("int8", "bf16", (3.9, 2)), ("1bit", "int8", (20, 3.9)), ("lowrank", "lowrank:rank=16", (8, 2.5)),
                                  ("prune:keep=0.05", "prune:keep=0.5", (6, 1.5))):
            _, strategy = self.strategy("--exchange", "parameter-server", "--servers", 2, "-n", 2, "--codec", push, "--pull-codec", pull,
                                        accuracy=0.4)
            self.assertGreater(strategy["push_compression"], least[0], push)
            self.assertGreaterEqual(strategy["pull_compression"], least[1], pull)
            heads = 2 * 3 * 56
            self.assertLessEqual(strategy["push_message_bytes"] + strategy["pull_message_bytes"] + heads,
                                 strategy["bytes_per_step_formula"] + 1e-6)
        _, strategy = self.strategy("--exchange", "downpour", "-n", 2, "--codec", "fp16", "--set", "optimizer.momentum=0", accuracy=LEARNS)
        self.assertAlmostEqual(strategy["push_compression"], 2, places=2)

    def test_synchronous_servers_give_the_bits_of_all_reduce(self):
        def weights(name, *args):
            self.run_program("train", "-q", "--run-dir", self.path("run-" + name), "--save", self.path(name + ".safetensors"), *SMALL,
                             "--steps", 12, "--global-batch", 24, "--precision", "fp64", "-n", 3, "--set", "train.hash_every=0", *args)
            return self.path(name + ".safetensors")
        synchronous = weights("all-reduce")
        self.assertEqual(distance(synchronous, weights("servers", "--exchange", "parameter-server")), 0)
        team = ["--exchange", "parameter-server", "--servers", 2, "--set", "exchange.team=3"]
        self.assertLess(distance(synchronous, weights("team", *team)), 1e-12)
        self.assertLess(distance(synchronous, weights("central", "--exchange", "central")), 1e-12)
        self.assertLess(distance(synchronous, weights("pipeline", "--mesh", "stage=2", "-n", 2)), 1e-12)
        self.assertLess(distance(synchronous, weights("layers", "--threads-mode", "layer", "-n", 1, "--threads", 2)), 1e-12)

    def test_a_run_is_resumed_bit_for_bit(self):
        servers = ["--exchange", "parameter-server", "--servers", 2]
        for words in some((["--exchange", "admm"], ["--exchange", "gossip"], ["--codec", "1bit"], ["--codec", "lowrank"],
                           [*servers, "--codec", "lowrank", "--pull-codec", "prune:keep=0.5"], ["--exchange", "local-sgd"],
                           ["--exchange", "local-sgd", "--every", 4, "--codec", "1bit"], [*servers, "--codec", "1bit", "--pull-codec", "bf16"],
                           ["--exchange", "easgd", "--every", 4], ["--exchange", "sgp", "--graph", "exponential", "-n", 4],
                           ["--exchange", "local-sgd", "--every", 4, "--optimizer", "adamw", "--set", "exchange.outer_lr=0.7", "--set",
                            "exchange.block_momentum=0.9", "--set", "exchange.outer_nesterov=true"],
                           ["--exchange", "local-sgd", "--every", 4, "--set", "exchange.block_momentum=0.5"],
                           ["--exchange", "local-sgd", "--every", 4, "--set", "exchange.local_from=4"],
                           ["--exchange", "parameter-server", "--set", "exchange.team=2"],
                           ["--exchange", "parameter-server", "--set", "exchange.team=2", "--codec", "1bit"],
                           ["--optimizer", "lars", "--shard", "parameters"], ["--optimizer", "lamb"],
                           ["--exchange", "gossip", "--set", "optimizer.ema_decay=0.9"],
                           ["--shard", "gradients", "--set", "optimizer.ema_decay=0.9"]), 7):
            name = "-".join(map(str, words)).strip("-").replace(":", "-")
            common = [*SMALL, "-n", 2, *words, "--global-batch", 16, "--precision", "fp32", "-q", "--set", "checkpoint.every=6"]
            whole, parts = self.path(f"{name}-whole"), self.path(f"{name}-parts")
            self.run_program("train", *common, "--steps", 12, "--run-dir", whole, "--save", whole + ".safetensors")
            self.run_program("train", *common, "--steps", 6, "--run-dir", parts)
            self.run_program("train", *common, "--steps", 12, "--run-dir", parts, "--save", parts + ".safetensors")
            with open(whole + ".safetensors", "rb") as a, open(parts + ".safetensors", "rb") as b:
                self.assertEqual(a.read(), b.read(), words)

    def test_threads_without_locks(self):
        hogwild = ["--threads-mode", "hogwild", "--threads", 2, "--set", "train.thread_updates=2"]
        for form in ("dense", "sparse"):
            result, strategy = self.strategy(*hogwild, "--set", f"train.hogwild={form}", accuracy=LEARNS)
            self.assertEqual(strategy["threads"], 2)
            self.assertEqual(strategy["thread_updates"], 4 * result["steps"])
            self.assertEqual((strategy["step_bytes"], result["bytes_sent"]), (0, 0))
            self.assertLessEqual(strategy["largest_delay"], 2)  # one other thread, two updates in a step
            self.assertLessEqual(strategy["mean_delay"], strategy["largest_delay"])
            self.assertGreater(strategy["touched_share"], 0)
        # A hidden unit that is 0 for all samples of a mini-batch has weights without a gradient.
        self.assertLess(strategy["touched_share"], 1)
        for exchange in ("local-sgd", "easgd", "parallel-sgd"):
            with self.subTest(exchange=exchange):
                words = ["--exchange", exchange, "-n", 2]
                _, alone = self.strategy(*words, accuracy=LEARNS)
                result, strategy = self.strategy(*hogwild, *words, accuracy=LEARNS)
                self.assertEqual(strategy["thread_updates"], 4 * result["steps"])
                self.assertEqual(strategy["step_bytes"], alone["step_bytes"])

    def test_threads_without_locks_resume_with_as_many_threads(self):
        words = [*SMALL, "--threads-mode", "hogwild", "--global-batch", 16, "-q", "--set", "checkpoint.every=2", "--run-dir",
                 self.path("threads")]
        self.run_program("train", *words, "--threads", 2, "--steps", 2)
        _, err = self.run_program("train", *words, "--threads", 4, "--steps", 4, status=2)
        self.assertIn("train.threads: the value was 2", err)
        self.run_program("train", *words, "--threads", 2, "--steps", 4)

    def test_one_thread_without_locks_is_plain_sgd(self):
        common = [*SMALL, "--global-batch", 16, "--precision", "fp64", "-q", "--set", "checkpoint.every=6",
                  "--set", "optimizer.momentum=0", "--threads", 1]
        def weights(name, *args):
            file = self.path(name + ".safetensors")
            self.run_program("train", *common, *args, "--run-dir", self.path(name), "--save", file)
            return file
        hogwild = ["--threads-mode", "hogwild"]
        plain = weights("plain", "--steps", 12)
        self.assertEqual(distance(plain, weights("hogwild", *hogwild, "--steps", 12)), 0)
        weights("parts", *hogwild, "--steps", 6)
        self.assertEqual(distance(plain, weights("parts", *hogwild, "--steps", 12)), 0)  # resumed

    def test_a_tensor_axis_moves_what_the_formula_says(self):
        events, _ = self.train("--model", "gpt", "--data", "grammar", "--set", "model.layers=2", "--set", "model.width=32", "--set",
                               "model.heads=2", "--set", "model.tokens=16", "--set", "data.samples=128", "--set",
                               "data.test_samples=32", "--global-batch", 16, "--mesh", "replica=2,tensor=2", "-n", 4, "--steps", 6)
        result = result_of(events)
        strategy = result["strategy"]
        # A replica has 8 samples of 16 tokens. The width is 32.
        self.assertEqual(strategy["layer_formula"], 8 * 8 * 16 * 32 / 2)
        self.assertEqual(strategy["layer_elements"], strategy["layer_formula"])
        self.assertEqual(result["params"], strategy["whole_parameters"])
        self.assertLess(strategy["held_parameters"], 0.6 * strategy["whole_parameters"])
        self.assertGreater(result["test_loss"], 0)

    def test_stages_of_divided_layers_tell_what_they_did(self):
        # The ranks of a tensor axis compare their copies of parameters after each step.
        _, strategy = self.strategy("--mesh", "stage=2,tensor=2", "-n", 4, "--micro-batches", 4, "--set", "train.hash_every=1")
        self.assertEqual((strategy["stages"], strategy["tensor_ranks"]), (2, 2))
        with open(self.path("run/timeline.json"), encoding="utf-8") as f:
            actions = json.load(f)["actions"]
        # Each of 2 stages has a forward and a backward pass per micro-batch, and a message for each of them.
        self.assertEqual(len(actions), 2 * 4 * (2 + 2))

    def test_divided_layers_are_whole_in_files(self):
        def weights(name, *args):
            common = ["--run-dir", self.path("run-" + name), "-q", *SMALL, "--global-batch", 24, "--precision", "fp64", "--set",
                      "checkpoint.every=4", "--resume", "auto"]
            self.run_program("train", *common, "--steps", 4, *args)
            self.run_program("train", *common, "--steps", 8, "--save", self.path(name + ".safetensors"), *args)
            return self.path(name + ".safetensors")
        alone = weights("alone", "-n", 1)
        self.assertLess(distance(alone, weights("tensor", "--mesh", "replica=2,tensor=2", "-n", 4)), 1e-12)
        self.assertLess(distance(alone, weights("hybrid", "--hybrid", "fc1", "-n", 2)), 1e-12)

    def test_hybrid_tells_its_layers_and_bytes(self):
        result, strategy = self.strategy("--hybrid", "auto", "-n", 2)
        # fc1 has |D| = 784 x 32 and 2,048 outputs against |W| = 784 x 64, so it is model parallel. fc2 has
        # |D| = 64 x 32 and |W| = 640.
        self.assertEqual(strategy["model_parallel_layers"], 1)
        # The input needs no gradient.
        self.assertEqual(strategy["model_parallel/fc1"], 4 * (16 * 784 + 16 * 64))
        self.assertEqual(strategy["data_parallel_bytes"], strategy["data_parallel_formula"])
        self.assertIn("fc12", self.refused("--hybrid", "fc12", "-n", 2))

    def test_replicas_of_pipelines(self):
        pipelines = ("-n", 4, "--mesh", "replica=2,stage=2", "--micro-batches", 4)
        _, strategy = self.strategy(*pipelines)
        self.assertEqual((strategy["exchange"], strategy["replicas"], strategy["stages"]), ("all-reduce", 2, 2))
        self.assertAlmostEqual(strategy["bubble_planned"], 1 / 5)
        _, strategy = self.strategy("-n", 2, "--mesh", "stage=2", "--micro-batches", 4)
        self.assertEqual((strategy["exchange"], strategy["replicas"]), ("none", 1))
        _, strategy = self.strategy(*pipelines, "--precision", "bf16", "--set", "pipeline.activations=int8")
        # A sample is one row of 64 values, which lies in one block of 256 values.
        self.assertEqual(strategy["stage_bytes"], 2 * 4 * (4 * 64 + 4))
        self.assertNotIn("ranged_values", strategy)
        result, strategy = self.strategy(*pipelines, "--exchange", "downpour", "--servers", 2, "--lr", 0.05, accuracy=LEARNS)
        for worker in range(4):
            for shard in range(2):
                self.assertEqual(strategy[f"pushes_{worker}_{shard}"], result["steps"] if worker % 2 == shard else 0)
        for exchange in ("gossip", "admm", "parallel-sgd"):
            self.strategy(*pipelines, "--exchange", exchange, accuracy=LEARNS)

    def test_calibrated_activations_have_one_byte_per_value(self):
        calibrated = ("--set", "pipeline.activations=calibrated-int8")
        pipeline = ("-n", 2, "--mesh", "stage=2", "--micro-batches", 4, *calibrated)
        # A sample is one row of 64 values at the cut. 32 samples pass it in both directions.
        values = 2 * 32 * 64
        result, strategy = self.strategy(*pipeline)
        steps, rest = divmod(strategy["ranged_values"], values)
        self.assertEqual(rest, 0)
        # The loss falls fast at first, so ranges are soon too small and calibrations are repeated.
        self.assertGreater(steps, result["steps"] / 2)
        self.assertLessEqual(steps, result["steps"] - 2)
        self.assertLess(strategy["saturated_values"], 0.05 * strategy["ranged_values"])
        # Steps 1, 6, …, 96 calibrate, and the last of them is the last step. Values then travel as fp32.
        planned = ("--set", "pipeline.calibration_steps=1", "--set", "pipeline.saturation_limit=100",
                   "--set", "pipeline.percentile=99", "--set", "pipeline.recalibrate_every")
        result, strategy = self.strategy(*pipeline, *planned[:-1], planned[-1] + "=5")
        self.assertEqual(result["steps"], 96)
        self.assertEqual(strategy["stage_bytes"], 4 * values)
        self.assertEqual(strategy["ranged_values"], (96 - 20) * values)
        self.assertGreater(strategy["saturated_values"], 0)
        layers = ("--threads", 2, "--threads-mode", "layer", "--micro-batches", 4, *calibrated)
        _, strategy = self.strategy(*layers, *planned[:-1], planned[-1] + "=4")
        self.assertEqual((strategy["stage_bytes"], strategy["ranged_values"]), (values, (96 - 24) * values))
        self.assertIn("give --mesh stage=S", self.refused(*calibrated))
        self.assertIn("no effect with pipeline.activations=int8",
                      self.refused(*pipeline[:-1], "pipeline.activations=int8", "--set", "pipeline.percentile=99"))
        self.assertIn("or 0 to calibrate once", self.refused(*pipeline, "--set", "pipeline.recalibrate_every=2"))

    def test_servers_hold_the_slices_of_a_tensor_axis(self):
        def weights(name, *args):
            self.run_program("train", "-q", "--run-dir", self.path("run-" + name), "--save", self.path(name + ".safetensors"), *SMALL,
                             "--steps", 12, "--global-batch", 24, "--precision", "fp64", *args)
            return self.path(name + ".safetensors")
        downpour = ["--exchange", "downpour", "--set", "exchange.push_every=2", "--set", "exchange.fetch_every=2"]
        tensor = ["--mesh", "tensor=2", "-n", 2, "--servers", 2]
        self.assertLess(distance(weights("whole", *downpour, "-n", 1), weights("slices", *downpour, *tensor)), 1e-10)
        servers = ["--exchange", "parameter-server"]
        self.assertLess(distance(weights("process", "-n", 1), weights("synchronous", *servers, "--mesh", "replica=2,tensor=2", "-n", 4)), 1e-10)
        result, strategy = self.strategy("--exchange", "downpour", "--mesh", "replica=2,tensor=2", "-n", 4, "--servers", 2, "--lr", 0.05,
                                         accuracy=LEARNS)
        for worker in range(4):
            for shard in range(2):
                self.assertEqual(strategy[f"pushes_{worker}_{shard}"], result["steps"] if worker % 2 == shard else 0)

    def test_a_mesh_is_resumed_bit_for_bit(self):
        for name, more in (("exact", ()), ("calibrated", ("--set", "pipeline.activations=calibrated-int8")),
                           # The checkpoint is written in the middle of the second calibration.
                           ("repeated", ("--set", "pipeline.activations=calibrated-int8", "--set", "pipeline.recalibrate_every=5",
                                         "--set", "pipeline.calibration_steps=2"))):
            with self.subTest(name=name):
                self.resume_a_mesh(name, *more)

    def resume_a_mesh(self, name, *more):
        common = [*SMALL, "--exchange", "local-sgd", "--mesh", "replica=2,stage=2", "--micro-batches", 2, "-n", 4, "--global-batch", 16,
                  "--precision", "fp32", "-q", "--set", "checkpoint.every=6", *more]
        whole, parts = self.path(name + "-whole"), self.path(name + "-parts")
        self.run_program("train", *common, "--steps", 12, "--run-dir", whole, "--save", whole + ".safetensors")
        self.run_program("train", *common, "--steps", 6, "--run-dir", parts)
        self.run_program("train", *common, "--steps", 12, "--run-dir", parts, "--save", parts + ".safetensors")
        with open(whole + ".safetensors", "rb") as a, open(parts + ".safetensors", "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_what_cannot_be_is_refused_with_the_reason(self):
        for words, reason in ((["--exchange", "admm", "--partition", "none"], "iid"),
                              (["--exchange", "gossip", "--codec", "int8"], "exchange.codec belongs to"),
                              (["--exchange", "ad-psgd", "-n", "3", "--global-batch", "33"], "an even number of ranks, such as -n 4"),
                              (["--exchange", "ad-psgd", "-n", "4", "--graph", "exponential"], "use --graph ring"),
                              (["--exchange", "async-easgd", "-n", "2", "--mesh", "tensor=2"], "use --exchange easgd"),
                              (["--exchange", "async-easgd", "-n", "2", "--codec", "int8"], 'not to "async-easgd"'),
                              (["--exchange", "async-easgd", "-n", "2", "--shard", "optimizer"], "leave out --exchange async-easgd"),
                              (["--exchange", "parameter-server", "--staleness", "-1"], "staleness"),
                              (["--exchange", "parameter-server", "--staleness", "2", "--backup", "1"], "staleness 0"),
                              (["--mesh", "stage=2,replica=2", "-n", "2"], "4 ranks"),
                              (["--mesh", "stage=2", "--exchange", "gossip", "-n", "2"], "replica"),
                              (["--mesh", "stage=2", "--shard", "parameters", "-n", "4", "--micro-batches", "4"], "--shard gradients"),
                              (["--shard", "parameters", "--codec", "int8", "-n", "2"], "leave out --codec int8, or use --shard gradients"),
                              (["--shard", "gradients", "--codec", "int8", "--accumulate", "2", "-n", "2"], "use --shard optimizer"),
                              (["--shard", "optimizer", "--codec", "prune:correction=on", "-n", "2"], "leave out correction=on"),
                              (["--shard", "gradients", "--exchange", "local-sgd", "--codec", "int8", "-n", "2"], "leave out --exchange local-sgd"),
                              (["--threads-mode", "hogwild", "-n", "2"], "local-sgd, easgd, parallel-sgd"),
                              (["--threads-mode", "hogwild", "--optimizer", "adam"], "use --optimizer sgd"),
                              (["--set", "train.thread_updates=2"], "no effect with --threads-mode op"),
                              (["--every", "0"], "at least 1"),
                              (["--rounds", "2"], "parallel-sgd"),
                              (["--exchange", "admm", "--set", "optimizer.ema_decay=0.9"], "admm keeps no averaged weights"),
                              (["--emulate", "slow"], "slow-rank=1:2x"),
                              (["--codec", "zip"], "codec"),
                              (["--pull-codec", "int8"], "exchange.pull_codec belongs to parameter-server, downpour"),
                              (["--exchange", "parameter-server", "--pull-codec", "threshold", "-n", "2"], "must be complete in each message"),
                              (["--exchange", "downpour", "--codec", "int8", "--precision", "fp64"], "fp32"),
                              (["--mesh", "stage=9", "-n", "9", "--micro-batches", "4"], "blocks")):
            with self.subTest(words=words):
                self.assertIn(reason, self.refused(*words))


if __name__ == "__main__":
    main()
