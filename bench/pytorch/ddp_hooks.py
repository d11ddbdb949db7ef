"""One rank of the PyTorch side of bench/codecs: DistributedDataParallel on Gloo with a communication hook.

  ddp_hooks.py HOOK --steps N      HOOK is none, fp16 or powersgd:RANK.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT come from the environment. The work is that of bench/codecs: an
mlp 784-4096-4096-10, 8 samples per rank, sgd with momentum 0.9. Rank 0 prints one JSON line with the seconds
of each step.
"""
import argparse
import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hook")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    widths = [784, 4096, 4096, 10]
    layers = []
    for i in range(3):
        layers += [torch.nn.Linear(widths[i], widths[i + 1])] + ([torch.nn.ReLU()] if i < 2 else [])
    # On Gloo the PowerSGD hook starts the collectives of its buckets from callbacks, in an order that may
    # differ between ranks: with several buckets it hangs or ends with a collective mismatch. So it gets one
    # bucket. Its first two steps are plain all-reduces, and are not counted.
    name, _, rank = options.hook.partition(":")
    buckets = {"bucket_cap_mb": 1000} if name == "powersgd" else {}
    model = DistributedDataParallel(torch.nn.Sequential(*layers), gradient_as_bucket_view=True, static_graph=name != "powersgd", **buckets)
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(rank), start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(8, 784), torch.randint(0, 10, (8,))
    seconds = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
