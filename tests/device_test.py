"""Training on a device whose memory the host cannot read.

The updates are those on the CPU, with every whole-model exchange.
STARLING_TEST_DEVICE=cuda runs the tests on a GPU, on a machine that has one.
"""
import os
import shutil
import subprocess

from nest_test import difference
from own_program_test import tensors_of
from program import BUILD, COPIES, ProgramTest, environment, main, result_of, some

PROGRAM = str(BUILD / "tests" / "device_program")
STEPS = 6
DEVICE = os.environ.get("STARLING_TEST_DEVICE", "privateuseone")
ON_DEVICE = ["--device", DEVICE]
# libtorch has one accelerator in a process, so the program leaves out the device for tests on a GPU.
ALONE = [] if DEVICE == "privateuseone" else ["--no-device"]
NAME = {"privateuseone": "starling_test:"}.get(DEVICE, DEVICE + ":")  # libtorch's name of a device, without its number


class Device(ProgramTest):
    def program(self, *args, status=0, keep=False):
        """Runs the program, in a new run folder unless `keep`. Returns (events, stderr)."""
        if not keep:
            shutil.rmtree(self.path("run"), ignore_errors=True)
        return self.run_program(*COPIES, "--set", "train.gemm=mkl", "--run-dir", self.path("run"), *args, status=status, program=PROGRAM)

    def train(self, name, *args, task="mlp", steps=STEPS, keep=False, words=()):
        """Trains, and saves the module of each rank in NAME.RANK. Returns the result event."""
        events, _ = self.program("--json", "--steps", steps, *args, "--", "--task", task, "--trained", self.path(name), *ALONE, *words,
                                 keep=keep)
        return result_of(events)

    def same(self, name, expected, way, limit=1e-10):
        actual, wanted = tensors_of(self.path(name)), tensors_of(self.path(expected))
        self.assertEqual(set(actual), set(wanted), way)
        for key, value in wanted.items():
            if key.endswith("num_batches_tracked"):
                self.assertEqual(actual[key], value, f"{way}: {key}")
            else:
                self.assertLessEqual(difference(actual[key], value), limit, f"{way}: {key}")

    def compare(self, ranks, way, task="mlp", words=()):
        with self.subTest(task=task, ranks=ranks, way=way, words=words):
            cpu = self.train("cpu", "-n", ranks, *way, task=task, words=words)
            device = self.train("device", "-n", ranks, *way, *ON_DEVICE, task=task, words=words)
            for rank in range(ranks):
                self.same(f"device.{rank}", f"cpu.{rank}", way)
            self.assertAlmostEqual(device["test_loss"] / cpu["test_loss"], 1, delta=1e-9)
            if task == "heads":
                self.assertEqual(device["test_metrics"]["right"], cpu["test_metrics"]["right"])


class EqualToTheCpu(Device):
    def test_all_reduce(self):
        for task, ranks in some([(task, ranks) for ranks in (1, 2, 3) for task in ("mlp", "lenet", "heads")], 4):
            self.compare(ranks, [], task)

    def test_exchanges_of_gradients(self):
        ways = (["--exchange", "central"], ["--exchange", "central", "--central", "master"], ["--shard", "optimizer"], ["--shard", "gradients"],
                ["--exchange", "parameter-server", "--servers", 1, "--staleness", 0], ["--set", "optimizer.clip_norm=0.1"],
                ["--accumulate", 3], ["--share", "2,1"])
        for way in some(ways, 4):
            self.compare(2, way, "lenet" if "central" in way else "heads")

    def test_exchanges_of_parameters(self):
        ways = [(2, ["--exchange", "local-sgd", "--every", 2]), (2, ["--exchange", "gossip"]), (2, ["--exchange", "admm"]),
                (1, ["--exchange", "downpour", "--servers", 1]), (2, ["--exchange", "parallel-sgd", "--every", 3]), (3, ["--exchange", "gossip"]),
                (2, ["--exchange", "parallel-sgd", "--combine", "best", "--every", 3])]
        for ranks, way in some(ways, 4):
            self.compare(ranks, way, "mlp" if "best" in way or ranks == 3 else "lenet")

    def test_an_optimizer_of_the_program(self):
        for way in ([], ["--shard", "optimizer"], ["--exchange", "gossip"]):
            self.compare(2, way, "heads", words=["--adam"])

    def test_a_loop_of_the_program(self):
        for task, ranks, way, words in some((
                ("lenet", 1, [], []), ("heads", 2, [], []), ("mlp", 3, [], ["--parts", 2]), ("lenet", 2, [], ["--clip"]),
                ("heads", 2, [], ["--adam", "--parts", 2]), ("heads", 2, ["--shard", "optimizer"], []),
                ("mlp", 2, ["--shard", "gradients"], ["--adam"]), ("lenet", 2, ["--exchange", "local-sgd", "--every", 2], []),
                ("lenet", 3, ["--exchange", "gossip"], []), ("mlp", 2, ["--exchange", "admm"], []),
                ("heads", 2, ["--exchange", "central"], []), ("lenet", 2, ["--exchange", "parameter-server", "--servers", 1, "--staleness", 0], []),
                ("mlp", 2, ["--shard", "optimizer"], ["--fault", "own-zero-grad"]), ("heads", 2, [], ["--limit"]),
                ("lenet", 2, ["--exchange", "gossip"], ["--limit"]), ("mlp", 5, [], []), ("mlp", 2, ["--set", "optimizer.clip_norm=0.1"], [])), 5):
            with self.subTest(task=task, ranks=ranks, way=way, words=words):
                for name, device in (("cpu", []), ("device", ON_DEVICE)):
                    out = self.loop("-n", ranks, *way, *device, "--", "--task", task, "--trained", self.path(name), *words)
                    self.assertEqual("parameters are updated in host memory" in out, name == "device", out)
                for rank in range(ranks):
                    self.same(f"device.{rank}", f"cpu.{rank}", way)

    def loop(self, *args, status=0, keep=False):
        if not keep:
            shutil.rmtree(self.path("run"), ignore_errors=True)
        at = args.index("--")
        words = [PROGRAM, *COPIES, "--run-dir", self.path("run"), *map(str, args[:at]), "--", "--own-loop", *ALONE, *map(str, args[at + 1:])]
        done = self.completed(words)
        self.assertEqual(done.returncode, status, f"{args}\n{done.stdout}\n{done.stderr}")
        return done.stdout + done.stderr

    def test_a_loop_of_the_program_resumes_on_either_device(self):
        own = ["--", "--task", "lenet", "--trained"]
        self.loop("-n", 2, *own, self.path("cpu"))
        for first, second in some(((ON_DEVICE, []), ([], ON_DEVICE), (ON_DEVICE, ON_DEVICE)), 2):
            with self.subTest(first=first, second=second):
                self.loop("-n", 2, *first, *own, self.path("half"), "--epochs", 1)
                out = self.loop("-n", 2, *second, *own, self.path("resumed"), keep=True)
                self.assertIn("resuming after step 4", out)
                for rank in range(2):
                    self.same(f"resumed.{rank}", f"cpu.{rank}", "resumed")

    def test_faults_of_a_loop_are_named(self):
        for way, words, text in (
                (ON_DEVICE, ["--fault", "stays"], "move the module there by net->to(run.device())"),
                (["--device", "cpu"], ["--fault", "moves"], 'train.device is "cpu", and the module is on'),
                (ON_DEVICE, ["--fault", "frozen"], "has no parameter of the module that requires a gradient"),
                (["--shard", "parameters", *ON_DEVICE], [], "use --shard gradients")):
            with self.subTest(words=words, way=way):
                self.assertIn(text, self.loop("-n", 2, *way, "--", *words, status=2))

    def test_codecs(self):
        # Codecs compute in fp32. An error of rounding may change a coded value, so the updates are only
        # close.
        for codec in ("fp16", "int8"):
            with self.subTest(codec=codec):
                way = ["-n", 2, "--precision", "fp32", "--codec", codec]
                cpu = self.train("cpu", *way)
                device = self.train("device", *way, *ON_DEVICE)
                self.assertAlmostEqual(device["test_loss"] / cpu["test_loss"], 1, delta=1e-2)


