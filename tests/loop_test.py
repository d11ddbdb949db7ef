"""A program's own training loop: DistributedOptimizer, Run::loader() and ProgramCheckpoint."""
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from own_program_test import tensors_of
from program import BUILD, COPIES, ProgramTest, environment, main, places_of_ranks, some

PROGRAM = str(BUILD / "tests" / "loop_program")


class Loop(ProgramTest):
    def loop(self, *args, status=0, fresh=True, popen=False):
        """Runs the program. The words after "--" are its own. Returns (what all ranks printed, stderr)."""
        if fresh:
            shutil.rmtree(self.path("run"), ignore_errors=True)
        at = args.index("--") if "--" in args else len(args)
        words = [PROGRAM, *COPIES, "--run-dir", self.path("run"), *map(str, args[:at]), "--", *map(str, args[at + 1:])]
        done = self.completed(words)
        self.assertEqual(done.returncode, status, f"{args}\nstdout: {done.stdout[-3000:]}\nstderr: {done.stderr[-3000:]}")
        logs = sorted(pathlib.Path(self.path("run/log")).glob("rank-[1-9]*"))
        return done.stdout + "".join(log.read_text(encoding="utf-8") for log in logs), done.stderr

    def weights(self, name):
        return tensors_of(self.path(name))

    def distance(self, left, right):
        """Returns the largest relative distance of a tensor, by norm."""
        a, b = values_of(self.path(left)), values_of(self.path(right))
        self.assertEqual(set(a), set(b))
        worst = 0.0
        for name in a:
            norm = math.sqrt(sum(x * x for x in a[name])) or 1.0
            worst = max(worst, math.sqrt(sum((x - y) ** 2 for x, y in zip(a[name], b[name]))) / norm)
        return worst


def values_of(path):
    """Returns the fp64 tensors of a safetensors file as lists."""
    import struct
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin:8 + size + end]
        kind = {"F64": "d", "F32": "f"}[entry["dtype"]]
        tensors[name] = list(struct.unpack(f"<{len(raw) // struct.calcsize(kind)}{kind}", raw))
    return tensors


