"""`starling autoencoder`, as a user runs it."""
import array
import math
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import time

from program import BUILD, COPIES, STARLING, ProgramTest, environment, main, ranks_of, result_of

OWN = str(BUILD / "tests" / "grid_program")
# One layer and then a second one on images of 28 × 28 pixels, in fp64.
SMALL = ["--maps", "4", "--global-batch", 4, "--set", "data.samples=64", "--precision", "fp64"]


def filters_of_npy(path):
    """Returns (shape, numbers) of a file with fp32 filters."""
    data = pathlib.Path(path).read_bytes()
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    begin = 10 + int.from_bytes(data[8:10], "little")
    header = eval(data[10:begin], {"__builtins__": {}})  # noqa: S307  (a dictionary of three constants)
    assert header["descr"] == "<f4" and not header["fortran_order"], header
    values = array.array("f")
    values.frombytes(data[begin:])
    return header["shape"], values


def positions(pixels, size, stride=1):
    """Returns the number of windows that fit into `pixels` pixels."""
    return (pixels - size) // stride + 1


def needed(parts, pixels, size, stride, padding=0):
    """Returns (needed pixels, needed pixels that the part holds), each summed over the parts of an axis."""
    count = positions(pixels + 2 * padding, size, stride)
    sums = [0, 0]
    for part in range(parts):
        first, last = count * part // parts, count * (part + 1) // parts
        under = set()
        for position in range(first, last):
            begin = position * stride - padding
            under.update(p for p in range(begin, begin + size) if 0 <= p < pixels)
        held = set(range(pixels * part // parts, pixels * (part + 1) // parts))
        sums[0] += len(under)
        sums[1] += len(under & held)
    return sums


def halo(grid, pixels, size, stride=1, padding=0):
    """Returns the pixels of square images that the ranks of a grid exchange for a layer with windows."""
    rows, columns = (needed(parts, pixels, size, stride, padding) for parts in grid)
    return rows[0] * columns[0] - rows[1] * columns[1]


class Autoencoder(ProgramTest):
    def saved(self, name, steps, *args):
        """Runs the command. Returns its result and the filters that it saves, by file."""
        folder = pathlib.Path(self.path(name))
        folder.mkdir()
        words = ["autoencoder", "--json", *COPIES, *SMALL, "--steps", steps, "--save-filters", folder]
        result = result_of(self.run_program(*words, *args)[0])
        return result, {path.name: filters_of_npy(path) for path in sorted(folder.iterdir())}

    def wait_for_a_checkpoint(self, process, folder):
        """Waits until a run has a whole checkpoint in the folder."""
        deadline = time.monotonic() + 120
        while not pathlib.Path(folder, "job.json").exists():
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline, "no checkpoint in 120 s")
            time.sleep(0.01)

    def assert_near(self, found, expected, tolerance):
        self.assertEqual(sorted(found), sorted(expected))
        for name, (shape, values) in found.items():
            self.assertEqual(shape, expected[name][0])
            difference = math.dist(values, expected[name][1]) / math.hypot(*expected[name][1])
            self.assertLessEqual(difference, tolerance, name)

    def test_a_grid_learns_what_one_process_learns_and_sends_its_halos(self):
        one, expected = self.saved("one", 6, "-n", 1)
        names = ["decoder-1.npy", "decoder-2.npy", "encoder-1.npy", "encoder-2.npy"]
        self.assertEqual(sorted(expected), names)
        first, second = positions(28, 8, 2), positions(positions(positions(28, 8, 2), 3), 4)
        self.assertEqual(expected["encoder-1.npy"][0], (first * first * 4, 64))
        self.assertEqual(expected["encoder-2.npy"][0], (second * second * 4, 4 * 16))
        self.assertEqual((one["halo_bytes"], one["halo_bytes_formula"]), (0, 0))
        network = ["--set", "comm.shared_memory=false"]
        for ranks, grid, words in ((2, (1, 2), []), (4, (2, 2), network), (8, (2, 4), [])):
            name = f"{grid[0]}x{grid[1]}"
            result, filters = self.saved(name, 6, "-n", ranks, "--grid", name, *words)
            self.assertEqual(result["grid"], name)
            self.assert_near(filters, expected, 1e-7)  # fp32 files
            for layer, alone in zip(result["layers"], one["layers"]):
                self.assertAlmostEqual(layer["objective"] / alone["objective"], 1, delta=1e-10)
            fields, pools = 4 * halo(grid, 28, 8, 2), 4 * 4 * halo(grid, 11, 3)
            means, upper = 4 * halo(grid, 9, 3, 1, 1), 4 * 4 * halo(grid, 9, 4)
            upper_pools = 4 * 4 * halo(grid, 6, 3)
            numbers = 6 * (3 * fields + 2 * pools)
            numbers += 6 * (fields + pools + 2 * means + 3 * upper + 2 * upper_pools)
            self.assertEqual(result["halo_bytes"], 8 * numbers)
            self.assertEqual(result["halo_bytes_formula"], 8 * numbers)
            self.assertLess(result["rank_parameters"], 1.6 * result["parameters"] / ranks)

    def test_it_learns_and_says_so(self):
        words = [STARLING, "autoencoder", *COPIES, "--steps", "60", "--global-batch", "16"]
        shown = self.completed(words).stdout
        self.assertIn("Autoencoder of 2 layers on ", shown)
        self.assertIn("grid 1x2", shown)
        self.assertIn("of the images' squares are not reconstructed", shown)
        events, _ = self.run_program("autoencoder", "--json", *COPIES, "--steps", 60, "--global-batch", 16)
        for layer in (1, 2):
            errors = [e["error"] for e in events if e["event"] == "step" and e["layer"] == layer]
            self.assertLess(errors[-1], 0.5 * errors[0])
        result = result_of(events)
        self.assertEqual((result["ranks"], result["steps"], result["resumed_from"]), (2, 120, -1))
        self.assertEqual(result["halo_bytes"], result["halo_bytes_formula"])

    def test_a_signal_ends_it_and_the_command_goes_on_bit_for_bit(self):
        _, whole = self.saved("whole", 400, "-n", 2)
        checkpoint = self.path("ck")
        words = ["autoencoder", "--json", *COPIES, *SMALL, "-n", 2, "--steps", 400]
        words += ["--checkpoint", checkpoint, "--checkpoint-every", 5]
        process = self.start(*words)
        self.wait_for_a_checkpoint(process, checkpoint)
        process.send_signal(signal.SIGTERM)
        _, out, err = self.ended(process)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, out + err)
        folder = pathlib.Path(self.path("resumed"))
        folder.mkdir()
        events, _ = self.run_program(*words, "--save-filters", folder)
        result = result_of(events)
        self.assertGreaterEqual(result["resumed_from"], 5)
        self.assertLess(result["resumed_from"], 800)
        self.assertEqual(result["steps"], 800)
        for path in folder.iterdir():
            self.assertEqual(filters_of_npy(path), whole[path.name], path.name)
        _, err = self.run_program(*words, "--sparsity", "0.7", status=2)
        self.assertIn("sparsity", err)

    def test_features_do_not_depend_on_the_grid(self):
        found = []
        for ranks in (1, 6):
            path = self.path(f"features-{ranks}.npy")
            words = ["autoencoder", "--json", *COPIES, *SMALL, "--steps", 3, "--save-features", path]
            self.run_program(*words, "-n", ranks)
            found.append(filters_of_npy(path))
        side = positions(positions(positions(positions(28, 8, 2), 3), 4), 3)
        self.assertEqual(found[0][0], (64 * side * side, 4))
        self.assert_near({"features": found[1]}, {"features": found[0]}, 1e-6)
        squares = [sum(v * v for v in found[0][1][i::4]) for i in range(4)]
        self.assertGreater(min(squares), 0)

    def test_a_lost_rank_ends_the_run_and_the_command_goes_on(self):
        checkpoint = self.path("ck")
        words = ["autoencoder", "--json", *COPIES, *SMALL, "-n", 4, "--steps", 300]
        words += ["--checkpoint", checkpoint, "--checkpoint-every", 5]
        process = self.start(*words)
        self.wait_for_a_checkpoint(process, checkpoint)
        os.kill(ranks_of(process.pid)[2], signal.SIGKILL)
        _, out, err = self.ended(process)
        self.assertEqual(process.returncode, 4, out + err)
        self.assertIn("rank 2", err)
        result = result_of(self.run_program(*words)[0])
        self.assertGreaterEqual(result["resumed_from"], 5)
        self.assertEqual(result["steps"], 600)

    def make_cifar(self, folder, seed):
        """Writes 40 images."""
        rng = random.Random(seed)
        folder.mkdir(exist_ok=True)
        for name in [f"data_batch_{i}.bin" for i in range(1, 6)]:
            with open(folder / name, "wb") as f:
                for _ in range(8):
                    row = [rng.randrange(256) for _ in range(32)]
                    image = [min(255, max(0, v + rng.randrange(-9, 10))) for _ in range(96) for v in row]
                    f.write(bytes([rng.randrange(10), *image]))

    def test_cifar_images(self):
        folder = pathlib.Path(self.path("cifar"))
        self.make_cifar(folder, 3)
        words = ["autoencoder", "--json", *COPIES, "-n", 4, "--data", f"cifar-bin:{folder}"]
        words += ["--steps", 5, "--maps", 2]
        result = result_of(self.run_program(*words, "--global-batch", 8)[0])
        first, second = positions(32, 8, 2), positions(positions(positions(32, 8, 2), 3), 4)
        self.assertEqual(result["parameters"], 2 * (first**2 * 2 * 3 * 64 + second**2 * 2 * 2 * 16))
        self.assertEqual(result["halo_bytes"], result["halo_bytes_formula"])
        self.assertGreater(result["halo_bytes"], 0)

    def test_a_checkpoint_of_other_images_is_refused(self):
        folder, saved = pathlib.Path(self.path("cifar")), self.path("ck")
        self.make_cifar(folder, 3)
        words = ["autoencoder", "--json", *COPIES, "--data", f"cifar-bin:{folder}", "--maps", 2, "--steps", 2]
        words += ["--global-batch", 8, "--checkpoint"]
        augmented = [*words, self.path("augmented"), "--set", "data.augment=true"]
        words.append(saved)
        self.assertEqual(result_of(self.run_program(*words, "-n", 2)[0])["steps"], 4)
        # Another number of ranks has the hash of the same images.
        self.assertEqual(result_of(self.run_program(*words, "-n", 3)[0])["resumed_from"], 4)
        self.make_cifar(folder, 4)
        _, err = self.run_program(*words, "-n", 2, status=2)
        self.assertRegex(err, "another run: data is .*hash")
        self.run_program(*augmented, "-n", 2)
        _, err = self.run_program(*augmented, "--set", "data.pad=2", "-n", 2, status=2)
        self.assertIn("with a pad of 2", err)

    def test_files_that_cannot_be_written_are_refused_before_training(self):
        for name in ("features.npy", "filters/decoder-2.npy"):
            pathlib.Path(self.path(name)).mkdir(parents=True)
        for words in (["--save-features", self.path("features.npy")],
                      ["--save-filters", self.path("filters")]):
            with self.subTest(words=words):
                events, err = self.run_program("autoencoder", "--json", *COPIES, *SMALL, "--steps", 2,
                                               *words, status=2)
                self.assertIn(words[0], err)
                self.assertIn("is a folder", err)
                self.assertEqual([e for e in events if e["event"] == "step"], [])
        self.assertEqual(os.listdir(self.path("filters")), ["decoder-2.npy"])

    def test_a_dry_run_checks_the_layers(self):
        words = ["autoencoder", "--json", "--dry-run", "--set", "data.samples=64"]
        self.run_program(*words)
        _, err = self.run_program(*words, "--fields", "8,40", status=2)
        self.assertIn("--fields, --strides: layer 2: ", err)

    def test_a_model_four_times_the_memory_of_a_rank(self):
        """The kernel limits the data of each process. Eight ranks train a state of four times the limit."""
        images = ["--set", "data.samples=16", "--global-batch", 1, "--steps", 2, "--fields", 9,
                  "--strides", 1, "--lr", "1e-4", "--set", "train.threads=1"]
        words = [STARLING, "autoencoder", "--json", *COPIES, *map(str, images), "--maps"]
        maps = "2000"
        planned = result_of(self.run_program(*words[1:], "1", "-n", 1)[0])
        state = 2000 * planned["state_bytes"]
        limit = state // 4

        def run(ranks):
            def bound():
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            return subprocess.run([*words, maps, "-n", str(ranks)], cwd=self.dir, env=environment(),
                                  capture_output=True, text=True, timeout=240, preexec_fn=bound,
                                  check=False)

        done = run(8)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        lines = [line for line in done.stdout.splitlines() if '"result"' in line]
        self.assertIn(f'"state_bytes":{state},', lines[-1])
        self.assertIn('"steps":2,', lines[-1])
        alone = run(1)
        self.assertEqual(alone.returncode, 1, "the limit must bite")
        self.assertIn("out of memory", alone.stderr)

    def test_a_network_of_a_program(self):
        found = []
        for ranks, grid in ((1, (1, 1)), (2, (2, 1)), (6, (2, 3))):
            words = [OWN, "-n", str(ranks), *COPIES, "--run-dir", self.path(f"run-{ranks}"), "--",
                     f"{grid[0]}x{grid[1]}"]
            done = self.completed(words)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            line = re.search(r"^loss (\S+) halo bytes (\d+)$", done.stdout, re.M)
            found.append(float(line[1]))
            self.assertAlmostEqual(found[-1] / found[0], 1, delta=1e-10)
            # Two ranks of ten rows each exchange two rows of 20 pixels, of 1 and of 4 channels. The gradient
            # of the images is not computed, so only the second layer has a backward pass.
            if ranks == 2:
                self.assertEqual(int(line[2]), 30 * 6 * 8 * 2 * 20 * (1 + 4 + 4))
        self.assertLess(found[0], 60)
        for more in ([], ["--dry-run"]):
            words = [OWN, "-n", "2", *COPIES, *more, "--run-dir", self.path("run-wrong"), "--"]
            for grid, reason in (("2x2", "needs 4 ranks, but there are 2"), ("two", "write ROWSxCOLUMNS")):
                wrong = self.completed([*words, grid])
                self.assertEqual(wrong.returncode, 2, wrong.stdout + wrong.stderr)
                self.assertIn(reason, wrong.stderr)

    def test_what_cannot_be_is_refused(self):
        for words, status, reason in ((["-n", 4, "--grid", "2x3"], 2, "needs 6 ranks, but there are 4"),
                                      (["--grid", "two"], 2, "write ROWSxCOLUMNS"),
                                      (["-n", 1, "--fields", "30"], 2, "do not fit into an image of 28"),
                                      (["-n", 1, "--pools", "12"], 2, "pools of 12"),
                                      (["-n", 1, "--norms", "2"], 2, "layer 1: a normalization window of 2"),
                                      (["-n", 1, "--norms", "1048575"], 2, "--norms: layer 1: "),
                                      (["--steps", str(2**62)], 2, "--steps: "),
                                      (["--epochs", "1e300"], 2, "--epochs: "),
                                      (["--global-batch", 65], 2, "--global-batch: 65 samples"),
                                      (["--sparsity", "nan"], 2, "not a number"),
                                      (["--memory-limit", "1", "--maps", 2**20, "--global-batch", 1], 1,
                                       "limit is 1 MB"),
                                      (["--device", "cuda"], 2, "--device: "),
                                      (["--set", "optimizer.name=adam"], 2, "optimizer.name: "),
                                      (["--set", "optimizer.weight_decay=0.1"], 2, "weight_decay: "),
                                      (["--set", "schedule.name=cosine"], 2, "schedule.name: "),
                                      (["--partition", "iid"], 2, "--partition: "),
                                      (["--share", "2,1"], 2, "--share: "),
                                      (["--threads-mode", "batch"], 2, "--threads-mode: "),
                                      (["-n", 8, "--grid", "1x8"], 2, "8 columns of ranks"),
                                      (["--maps", "4,4,4"], 2, "2 numbers for 3 layers"),
                                      (["--exchange", "gossip"], 2, "no exchange"),
                                      (["--precision", "bf16"], 2, "fp32 or fp64"),
                                      (["--data", "grammar"], 2, "reads images"),
                                      (["--memory-limit", "0.1"], 1, "limit is 0.1 MB"),
                                      (["--lr", "1e30", "--steps", 9], 6, "decrease --lr"),
                                      (["--save-filters", self.path("no/where")], 2, "not a folder"),
                                      (["--save-features", self.path("no/such/where.npy")], 2, "not a folder"),
                                      (["--save-features", self.path("f.npy"), "--set",
                                        "data.augment=true"], 2, "images are random")):
            with self.subTest(words=words):
                few = ["--set", "data.samples=64"]
                _, err = self.run_program("autoencoder", *COPIES, *few, *words, status=status)
                self.assertIn(reason, err)


if __name__ == "__main__":
    main()