class Where(Device):
    def test_a_program_learns_its_device(self):
        for words, name in (([], "cpu"), (["--device", "cpu"], "cpu"), (ON_DEVICE, f"{NAME}0"), (["-n", 2, *ON_DEVICE], NAME)):
            done = subprocess.run([PROGRAM, "--run-dir", self.path("run"), *map(str, words), "--", "--where", *ALONE], capture_output=True, text=True,
                                  check=True, cwd=self.dir, env=environment())
            self.assertIn(f"rank 0: {name}", done.stdout)


class Resume(Device):
    def test_a_run_goes_on_where_another_device_ended(self):
        self.train("cpu", "-n", 2, task="lenet")
        for first, second in some(((ON_DEVICE, ON_DEVICE), (ON_DEVICE, []), ([], ON_DEVICE)), 2):
            with self.subTest(first=first, second=second):
                way = ["-n", 2, "--set", "checkpoint.every=2"]
                self.train("half", *way, *first, task="lenet", steps=4)
                self.train("whole", *way, *second, task="lenet", keep=True)
                self.same("whole.0", "cpu.0", "resumed")
                self.same("whole.1", "cpu.1", "resumed")

    def test_saved_weights_are_those_of_the_model(self):
        self.train("device", "-n", 2, *ON_DEVICE, "--save", self.path("saved.safetensors"), task="lenet")
        self.same("saved.safetensors", "device.1", "--save", limit=0)

    def test_initial_weights(self):
        self.train("first", "--save", self.path("first.safetensors"), task="lenet")
        for name, device in (("cpu", []), ("device", ON_DEVICE)):
            self.train(name, "--init", self.path("first.safetensors"), *device, task="lenet")
        self.same("device.0", "cpu.0", "--init")


class Refusals(Device):
    def refused(self, *args, words=()):
        _, err = self.program("--steps", 1, *args, "--", *words, status=2)
        return err

    def test_what_needs_the_cpu(self):
        self.assertIn("leave out the stage axis, or use --device cpu", self.refused("-n", 2, "--mesh", "stage=2", "--micro-batches", 2, *ON_DEVICE))
        self.assertIn("use --shard gradients, or --device cpu", self.refused("-n", 2, "--shard", "parameters", *ON_DEVICE))

    def test_a_device_that_does_not_exist(self):
        self.assertIn("registered no device with libtorch; use --device cpu", self.refused("--device", "privateuseone", words=["--no-device"]))
        if subprocess.run(["sh", "-c", "test -e /dev/nvidiactl"], check=False).returncode != 0:
            self.assertIn('train.device: "cuda": there is no CUDA driver on this host', self.refused("--device", "cuda"))
            self.train("auto", "--device", "auto")
            self.train("cpu")
            self.same("auto.0", "cpu.0", "--device auto", limit=0)


if __name__ == "__main__":
    main()