class EqualsOneProcess(Loop):
    """fp64; 52 samples in batches of 8 leave 4 at the end of an epoch, which ranks share unequally."""
    CASES = {
        "sgd": [],
        "adam": ["--optimizer", "adam"],
        "rmsprop": ["--optimizer", "rmsprop"],
        "accumulation": ["--accumulate", 2, "--samples", 48],
        "clipping": ["--clip"],
        "frozen": ["--frozen"],
        "unused": ["--unused"],
        "schedule": ["--schedule", "--optimizer", "adam"],
        "two optimizers": ["--two"],
        "several inputs and targets": ["--several"],
    }

    def test_the_update_is_that_of_a_bare_libtorch_loop(self):
        for name, case in self.CASES.items():
            self.loop("--", "--plain", "--out", self.path("plain"), *[word for word in case if word != "--several"])
            for ranks in (1, 2, 3, 4) if name == "sgd" else some((2, 4, 3), 1):
                with self.subTest(case=name, ranks=ranks):
                    out, _ = self.loop("-n", ranks, "--", "--out", self.path("own"), *case)
                    self.assertEqual(len(re.findall(r"done rank \d of %d epochs 2" % ranks, out)), ranks, out)
                    for rank in range(ranks):
                        self.assertLess(self.distance("plain.0", f"own.{rank}"), 1e-10)
                    if name == "two optimizers":
                        self.assertLess(self.distance("plain2.0", f"own2.{ranks - 1}"), 1e-10)

    def test_sums_with_weights_give_the_mean_over_all_ranks(self):
        # 50 samples leave two at the end of an epoch, so that of four ranks two have none.
        ways = [(ranks, []) for ranks in (4, 1, 2, 3)]
        ways += [(ranks, way) for ranks in (4, 3) for way in (*self.PARTS, ["--exchange", "parameter-server"])]
        for number, case in enumerate(([], ["--accumulate", 2, "--samples", 48], ["--samples", 50], ["--accumulate", 2, "--samples", 50],
                                       ["--accumulate", 2, "--samples", 50, "--clear-late"])):
            self.loop("--", "--plain", "--out", self.path("plain"), "--weigh", *case)
            for ranks, way in some(ways[number:] + ways[:number], 3):
                with self.subTest(case=case, way=way, ranks=ranks):
                    self.loop("-n", ranks, *way, "--", "--out", self.path("own"), "--weigh", *case)
                    for rank in range(ranks):
                        self.assertLess(self.distance("plain.0", f"own.{rank}"), 1e-10)

    def test_collectives_of_the_program_may_be_pending_meanwhile(self):
        self.loop("--", "--plain", "--out", self.path("plain"))
        for ranks, sums in ((1, "1 1 2 2 3 3"), (2, "3 3 6 6 9 9"), (3, "6 6 12 12 18 18")):
            for way in ([], ["--exchange", "central"], ["--shard", "gradients"], ["--shard", "parameters"]) if ranks == 2 else ([],):
                with self.subTest(ranks=ranks, way=way):
                    out, _ = self.loop("-n", ranks, *way, "--", "--group", "--out", self.path("own"))
                    self.assertEqual(out.count(f"sums of {ranks} ranks {sums}\n"), ranks, out)
                    for rank in range(ranks):
                        self.assertLess(self.distance("plain.0", f"own.{rank}"), 1e-10)

    # The ways in which a rank updates a part of the parameters, or none of them.
    PARTS = (["--shard", "optimizer"], ["--shard", "gradients"], ["--shard", "parameters", "--set", "train.bucket_mb=0.000001"], ["--exchange", "central"],
             ["--exchange", "central", "--central", "master"])

    def test_sharded_updates_are_that_of_a_bare_libtorch_loop(self):
        for number, case in enumerate(("sgd", "adam", "clipping", "unused", "frozen", "accumulation", "two optimizers")):
            self.loop("--", "--plain", "--out", self.path("plain"), *self.CASES[case])
            for way in some(self.PARTS[number % 5:] + self.PARTS[:number % 5], 2 if case == "adam" else 1):
                for ranks in (1, 2, 3) if case == "adam" else some((2, 3), 1):
                    with self.subTest(case=case, way=way, ranks=ranks):
                        out, _ = self.loop("-n", ranks, *way, "--", "--out", self.path("own"), *self.CASES[case])
                        for rank in range(ranks):
                            self.assertLess(self.distance("plain.0", f"own.{rank}"), 1e-10)
                        if case == "two optimizers":
                            self.assertLess(self.distance("plain2.0", f"own2.{ranks - 1}"), 1e-10)
                        if case == "adam" and "--shard" in way:
                            elements, gradients, size = (float(re.search(rf"{name} = (\S+)", out)[1])
                                                         for name in ("shard_elements", "gradient_elements", "parameter_bytes"))
                            self.assertEqual(elements * 8 * (1 if "parameters" in way else ranks), size, out)
                            self.assertEqual(gradients, elements * ranks if "optimizer" in way else elements, out)

    def test_optimizers_with_other_states_are_sharded(self):
        for first, optimizer in enumerate(("rmsprop", "adagrad")):
            self.loop("--", "--plain", "--out", self.path("plain"), "--optimizer", optimizer)
            for way in some(self.PARTS[first:] + self.PARTS[:first], 2):
                with self.subTest(optimizer=optimizer, way=way):
                    self.loop("-n", 2, *way, "--", "--out", self.path("own"), "--optimizer", optimizer)
                    self.assertLess(self.distance("plain.0", "own.1"), 1e-10)

    # The ways in which several ranks compute a batch together.
    TENSOR = [(2, ["--mesh", "tensor=2"]), (4, ["--mesh", "replica=2,tensor=2"]), (4, ["--mesh", "replica=2,tensor=2", "--shard", "optimizer"]),
              (3, ["--mesh", "tensor=3"]), (4, ["--mesh", "replica=2,tensor=2", "--shard", "gradients"]),
              (4, ["--mesh", "replica=2,tensor=2", "--exchange", "local-sgd", "--every", 1])]

    def test_the_ranks_of_a_tensor_axis_divide_the_layers(self):
        cases = [(name, self.CASES[name]) for name in ("sgd", "adam", "frozen", "accumulation", "two optimizers", "several inputs and targets", "schedule")]
        for number, (name, case) in enumerate([*cases, ("weights", ["--weigh", "--samples", 50]), ("norm", ["--clip"])]):
            self.loop("--", "--plain", "--out", self.path("plain"), *[word for word in case if word != "--several"])
            first = number % 5
            ways = self.TENSOR[first:5] + self.TENSOR[:first]
            if name == "norm":  # the loop could clip by the norm of its parts only
                case, ways = [], [(ranks, [*way, "--set", "optimizer.clip_norm=0.1"]) for ranks, way in self.TENSOR[:5]]
            for ranks, way in some(ways, 2 if name == "norm" else 1):
                with self.subTest(case=name, ranks=ranks, way=way):
                    out, _ = self.loop("-n", ranks, *way, "--set", "train.hash_every=1", "--save", self.path("saved.safetensors"), "--", "--divide", "--checkpoint", "--out", self.path("own"), *case)
                    saved, plain = values_of(self.path("saved.safetensors")), values_of(self.path("plain.0"))
                    if name == "two optimizers":
                        plain |= {"other." + key: value for key, value in values_of(self.path("plain2.0")).items()}
                    self.assertEqual(set(saved), set(plain))
                    for key, value in plain.items():
                        apart = math.dist(saved[key], value) / math.hypot(*value)
                        self.assertLess(apart, 1e-10, key)
                    self.assertRegex(out, rf"loop of the program: {18 if name == 'frozen' else 50} parameters, {ranks} ranks, all-reduce, (sharded \w+, )?"
                                          r"tensor axis of \d\n")
                    replicas = 2 if ranks == 4 else 1
                    self.assertEqual(sorted(re.findall(r"replica (\d) of (\d)", out)),
                                     [(str(rank * replicas // ranks), str(replicas)) for rank in range(ranks)])
                    # Rank 0 has the smallest part. `second` has two outputs. Its bias is whole on every rank.
                    part = 8 // int(way[1][-1])
                    held = (3 + 1 + 2) * part + 2 if name != "frozen" else 2 * part + 2
                    self.assertEqual(float(re.search(r"held_parameters = (\S+)", out)[1]), held, out)

    def test_a_step_of_local_sgd_on_a_tensor_axis_is_that_of_whole_models(self):
        ranks, way = self.TENSOR[-1]
        same = ["--", "--samples", 48, "--epochs", 1, "--optimizer", "sgd", "--accumulate", 6]
        self.loop(*same, "--plain", "--out", self.path("plain"))
        self.loop("-n", ranks, *way, "--save", self.path("saved.safetensors"), *same, "--divide", "--checkpoint")
        self.assertLess(self.distance("plain.0", "saved.safetensors"), 1e-10)

    def test_sharded_parameters_of_divided_layers(self):
        self.loop("--", "--plain", "--out", self.path("plain"), "--clip")
        self.loop("-n", 4, "--mesh", "replica=2,tensor=2", "--shard", "parameters", "--set", "train.bucket_mb=0.000001", "--set",
                  "optimizer.clip_norm=0.1", "--save", self.path("saved.safetensors"), "--", "--divide", "--checkpoint")
        self.assertLess(self.distance("plain.0", "saved.safetensors"), 1e-10)

    def test_a_module_without_divided_layers_is_whole_on_each_rank(self):
        self.loop("--", "--plain", "--out", self.path("plain"))
        out, err = self.loop("-n", 2, "--mesh", "tensor=2", "--", "--out", self.path("own"))
        self.assertIn("each rank of the tensor axis holds the whole module", out + err)
        for rank in range(2):
            self.assertLess(self.distance("plain.0", f"own.{rank}"), 1e-10)

    def test_divided_layers_compute_the_same_under_autocast_and_in_inference(self):
        out, _ = self.loop("-n", 2, "--mesh", "tensor=2", "--", "--divide", "--float", "--modes")
        found = re.findall(r"apart (\S+) (\S+) (\S+)", out)
        self.assertEqual(len(found), 2, out)
        for inference, autocast, kind in found:
            self.assertLess(float(inference), 1e-6)
            self.assertLess(float(autocast), 0.05)
            self.assertEqual(kind, "BFloat16")

    def test_servers_make_the_updates_of_the_optimizer_of_the_program(self):
        cases = {case: self.CASES[case] for case in ("sgd", "adam", "rmsprop", "unused", "frozen", "accumulation", "schedule", "two optimizers")}
        cases |= {case: ["--optimizer", case] for case in ("adagrad", "decay", "amsgrad", "centered")}
        cases |= {"schedule of momentum": ["--schedule"], "nesterov": ["--optimizer", "nesterov", "--schedule"], "groups": ["--groups", "--schedule"]}
        for case, own in some(cases.items(), 8):
            self.loop("--", "--plain", "--out", self.path("plain"), *own)
            for ranks, servers in ((1, 1), (2, 2), (3, 2)) if case == "sgd" else some(((3, 2), (2, 1)), 1):
                with self.subTest(case=case, ranks=ranks, servers=servers):
                    self.loop("-n", ranks, "--exchange", "parameter-server", "--servers", servers, "--", "--out", self.path("own"), *own)
                    for rank in range(ranks):
                        self.assertLess(self.distance("plain.0", f"own.{rank}"), 1e-10)
                    if case == "two optimizers":
                        self.assertLess(self.distance("plain2.0", f"own2.{ranks - 1}"), 1e-10)

    def test_a_new_optimizer_takes_the_place_of_the_one_before(self):
        self.loop("--", "--plain", "--out", self.path("plain"), "--remake", "--epochs", 3)
        for way in ([], ["--exchange", "central"], ["--shard", "gradients"], ["--shard", "parameters"], ["--exchange", "parameter-server"]):
            with self.subTest(way=way):
                self.loop("-n", 2, *way, "--", "--out", self.path("own"), "--remake", "--epochs", 3)
                self.assertLess(self.distance("plain.0", "own.1"), 1e-10)

    def test_several_servers_divide_the_parameters(self):
        out, _ = self.loop("-n", 2, "--exchange", "parameter-server", "--servers", 2, "--", "--epochs", 1)
        requests = [float(re.search(rf"requests_{shard} = (\S+)", out)[1]) for shard in (0, 1)]
        self.assertGreater(min(requests), 2 * 7, out)

    def test_a_parameter_with_a_gradient_on_some_ranks_is_updated_on_all(self):
        self.loop("-n", 2, "--", "--unused", "--odd-only", "--out", self.path("own"))
        self.assertEqual(self.weights("own.0"), self.weights("own.1"))
        before = self.loop("-n", 2, "--", "--unused", "--out", self.path("unused"))
        self.assertGreater(self.distance("unused.0", "own.0"), 1e-3, before)

    def test_fewer_samples_than_ranks_at_the_end(self):
        self.loop("--", "--plain", "--samples", 25, "--out", self.path("plain"))
        for way in ([], ["--exchange", "parameter-server"], ["--exchange", "central"]):
            with self.subTest(way=way):
                out, _ = self.loop("-n", 4, *way, "--", "--samples", 25, "--out", self.path("own"), "--batches")
                self.assertEqual(out.count("samples 0 of 1"), 2 * 3, out)
                self.assertLess(self.distance("plain.0", "own.3"), 1e-10)


class Exchanges(Loop):
    WAYS = ([], ["--exchange", "local-sgd", "--every", 3], ["--exchange", "local-sgd", "--set", "exchange.block_momentum=0.5"],
            ["--exchange", "gossip"], ["--exchange", "gossip", "--set", "exchange.graph=exponential"], ["--exchange", "admm"],
            ["--exchange", "admm", "--every", 4, "--set", "exchange.adaptive_rho=true"], ["--exchange", "parallel-sgd", "--every", 6],
            ["--set", "optimizer.clip_norm=0.05"])
    CODECS = ("fp16", "int8", "1bit", "threshold:correction=off", "prune:keep=0.5,correction=off", "lowrank:rank=1")
    CONSTANT = ["--set", "schedule.name=constant", "--set", "optimizer.weight_decay=0", "--set", "schedule.warmup_steps=0", "--set",
                "schedule.warmup_share=0", "--epochs", 3]
    OPTIMIZERS = {"sgd": ["--optimizer", "sgd", "--lr", 0.05, "--set", "optimizer.momentum=0.9"], "adam": ["--optimizer", "adam", "--lr", 0.01]}

    def both_loops(self, optimizer, *way, own=()):
        """Trains in the loop of the library and in that of the program, from equal weights."""
        same = [*way, "--init", self.path("init.0")]
        own = ["--samples", 48, "--batch", 12, "--epochs", 3, *own]
        self.loop(*same, "--global-batch", 12, *self.OPTIMIZERS[optimizer], *self.CONSTANT, "--", *own, "--fit", "--shown", self.path("library"))
        self.loop(*same, "--", *own, "--optimizer", optimizer, "--shown", self.path("own"))

    def test_both_loops_are_the_same_strategy(self):
        """fp64, after 12 steps; A and B differ only in who computes gradients and update."""
        self.loop("--", "--plain", "--out", self.path("init"), "--epochs", 0)
        for optimizer in self.OPTIMIZERS:
            for ranks, way in some([(2, way) for way in self.WAYS] + [(3, ["--exchange", "gossip"]), (3, ["--exchange", "admm"])], 6):
                if optimizer == "adam" and way not in self.WAYS[:2] + self.WAYS[-1:]:
                    continue
                with self.subTest(way=way, ranks=ranks, optimizer=optimizer):
                    self.both_loops(optimizer, "-n", ranks, "--precision", "fp64", *way)
                    for rank in range(ranks):
                        self.assertLess(self.distance("library.0", f"own.{rank}"), 1e-10)

    def test_both_loops_send_the_same_codes(self):
        """Codecs compute in fp32. An own loop has no momentum correction."""
        self.loop("--", "--plain", "--float", "--out", self.path("init"), "--epochs", 0)
        for codec in some(self.CODECS, 3):
            with self.subTest(codec=codec):
                self.both_loops("sgd", "-n", 2, "--codec", codec, own=["--float"])
                self.assertEqual(self.weights("own.0"), self.weights("own.1"))
                self.assertLess(self.distance("library.0", "own.0"), 1e-4)
        # The two loops cut the parameters differently, which these codecs do not see.
        for way in (["-n", 3, "--shard", "optimizer", "--codec", "fp16"], ["-n", 2, "--shard", "gradients", "--codec", "threshold:tau=0.01"]):
            with self.subTest(way=way):
                self.both_loops("sgd", *way, own=["--float"])
                self.assertEqual(self.weights("own.0"), self.weights("own.1"))
                self.assertLess(self.distance("library.0", "own.0"), 1e-4)

    def test_two_ranks_send_equal_codes_with_and_without_shards(self):
        """Messages of two ranks are encoded once in both ways, and fp16 sees each element by itself."""
        for case in ([], ["--clip"]):  # a loop that clips asks for the whole mean before the update
            self.loop("-n", 2, "--codec", "fp16", "--", "--float", *case, "--out", self.path("whole"))
            for shard in ("optimizer", "gradients"):
                with self.subTest(case=case, shard=shard):
                    out, _ = self.loop("-n", 2, "--shard", shard, "--codec", "fp16", "--", "--float", *case, "--out", self.path("sharded"))
                    for rank in (0, 1):
                        self.assertLess(self.distance("whole.0", f"sharded.{rank}"), 1e-6)
                    bytes_, compression = (float(re.search(rf"{name} = (\S+)", out)[1]) for name in ("message_bytes", "compression"))
                    size = float(re.search(r"parameter_bytes = (\S+)", out)[1])
                    # Half of the gradients travels as fp16. The means that a loop gathers to clip them do not
                    # count.
                    self.assertEqual((bytes_, compression), (size / 4, 2), out)

    def test_one_worker_of_an_asynchronous_server_is_a_bare_loop(self):
        """A push of the only worker is an update, and it reads its own updates."""
        for way in (["--exchange", "parameter-server", "--staleness", "inf"], ["--exchange", "downpour"]):
            for optimizer in ("sgd", "adam"):
                self.loop("--", "--plain", "--out", self.path("plain"), "--optimizer", optimizer)
                with self.subTest(way=way, optimizer=optimizer):
                    self.loop("-n", 1, *way, "--", "--out", self.path("own"), "--optimizer", optimizer)
                    self.assertLess(self.distance("plain.0", "own.0"), 1e-10)

    def test_asynchronous_servers_agree_in_the_consensus(self):
        for way in (["--staleness", "2"], ["--staleness", "inf"], ["--staleness", "inf", "--codec", "int8", "--pull-codec", "fp16"]):
            own = ["--float"] if "--codec" in way else []
            with self.subTest(way=way):
                out, _ = self.loop("-n", 3, "--exchange", "parameter-server", *way, "--", *own, "--shown", self.path("shown"))
                self.assertEqual(self.weights("shown.0"), self.weights("shown.2"))
                if "2" in way:
                    self.assertLessEqual(float(re.search(r"max_staleness = (\S+)", out)[1]), 2, out)

    def test_servers_are_the_same_strategy_in_both_loops(self):
        self.loop("--", "--plain", "--out", self.path("init"), "--epochs", 0)
        for optimizer in self.OPTIMIZERS:
            for way in (["-n", 2], ["-n", 1, "--staleness", "inf"]):
                with self.subTest(way=way, optimizer=optimizer):
                    self.both_loops(optimizer, "--precision", "fp64", "--exchange", "parameter-server", *way)
                    self.assertLess(self.distance("library.0", "own.0"), 1e-10)

    # What FitOptions add, and the same in a loop of the program's own.
    OPTIONS = {"own rmsprop": (["--own"], ["--optimizer", "rmsprop"]), "own adam": (["--own"], ["--optimizer", "adam"]),
               "groups": ([], ["--groups"]), "schedule": ([], ["--groups", "--schedule"]), "own schedule": (["--own"], ["--optimizer", "adam", "--schedule"]),
               "parts": (["--parts"], []), "own parts": (["--own", "--parts"], ["--optimizer", "adam"]),
               "clip": ([], ["--clip-value"]), "own clip": (["--own"], ["--optimizer", "adam", "--clip-value"])}

    def test_options_of_fit_do_what_a_loop_of_the_program_does(self):
        self.loop("--", "--plain", "--out", self.path("init"), "--epochs", 0)
        same = ["--precision", "fp64", "--init", self.path("init.0")]
        rule = ["--global-batch", 12, *self.OPTIMIZERS["sgd"], *self.CONSTANT]
        for number, (name, (of_fit, own)) in enumerate(self.OPTIONS.items()):
            own = ["--samples", 48, "--batch", 12, "--epochs", 3, *own]
            ways = [[], ["-n", 2], ["-n", 2, "--shard", "optimizer"], ["-n", 2, "--exchange", "local-sgd", "--every", 4]]
            if name in ("own rmsprop", "own parts", "own schedule", "groups"):
                ways += [["-n", 2, "--shard", "gradients"], ["-n", 2, "--shard", "parameters"], ["-n", 2, "--exchange", "central"], ["-n", 2, "--exchange", "parameter-server"],
                         ["-n", 2, "--exchange", "central", "--central", "master"]]
            if not of_fit and "groups" not in name and name != "schedule":
                ways = [way for way in ways if "--shard" not in way]  # without an own optimizer this is the ZeRO of the configuration
            if "clip" in name:  # the loop clips the gradients of one rank, and synchronize() has none to exchange
                ways = [way for way in ways if "--shard" not in way and "local-sgd" not in way]
            first = number % len(ways)
            for way in some(ways[first:] + ways[:first], 1):
                with self.subTest(options=name, way=way):
                    self.loop(*same, *rule, *way, "--", *own, "--fit", *of_fit, "--shown", self.path("library"))
                    self.loop(*same, *way, "--", *own, "--shown", self.path("own"))
                    self.assertLess(self.distance("library.0", "own.0"), 1e-10)

    def test_both_loops_carry_the_same_state(self):
        self.loop("--", "--plain", "--out", self.path("init"), "--epochs", 0)
        for ranks, way in some([(1, []), (2, []), (3, []), (2, ["--shard", "gradients"]), (2, ["--exchange", "gossip"]), (2, ["--exchange", "central"]),
                                (2, ["--exchange", "local-sgd", "--every", 4]), (2, ["--exchange", "parameter-server"])], 4):
            with self.subTest(ranks=ranks, way=way):
                self.both_loops("sgd", "-n", ranks, "--precision", "fp64", *way, own=["--carry"])
                self.assertLess(self.distance("library.0", "own.0"), 1e-10)

    def test_fit_with_an_own_optimizer_in_bf16_updates_fp32_parameters(self):
        same = ["--global-batch", 12, "--epochs", 3, "--", "--float", "--samples", 48, "--epochs", 3, "--fit", "--own", "--optimizer", "adam"]
        self.loop("--precision", "fp32", *same, "--shown", self.path("fp32"))
        self.loop("--precision", "bf16", *same, "--shown", self.path("bf16"))
        self.assertLess(self.distance("fp32.0", "bf16.0"), 0.05)
        self.assertNotEqual(self.weights("fp32.0"), self.weights("bf16.0"))
        self.loop("-n", 2, "--shard", "parameters", "--set", "train.bucket_mb=0.000001", "--precision", "bf16", *same, "--shown", self.path("sharded"))
        self.assertLess(self.distance("fp32.0", "sharded.1"), 0.05)

    def test_local_sgd_with_a_round_after_every_step_averages_the_weights_of_sgd_without_momentum(self):
        # Averaging after each step of plain SGD equals averaging the gradients.
        same = ["--", "--samples", 48, "--epochs", 1, "--optimizer", "sgd", "--accumulate", 6]
        self.loop(*same, "--plain", "--out", self.path("plain"))
        self.loop("-n", 2, "--exchange", "local-sgd", "--every", 1, *same, "--out", self.path("own"))
        self.assertLess(self.distance("plain.0", "own.1"), 1e-10)

    def test_ranks_draw_different_random_numbers(self):
        out, _ = self.loop("-n", 3, "--", "--noise", "--epochs", 1)
        self.assertEqual(len(set(re.findall(r"noise (\S+)", out))), 3, out)


class Resume(Loop):
    WAYS = ([], ["-n", 2], ["-n", 2, "--exchange", "gossip"], ["-n", 2, "--exchange", "admm"],
            ["-n", 2, "--shard", "optimizer"], ["-n", 2, "--shard", "gradients"], ["-n", 2, "--shard", "parameters"], ["-n", 2, "--exchange", "central"],
            ["-n", 2, "--exchange", "central", "--central", "master"], ["-n", 2, "--exchange", "parameter-server", "--servers", 2],
            ["-n", 2, "--exchange", "parameter-server", "--staleness", 0], ["-n", 2, "--codec", "1bit", "--set", "train.precision=fp32"],
            ["-n", 2, "--shard", "gradients", "--codec", "1bit", "--set", "train.precision=fp32"], ["-n", 2, "--mesh", "tensor=2"])

    def test_a_killed_run_resumes_to_the_same_weights(self):
        for way in some(self.WAYS, 4):
            # Servers make the updates of rmsprop, and of sgd with momentum, by an optimizer of libtorch's.
            name = "rmsprop" if "--staleness" in way else "sgd" if "--servers" in way else "adam"
            own = ["--checkpoint", "--carry", "--two", "--optimizer", name, "--epochs", 3]
            if "--codec" in way:
                own.append("--float")
            if "--mesh" in way:
                own = ["--divide", *[word for word in own if word != "--carry"]]
            with self.subTest(way=way):
                self.loop(*way, "--", *own, "--out", self.path("whole"))
                killed, _ = self.loop(*way, "--", *own, "--save-at", 8, "--kill-at", 10, status=4 if "-n" in way else -signal.SIGKILL)
                self.assertIn("begun after step 0", killed)
                self.assertTrue(os.path.exists(self.path("run/checkpoints/step-000008/manifest.json")))
                out, _ = self.loop(*way, "--", *own, "--out", self.path("resumed"), fresh=False)
                self.assertEqual(set(re.findall(r"resumed after step (\d+) position (\d+) losses (\d+)", out)), {("8", "8", "8")}, out)
                if "admm" in way:  # a loop of the program's own has the block momentum that is given, and no other
                    self.assertRegex(pathlib.Path(self.path("run/config.toml")).read_text(encoding="utf-8"), r"block_momentum = 0(\.0)?\n")
                for name in ("0", "1")[:1 + ("-n" in way)]:
                    self.assertEqual(self.weights(f"whole.{name}"), self.weights(f"resumed.{name}"))
                    self.assertEqual(self.weights(f"whole2.{name}"), self.weights(f"resumed2.{name}"))

    FIT = ["--", "--samples", 48, "--batch", 12, "--carry", "--fit"]

    def test_a_killed_fit_resumes_what_the_module_carries(self):
        way = ["-n", 2, "--global-batch", 12, "--epochs", 3, "--set", "checkpoint.every=5"]
        self.loop(*way, *self.FIT, "--shown", self.path("whole"))
        self.loop(*way, *self.FIT, "--kill-at", 8, status=4)
        out, _ = self.loop(*way, *self.FIT, "--shown", self.path("resumed"), fresh=False)
        self.assertEqual(out.count("counts 12 batches"), 2, out)
        self.assertEqual(self.weights("whole.0"), self.weights("resumed.0"))

    def test_a_lost_rank_leaves_what_the_others_carry(self):
        way = ["-n", 3, "--global-batch", 12, "--on-failure", "continue", "--set", "checkpoint.every=5"]
        out, _ = self.loop(*way, "--epochs", 3, *self.FIT, "--kill-at", 8)
        self.assertEqual(out.count("counts 12 batches"), 2, out)
        out, err = self.loop(*way, "--epochs", 4, *self.FIT, fresh=False)
        self.assertIn("they begin anew", out + err)
        self.assertEqual(out.count("counts 4 batches"), 3, out)

    def test_workers_that_leave_one_by_one_cannot_carry_tensors(self):
        _, err = self.loop("-n", 2, "--global-batch", 12, "--exchange", "downpour", *self.FIT, status=2)
        self.assertIn("the workers of servers leave one by one", err)

    def test_replicas_that_share_a_rank_cannot_carry_tensors(self):
        _, err = self.loop("--global-batch", 12, "--threads", 2, "--threads-mode", "batch", *self.FIT, status=2)
        self.assertIn("2 replicas of it train in one rank", err)

    def test_checkpoints_are_written_when_they_are_due(self):
        self.loop("-n", 2, "--set", "checkpoint.every=5", "--", "--checkpoint", "--epochs", 2)
        self.assertIn("step-000014", os.listdir(self.path("run/checkpoints")))
        events = [json.loads(line) for line in pathlib.Path(self.path("run/events.jsonl")).read_text(encoding="utf-8").splitlines()]
        due = [e["step"] for e in events if e["event"] == "checkpoint"]
        self.assertEqual(due[0], 5)
        self.assertEqual(due[-1], 14)

    def test_ctrl_c_saves_first_and_says_how_to_go_on(self):
        self.interrupted()

    def test_ctrl_c_ends_the_servers_too(self):
        _, err = self.interrupted("--exchange", "parameter-server")
        self.assertNotIn("was lost", err)

    def test_ctrl_c_ends_a_program_that_holds_its_process_group(self):
        _, err = self.interrupted(own=["--group"])
        self.assertNotIn("was lost", err)

    def test_ctrl_c_ends_ranks_that_divide_layers(self):
        _, err = self.interrupted("--mesh", "tensor=2", own=["--divide"])
        self.assertNotIn("was lost", err)

    def test_a_divided_layer_names_the_rank_that_is_lost(self):
        _, err = self.loop("-n", 2, "--mesh", "tensor=2", "--", "--divide", "--checkpoint", "--kill-at", 4, "--kill-rank", 1, status=4)
        self.assertRegex(err, r"rank 1 was killed by signal 9 \(SIGKILL\) after step [34]")
        self.assertNotIn("terminate called", err)

    def test_asynchronous_workers_end_if_one_is_lost(self):
        out, err = self.loop("-n", 3, "--exchange", "parameter-server", "--staleness", 2, "--", "--checkpoint", "--epochs", 3, "--kill-at", 10,
                             "--kill-rank", 1, status=4)
        self.assertIn("error: rank 1 was killed by signal 9", err)
        self.assertNotIn("2 ranks continue", out + err)

    def test_a_pass_on_one_rank_alone_is_named_at_once(self):
        _, err = self.loop("-n", 2, "--mesh", "tensor=2", "--", "--divide", "--rank-0-evaluates", "--shown", self.path("shown"), status=4)
        self.assertIn("collectives differ", err)

    def test_a_checkpoint_of_another_tensor_axis_is_refused(self):
        own = ["--", "--divide", "--checkpoint", "--optimizer", "adam", "--epochs", 1]
        self.loop("-n", 4, "--mesh", "replica=2,tensor=2", *own)
        _, err = self.loop("-n", 4, "--mesh", "tensor=4", *own, fresh=False, status=2)
        self.assertIn('train.mesh: the value was "replica=2,tensor=2" in the run of', err)
        self.assertIn("--resume never to start anew", err)

    def interrupted(self, *way, own=()):
        own = ["--checkpoint", "--epochs", 200000, *own]
        process = subprocess.Popen([PROGRAM, "--run-dir", self.path("run"), "-n", "2", *way, "--", *map(str, own)], cwd=self.dir, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        self.addCleanup(self.end, process)
        for line in process.stdout:
            if "begun after step 0" in line:
                break
        else:
            self.fail(process.communicate(timeout=60))
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertIn("The run was interrupted. To go on where it stopped:", out + err)
        self.assertIn("--run-dir", out + err)
        self.assertEqual(process.returncode, 130, out + err)
        steps = [int(p.name[5:]) for p in pathlib.Path(self.path("run/checkpoints")).glob("step-*")]
        sharded = ["--divide"] if "--divide" in own else []
        again, _ = self.loop("-n", 2, *way, "--", *sharded, "--checkpoint", "--epochs", 1, fresh=False)
        self.assertIn(f"resumed after step {max(steps)} position {max(steps)}", again)
        return out, err


class Joined(Loop):
    """The loop of a program that embeds the run by starling::join()."""

    def hosts(self, settings, own, processes=2):
        """Returns what each host printed. All of them must end by themselves, with status 0."""
        words = [PROGRAM, "joined", *settings, "--", *map(str, own)]
        started = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.dir, env=environment(**place))
                   for place in ([{}] if processes == 1 else places_of_ranks(processes))]
        for host in started:
            self.addCleanup(self.end, host)
        printed = []
        for host in started:
            out, err = host.communicate(timeout=120)
            self.assertEqual(host.returncode, 0, f"{out}\n{err}")
            self.assertTrue(out.endswith("the program goes on\n"), f"{out}\n{err}")
            printed.append(out)
        return printed

    def test_the_update_is_that_of_a_bare_libtorch_loop(self):
        self.loop("--", "--plain", "--out", self.path("plain"))
        for settings, processes in (([], 1), ([], 2), (["train.shard=gradients"], 2), (["exchange.name=central"], 3),
                                    (["exchange.name=parameter-server", "exchange.servers=1"], 3)):
            with self.subTest(settings=settings, processes=processes):
                servers = int("exchange.servers=1" in settings)
                own = ["--out", self.path("own")]
                printed = self.hosts([*settings, f"train.ranks={processes - servers}", "train.global_batch=12"], own, processes)
                self.assertEqual(sum(f"of {processes - servers} epochs 2" in out for out in printed), processes - servers, printed)
                for rank in range(processes - servers):
                    self.assertLess(self.distance("plain.0", f"own.{rank}"), 1e-10)

    def test_a_request_to_stop_saves_and_is_thrown_and_the_next_run_goes_on(self):
        settings, own = ["run.dir=run", "train.ranks=2"], ["--checkpoint", "--epochs", 3]
        self.hosts(settings, [*own, "--out", self.path("whole")])
        shutil.rmtree(self.path("run"))
        for out in self.hosts(settings, [*own, "--stop-at", 7]):
            self.assertIn("thrown: the run was interrupted", out)
        for out in self.hosts(settings, [*own, "--out", self.path("resumed")]):
            self.assertRegex(out, r"resumed after step ([7-9]|1\d) ")
        self.assertEqual(self.weights("whole.1"), self.weights("resumed.1"))

    def test_a_fault_is_thrown_in_every_host(self):
        for out in self.hosts(["train.ranks=2"], ["--fault", "other-model"]):
            self.assertIn("thrown: DistributedOptimizer: the model of rank 1 differs from that of rank 0", out)
        for out in self.hosts(["train.ranks=2", "exchange.name=central", "optimizer.clip_value=1"], []):
            self.assertIn("central does not clip the elements", out)


class Faults(Loop):
    def test_faults_name_the_place_and_the_remedy(self):
        for words, status, texts in (
                (["--", "--fault", "sparse", "--float"], 2, ["table.weight", "its gradient is sparse", "sparse(false)"]),
                (["--", "--fault", "foreign"], 2, ["the optimizer has 1 parameters that are not the module's"]),
                (["-n", 2, "--", "--fault", "other-model"], 2, ["the model of rank 1 differs from that of rank 0"]),
                (["--", "--fault", "twice", "--checkpoint"], 2, ["'sum' is added twice"]),
                (["--", "--frozen", "--unfreeze"], 2, ["first.weight", "make a new optimizer"]),
                (["-n", 2, "--mesh", "replica=1,stage=2"], 2, ["train.mesh", "an own loop computes all layers on each rank", "Run::fit()"]),
                (["-n", 2, "--mesh", "tensor=2", "--", "--divide", "--optimizer", "lbfgs"], 2, ["train.mesh", "cannot train sharded layers"]),
                (["-n", 2, "--mesh", "tensor=2", "--", "--divide", "--fault", "nested"], 2, ["Run::replicate", "an earlier call has sharded"]),
                (["-n", 2, "--mesh", "tensor=2", "--", "--divide", "--fault", "columns"], 1, ["none by rows", "kGathered", "mat1 and mat2"]),
                (["-n", 2, "--mesh", "tensor=2", "--exchange", "parameter-server", "--", "--divide"], 2, ["--exchange", "for whole models"]),
                (["-n", 2, "--shard", "parameters", "--", "--optimizer", "lbfgs"], 2, ["train.shard", "needs all elements of a parameter"]),
                (["-n", 2, "--shard", "optimizer", "--", "--optimizer", "lbfgs"], 2, ["train.shard", "needs all elements of a parameter"]),
                (["-n", 2, "--shard", "gradients", "--", "--optimizer", "lbfgs"], 2, ["train.shard", "needs all elements of a parameter"]),
                (["-n", 2, "--exchange", "central", "--", "--optimizer", "lbfgs"], 2, ["exchange.central", "needs all elements", "--central master"]),
                (["-n", 2, "--exchange", "central", "--set", "optimizer.clip_value=1"], 2, ["central does not clip the elements"]),
                (["-n", 2, "--exchange", "parameter-server", "--", "--optimizer", "lbfgs"], 2, ["exchange.name", "RMSprop", "use one of them"]),
                (["-n", 2, "--exchange", "parameter-server", "--", "--groups", "--uneven"], 2,
                 ["exchange.name", "have changed by different factors", "use --exchange all-reduce"]),
                (["--accumulate", 2], 2, ["train.accumulate", "call backward() for each part"]),
                (["--precision", "bf16"], 2, ["train.precision", "torch::autocast"]),
                (["--lr", 0.1], 2, ["--lr: optimizer.lr has no effect", "training loop of its own"]),
                (["-n", 2, "--epochs", 3], 2, ["--epochs: train.epochs has no effect"]),
                (["-n", 2, "--", "--optimizer", "lbfgs"], 2, ["DistributedOptimizer: LBFGS", "takes no closure"]),
                (["-n", 2, "--global-batch", 12], 2, ["--global-batch: train.global_batch has no effect", "decides it in Run::loader()"]),
                (["-n", 2, "--init", "weights.safetensors", "--", "--fault", "own-weights"], 2, ["--init: model.init", "has not called Run::replicate()"]),
                (["--init", "weights.safetensors", "--dry-run", "--", "--fault", "own-weights"], 2, ["has not called Run::replicate()"]),
                (["-n", 2, "--hybrid", "auto"], 2, ["train.hybrid", "train by Run::fit()"]),
                (["--", "--checkpoint", "--fault", "late-add"], 2, ["'late' is added after resume()"]),
                (["-n", 2, "--exchange", "gossip", "--shard", "optimizer"], 2, ["leave out --exchange gossip\n"]),
                (["-n", 2, "--shard", "optimizer", "--codec", "int8"], 2, ["exchange.codec", "convert the module to float"]),
                (["-n", 2, "--shard", "parameters", "--codec", "int8", "--", "--float"], 2, ["leave out --codec int8, or use --shard gradients"]),
                (["--", "--fault", "no-file"], 3, ["starling: error:", "missing.safetensors"]),
                (["-n", 2, "--", "--fault", "no-file"], 3, ["error: rank ", "missing.safetensors"]),
                (["-n", 2, "--", "--fault", "bug"], 1, ["rank 1: a bug of the program"]),
                (["-n", 2, "--", "--fault", "rank-0-saves", "--checkpoint"], 4, ["left the group", "call ProgramCheckpoint::save() together"]),
                (["--epochs", 3, "--", "--early"], 2, ["--epochs: train.epochs has no effect"]),
                (["-n", 2, "--emulate", "slow-rank=1:2x"], 2, ["train.emulate", "Run::fit()"]),
                (["--global-batch", 12, "--", "--fit", "--groups", "--no-match"], 2, ["FitOptions::group", "matches \"third.*\"", "first.weight"]),
                (["--global-batch", 12, "--", "--fit", "--own", "--groups"], 2, ["groups belong to the optimizer of the configuration"]),
                (["-n", 2, "--exchange", "parameter-server", "--servers", 1, "--", "--fit", "--clip-value"], 2, ["does not clip the elements"]),
                (["-n", 4, "--", "--batch", 3], 2, ["a batch of 3 samples cannot be divided among 4 ranks"])):
            with self.subTest(words=words):
                out, err = self.loop(*words, status=status)
                for text in texts:
                    self.assertIn(text, out + err if status == 1 else err)

    def test_a_checkpoint_that_the_program_does_not_load_is_said(self):
        self.loop("-n", 2, "--", "--checkpoint", "--epochs", 1)
        words = ["-n", 2, "--", "--checkpoint", "--epochs", 2, "--fault", "no-resume"]
        _, err = self.loop(*words, fresh=False, status=2)
        self.assertIn("an earlier run has left a checkpoint of step 7, which the program has not loaded: call resume()", err)
        self.loop("--resume", "never", *words, fresh=False)

    def test_what_the_loop_does_not_save_is_said(self):
        out, err = self.loop("-n", 2, "--save", self.path("saved.safetensors"), "--", "--checkpoint", "--fault", "no-save")
        self.assertEqual((out + err).count("nothing was written, because the program's loop has not called"), 1, out + err)
        out, err = self.loop("-n", 2, "--save", self.path("saved.safetensors"), "--", "--checkpoint", "--fault", "no-step")
        self.assertIn("ProgramCheckpoint::step() was not called in 14 steps", out + err)
        self.assertNotIn("nothing was written", out + err)

    def test_ctrl_c_ends_a_loop_without_a_loader(self):
        process = subprocess.Popen([PROGRAM, "--run-dir", self.path("run"), "-n", "2", "--", "--checkpoint", "--no-loader"], cwd=self.dir,
                                   text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        self.addCleanup(self.end, process)
        for line in process.stdout:
            if "begun after step 0" in line:
                break
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertIn("Nothing was saved, because the program adds no checkpoint.step() to its loop", out + err)

    def test_a_finished_run_that_begins_again_keeps_its_checkpoint(self):
        for fresh in (True, False, False):
            self.loop("-n", 2, "--", "--checkpoint", "--epochs", 1, fresh=fresh)
        self.assertEqual(os.listdir(self.path("run/checkpoints")), ["step-000007"])

    def test_a_step_of_the_own_optimizer_alone_is_said(self):
        out, err = self.loop("-n", 2, "--", "--fault", "own-step", "--checkpoint")
        self.assertEqual((out + err).count("no DistributedOptimizer has made a step so far"), 1, out + err)
        out, err = self.loop("-n", 2, "--", "--checkpoint")
        self.assertNotIn("no DistributedOptimizer", out + err)

    def test_a_flag_that_the_program_reads_itself_is_no_fault(self):
        self.loop("--", "--plain", "--out", self.path("plain"))
        self.loop("-n", 2, "--lr", 0.05, "--", "--rate", "--out", self.path("own"))
        self.assertLess(self.distance("plain.0", "own.1"), 1e-10)
        self.loop("-n", 2, "--lr", 0.01, "--", "--rate", "--out", self.path("other"))
        self.assertGreater(self.distance("plain.0", "other.1"), 1e-3)

    def test_a_dry_run_says_what_the_loop_would_train(self):
        out, _ = self.loop("--dry-run", "-n", 3, "--exchange", "gossip")
        self.assertIn("would train 50 parameters in the program's own loop with 3 ranks by gossip", out)


if __name__ == "__main__":
    main()
