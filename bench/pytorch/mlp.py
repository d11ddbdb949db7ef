"""mlp with widths 784-4096-4096-10. Each rank has 64 samples per step. The optimizer is SGD with momentum."""
import torch
from torch import nn

import common

BATCH = 64


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
                         nn.Linear(4096, 10))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)


def batches(generator):
    return [(torch.rand(BATCH, 1, 28, 28, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator))
            for _ in range(8)]


WORK = common.Work("mlp", BATCH, model, optimizer, batches, nn.functional.cross_entropy,
                   gemms=((BATCH, 4096, 784), (BATCH, 4096, 4096)))

if __name__ == "__main__":
    common.run(WORK)
