"""resnet18 with the stem for 32×32 pictures: a 3×3 convolution with stride 1, without pooling.

Each rank has 32 samples per step. The optimizer is SGD with momentum.
"""
import torch
from torch import nn

import common

BATCH = 32


class Block(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                                            nn.BatchNorm2d(channels))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + shortcut)


def model():
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    channels_in = 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(channels_in, channels, stride), Block(channels, channels, 1)]
        channels_in = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)


def batches(generator):
    return [(torch.randn(BATCH, 3, 32, 32, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator))
            for _ in range(4)]


WORK = common.Work("resnet18", BATCH, model, optimizer, batches, nn.functional.cross_entropy, channels_last=True,
                   gemms=((BATCH, 10, 512),))

if __name__ == "__main__":
    common.run(WORK)
