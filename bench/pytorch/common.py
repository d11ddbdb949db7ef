"""The PyTorch side of bench/compare_pytorch: training as a good PyTorch user writes it for CPUs.

Each work (mlp.py, resnet18.py, gpt.py) says what is trained; run() here trains it and prints one JSON line.

  --mode plain   PyTorch as it comes
  --mode tuned   the fastest setting of float32_matmul_precision whose relative error stays that of fp32 (measured here,
                 2e-6: on a CPU with AMX 'medium' rounds to bf16 and is refused), and channels-last where the work asks
  --limit        the ranks do not communicate: as many independent single-rank runs at the same time
  --reduction none   DDP whose reductions are left out by a communication hook: the limit of any backend under DDP
  --reduction meet   the same, but that the ranks meet once a step, in an all-reduce of one element

In both modes: DistributedDataParallel on Gloo (or --backend) over loopback with gradients as views of the buckets and a static graph,
fused optimizers, one thread a rank, batches that lie ready in memory. samples_per_s is that of the median step after the
first three, over all ranks.
"""
import argparse
import contextlib
import dataclasses
import json
import os
import socket
import statistics
import time
from typing import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

ERROR_LIMIT = 2e-6
PRECISIONS = ("highest", "high", "medium")
FIRST_STEPS = 3  # not counted: caches, buckets and oneDNN's primitives are made in them


@dataclasses.dataclass
class Work:
    name: str
    batch: int                       # samples a rank
    model: Callable                  # () -> module
    optimizer: Callable              # (parameters) -> optimizer
    batches: Callable                # (generator) -> list of (input, target) of one rank
    loss: Callable                   # (output, target) -> scalar
    channels_last: bool = False      # tuned: for the module and its inputs
    gemms: tuple = ((64, 1024, 1024),)  # (m, n, k) of its matrix products: what the precision is measured on


def relative_error(product, x, w):
    exact = x.double() @ w.double().t()
    return ((product.double() - exact).norm() / exact.norm()).item()


def measure_precisions(gemms):
    """{precision: (largest relative error, seconds of all products)}, forward and both products of backward. Times are the
    best of seven rounds that alternate the precisions."""
    generator = torch.Generator().manual_seed(1)
    tensors = [tuple(torch.randn(*shape, generator=generator) for shape in ((m, k), (n, k), (m, n))) for m, n, k in gemms]
    errors, seconds = {}, dict.fromkeys(PRECISIONS, float("inf"))
    for precision in PRECISIONS:
        torch.set_float32_matmul_precision(precision)
        errors[precision] = max(max(relative_error(torch.nn.functional.linear(x, w), x, w),
                                    relative_error(g @ w, g, w.t())) for x, w, g in tensors)
    for _ in range(7):
        for precision in PRECISIONS:
            torch.set_float32_matmul_precision(precision)
            start = time.perf_counter()
            for x, w, g in tensors:
                torch.nn.functional.linear(x, w), g @ w, g.t() @ x
            seconds[precision] = min(seconds[precision], time.perf_counter() - start)
    return {p: (errors[p], seconds[p]) for p in PRECISIONS}


def choose_precision(mode, gemms):
    """The precision to train with, and what was measured."""
    if mode == "plain":
        return "highest", {}
    measured = measure_precisions(gemms)
    exact = {p: seconds for p, (error, seconds) in measured.items() if error <= ERROR_LIMIT or p == "highest"}
    best = min(exact, key=exact.get)
    if exact[best] > 0.95 * exact["highest"]:
        best = "highest"  # the difference is noise
    report = {p: {"relative_error": error, "seconds": seconds} for p, (error, seconds) in measured.items()}
    return best, report


def unreduced(_, bucket):
    """A communication hook that leaves the bucket as it is: what remains is DDP itself."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def meeting(element, bucket):
    """The same, but that the ranks meet once a step, in an all-reduce of one element: what any backend has to wait for."""
    if not bucket.is_last():
        return unreduced(None, bucket)
    return dist.all_reduce(element, async_op=True).get_future().then(lambda _: bucket.buffer())


def train(rank, work, args, precision, port, barrier, results):
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(precision)
    torch.manual_seed(args.seed)
    layout = {"memory_format": torch.channels_last} if args.mode == "tuned" and work.channels_last else {}
    model = work.model().to(**layout)
    distributed = args.ranks > 1 and not args.limit
    if distributed:
        dist.init_process_group(args.backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.ranks)
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
        if args.reduction == "none":
            model.register_comm_hook(None, unreduced)
        elif args.reduction == "meet":
            model.register_comm_hook(torch.zeros(1), meeting)
    optimizer = work.optimizer(model.parameters())
    batches = [(x.to(**layout), y) for x, y in work.batches(torch.Generator().manual_seed(args.seed * 1000 + rank))]
    times, losses = [], []
    barrier.wait(120)
    for step in range(args.steps):
        start = time.perf_counter()
        x, y = batches[step % len(batches)]
        loss = work.loss(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    barrier.wait(600)
    results.put((rank, times, losses, sum(p.numel() for p in model.parameters())))
    if distributed:
        dist.destroy_process_group()


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def median_rate(work, times):
    return work.batch / statistics.median(times[FIRST_STEPS:])


def run(work):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("plain", "tuned"), default="tuned")
    parser.add_argument("--limit", action="store_true")
    parser.add_argument("--reduction", choices=("full", "meet", "none"), default="full")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="a rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", choices=PRECISIONS, help="instead of the one that is chosen by measurement")
    parser.add_argument("--backend", default="gloo", help="of torch.distributed; starling: the plug-in of python/")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.steps <= FIRST_STEPS:
        parser.error(f"--steps must be above {FIRST_STEPS}: the first {FIRST_STEPS} are not counted")
    torch.set_num_threads(args.threads)
    precision, measured = (args.precision, {}) if args.precision else choose_precision(args.mode, work.gemms)
    start = time.perf_counter()
    spawn = mp.get_context("spawn")
    barrier, results = spawn.Barrier(args.ranks), spawn.Queue()
    workers = mp.start_processes(train, (work, args, precision, free_port(), barrier, results), nprocs=args.ranks,
                                 join=False, start_method="spawn")
    # Fetched before join: a process does not end before what it put into the queue is read.
    ranks = []
    while len(ranks) < args.ranks:
        if not results.empty():
            ranks.append(results.get())
        elif workers.join(timeout=0.1) and results.empty():
            break
    while not workers.join():
        pass
    ranks.sort()
    rates = [median_rate(work, times) for _, times, _, _ in ranks]
    # Ranks that wait for each other take the same steps: rank 0's median. Independent ones: the sum of theirs.
    independent = args.limit or args.reduction == "none"
    total = sum(rates) if independent else rates[0] * args.ranks
    print(json.dumps({"event": "result", "model": work.name, "mode": args.mode, "limit": args.limit, "ranks": args.ranks,
                      "steps": args.steps, "samples_per_s": total, "step_s": statistics.median(ranks[0][1][FIRST_STEPS:]),
                      "first_loss": ranks[0][2][0], "train_loss": ranks[0][2][-1], "params": ranks[0][3],
                      "backend": args.backend, "precision": precision, "precisions_measured": measured, "torch": torch.__version__,
                      "wall_s": time.perf_counter() - start}))
