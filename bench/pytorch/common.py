"""The PyTorch side of bench/compare_pytorch: training as an experienced PyTorch user writes it for CPUs.

mlp.py, resnet18.py and gpt.py define what is trained. run() trains the work and prints one JSON line.

  --mode plain       PyTorch with default settings.
  --mode tuned       Channels-last memory if the work asks for it, and the fastest float32_matmul_precision
                     whose relative error is at most 2e-6, as with fp32 arithmetic. The error is measured
                     here. On CPUs with AMX, `medium` rounds to bf16 and is not used.
  --limit            The ranks do not communicate. They are independent runs at the same time.
  --reduction none   A communication hook of DDP skips the reduction. No backend under DDP can be faster.
  --reduction meet   DDP reduces no bucket, but the ranks all-reduce one element per step.
  --device cuda      Trains on GPUs, by NCCL. Each step copies its batch from pinned host memory.
  --loop starling    starling.DistributedOptimizer in place of DDP. With --reduction none or meet, the plain
                     loop with the optimizer alone, without or with an all-reduce of one element per step.

Both modes use DistributedDataParallel over loopback, on Gloo or on --backend. Gradients are views of the
buckets, the graph is static, optimizers are fused, each rank has one thread, and the batches are in memory.
samples_per_s comes from the median step after the first three steps and counts the samples of all ranks.
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
FIRST_STEPS = 3  # these steps do not count, because they fill caches and create buckets and oneDNN primitives


@dataclasses.dataclass
class Work:
    name: str
    batch: int                       # samples per rank
    model: Callable                  # () -> module
    optimizer: Callable              # (parameters) -> optimizer
    batches: Callable                # (generator) -> list of (input, target) of one rank
    loss: Callable                   # (output, target) -> scalar
    channels_last: bool = False      # memory format of the module and its inputs in the mode tuned
    gemms: tuple = ((64, 1024, 1024),)  # (m, n, k) of the matrix products on which the precision is measured


def wait_for(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def relative_error(product, x, w):
    exact = x.double() @ w.double().t()
    return ((product.double() - exact).norm() / exact.norm()).item()


def measure_precisions(gemms, device):
    """Returns {precision: (largest relative error, seconds of all products)}.

    The products are those of forward and the two of backward. The time is the best of seven rounds, which
    alternate the precisions.
    """
    generator = torch.Generator().manual_seed(1)
    tensors = [tuple(torch.randn(*shape, generator=generator).to(device) for shape in ((m, k), (n, k), (m, n))) for m, n, k in gemms]
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
            wait_for(device)
            seconds[precision] = min(seconds[precision], time.perf_counter() - start)
    return {p: (errors[p], seconds[p]) for p in PRECISIONS}


def choose_precision(mode, gemms, device):
    """Returns the precision to train with and the measured errors and times."""
    if mode == "plain":
        return "highest", {}
    measured = measure_precisions(gemms, device)
    exact = {p: seconds for p, (error, seconds) in measured.items() if error <= ERROR_LIMIT or p == "highest"}
    best = min(exact, key=exact.get)
    if exact[best] > 0.95 * exact["highest"]:
        best = "highest"  # a difference of 5 % or less is noise
    report = {p: {"relative_error": error, "seconds": seconds} for p, (error, seconds) in measured.items()}
    return best, report


def unreduced(_, bucket):
    """A communication hook that returns the bucket without a reduction.

    The time that remains is DDP's own.
    """
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def reduce_one_element(element, bucket):
    """A communication hook that skips the reduction and all-reduces one element after a step's last bucket.

    Every backend has to wait at least this long, because all ranks must have reached the step's end.
    """
    if not bucket.is_last():
        return unreduced(None, bucket)
    return dist.all_reduce(element, async_op=True).get_future().then(lambda _: bucket.buffer())


def train(rank, work, args, precision, port, barrier, results):
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(precision)
    torch.manual_seed(args.seed)
    layout = {"memory_format": torch.channels_last} if args.mode == "tuned" and work.channels_last else {}
    device = torch.device(args.device, rank % torch.cuda.device_count()) if args.device == "cuda" else torch.device(args.device)
    model = work.model().to(device, **layout)
    distributed = args.ranks > 1 and not args.limit
    if distributed:
        dist.init_process_group(args.backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.ranks)
    if distributed and args.loop == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
        if args.reduction == "none":
            model.register_comm_hook(None, unreduced)
        elif args.reduction == "meet":
            model.register_comm_hook(torch.zeros(1, device=device), reduce_one_element)
    optimizer = work.optimizer(model.parameters())
    meets = distributed and args.loop == "starling" and args.reduction == "meet"
    if distributed and args.loop == "starling" and args.reduction == "full":
        import starling
        optimizer = starling.DistributedOptimizer(model, optimizer)
    batches = [(x.to(**layout), y) for x, y in work.batches(torch.Generator().manual_seed(args.seed * 1000 + rank))]
    if args.device == "cuda":
        batches = [(x.pin_memory(), y.pin_memory()) for x, y in batches]
    times, losses = [], []
    barrier.wait(120)
    for step in range(args.steps):
        start = time.perf_counter()
        x, y = (tensor.to(device, non_blocking=True) for tensor in batches[step % len(batches)])
        loss = work.loss(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if meets:
            dist.all_reduce(torch.zeros(1, device=device))
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
    parser.add_argument("--loop", choices=("ddp", "starling"), default="ddp", help="what reduces the gradients")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads per rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", choices=PRECISIONS, help="float32_matmul_precision; by default it is chosen by measurement")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", help="backend of torch.distributed (default: gloo, and nccl on GPUs); starling is the plug-in of python/")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.steps <= FIRST_STEPS:
        parser.error(f"--steps must be above {FIRST_STEPS}, because the first {FIRST_STEPS} steps do not count")
    args.backend = args.backend or ("nccl" if args.device == "cuda" else "gloo")
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    precision, measured = (args.precision, {}) if args.precision else choose_precision(args.mode, work.gemms, device)
    start = time.perf_counter()
    spawn = mp.get_context("spawn")
    barrier, results = spawn.Barrier(args.ranks), spawn.Queue()
    workers = mp.start_processes(train, (work, args, precision, free_port(), barrier, results), nprocs=args.ranks,
                                 join=False, start_method="spawn")
    # Results are fetched before join(), because a process does not end before its queued values are read.
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
    # Ranks that wait for each other have equal speed, so rank 0's median counts for all. Independent ranks
    # are summed.
    independent = args.limit or args.reduction == "none"
    total = sum(rates) if independent else rates[0] * args.ranks
    print(json.dumps({"event": "result", "model": work.name, "mode": args.mode, "limit": args.limit, "ranks": args.ranks,
                      "steps": args.steps, "samples_per_s": total, "step_s": statistics.median(ranks[0][1][FIRST_STEPS:]),
                      "first_loss": ranks[0][2][0], "train_loss": ranks[0][2][-1], "params": ranks[0][3],
                      "backend": args.backend, "device": args.device, "precision": precision, "precisions_measured": measured, "torch": torch.__version__,
                      "wall_s": time.perf_counter() - start}))
