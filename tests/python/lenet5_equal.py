"""starling train against the same training in PyTorch: lenet5, SGD with momentum, the same weights and order of samples;
after 100 steps in fp32 no weight differs by more than 1e-5."""
import struct
import unittest

import numpy
import torch
from safetensors.torch import load_file, save_file

from lenet5 import LeNet5
from peer import STARLING, FolderTest, call

BATCH, STEPS, LR, MOMENTUM = 64, 100, 0.01, 0.9
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST, as starling/data normalises
TOLERANCE = 1e-5


def write_idx(path, values):
    with open(path, "wb") as file:
        file.write(struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape))
        file.write(values.astype(numpy.uint8).tobytes())


def blobs(samples, seed):
    """Images that can be learnt: one bright patch whose place depends on the class, on noise."""
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
        torch.manual_seed(4)
        self.net = LeNet5()
        save_file(self.net.state_dict(), self.dir / "a.safetensors")

    def train_in_pytorch(self):
        x = ((torch.from_numpy(self.images).float() / 255 - MEAN) / DEVIATION).unsqueeze(1)
        y = torch.from_numpy(self.labels)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=LR, momentum=MOMENTUM)
        for step in range(STEPS):
            at = step * BATCH % len(x)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.net(x[at:at + BATCH]), y[at:at + BATCH]).backward()
            optimizer.step()
        return self.net.state_dict()

    def test_equal_after_100_steps(self):
        call(STARLING, "train", "--model", "lenet5", "--data", f"idx:{self.dir}", "--order", "sequential",
             "--init", self.dir / "a.safetensors", "--save", self.dir / "b.safetensors", "--steps", STEPS, "--lr", LR,
             "--global-batch", BATCH, "-n", 1, "--run-dir", self.dir / "run",
             "--set", "optimizer.name=sgd", "--set", f"optimizer.momentum={MOMENTUM}")
        ours, theirs, start = load_file(self.dir / "b.safetensors"), self.train_in_pytorch(), load_file(
            self.dir / "a.safetensors")
        self.assertEqual(set(theirs), set(ours))
        for name, want in theirs.items():
            self.assertGreater((want - start[name]).abs().max().item(), 1e-4, f"{name} was not trained")
            self.assertLessEqual((ours[name] - want).abs().max().item(), TOLERANCE, name)


if __name__ == "__main__":
    unittest.main()
