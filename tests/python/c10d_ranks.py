"""One rank of the plug-in's tests. `python c10d_ranks.py CHECK…` runs checks in torchrun's environment.

Each check gets `ours`, the default group on the backend starling, and `gloo`, a group of the same ranks on
Gloo. No code imports the plug-in, because torch finds it by the backend's name.
"""
import datetime
import gc
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

TIMEOUT = datetime.timedelta(seconds=200)
Op = dist.ReduceOp
OPS = {"sum": Op.SUM, "min": Op.MIN, "max": Op.MAX, "product": Op.PRODUCT}
BITWISE = {"band": Op.BAND, "bor": Op.BOR, "bxor": Op.BXOR}
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)


def values(rank, count, dtype):
    """Returns numbers from 1 to 3.

    Their sums and products over four ranks are exact in every type, so both backends must give equal bits.
    """
    return ((torch.arange(count) * 5 + rank * 2) % 3 + 1).to(dtype)


def same(got, want, what):
    assert got.dtype == want.dtype and torch.equal(got, want), f"{what}: {got.flatten()[:6]} is not {want.flatten()[:6]}"


def on_both(ours, gloo, call, what):
    """Expects that call(group) returns equal tensors for both groups."""
    for got, want in zip(call(ours), call(gloo), strict=True):
        same(got, want, what)


def check_collectives(ours, gloo):
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in FLOATS + INTEGERS:
        ops = OPS if dtype in FLOATS else OPS | BITWISE
        for name, op in ops.items():
            for count in (1, 1000, 70001):
                def reduce_all(group, op=op, dtype=dtype, count=count):
                    tensor = values(rank, count, dtype)
                    dist.all_reduce(tensor, op, group=group)
                    return [tensor]
                on_both(ours, gloo, reduce_all, f"all_reduce {name} {dtype} {count}")

        def gathered(group, dtype=dtype):
            out = torch.zeros(size * 501, dtype=dtype)
            dist.all_gather_into_tensor(out, values(rank, 501, dtype), group=group)
            parts = [torch.zeros(501, dtype=dtype) for _ in range(size)]
            dist.all_gather(parts, values(rank, 501, dtype), group=group)
            return [out, *parts]
        on_both(ours, gloo, gathered, f"all_gather {dtype}")

        def scattered(group, dtype=dtype):
            out = torch.zeros(300, dtype=dtype)
            dist.reduce_scatter_tensor(out, values(rank, 300 * size, dtype), group=group)
            root = torch.zeros(7, dtype=dtype)
            parts = [values(r, 7, dtype) for r in range(size)] if rank == 1 else None
            dist.scatter(root, parts, src=1, group=group)
            return [out, root]
        on_both(ours, gloo, scattered, f"reduce_scatter, scatter {dtype}")

        def to_all(group, dtype=dtype):
            into = [r + 2 * rank + 1 for r in range(size)]
            out_of = [rank + 2 * r + 1 for r in range(size)]
            got = torch.zeros(sum(into), 3, dtype=dtype)
            dist.all_to_all_single(got, values(rank, sum(out_of) * 3, dtype).view(-1, 3), into, out_of, group=group)
            return [got]
        on_both(ours, gloo, to_all, f"all_to_all_single {dtype}")

        def rooted(group, dtype=dtype):
            told, summed = values(rank, 99, dtype), values(rank, 99, dtype)
            dist.broadcast(told, src=size - 1, group=group)
            dist.reduce(summed, dst=0, group=group)
            parts = [torch.zeros(5, dtype=dtype) for _ in range(size)] if rank == 0 else None
            dist.gather(values(rank, 5, dtype), parts, dst=0, group=group)
            return [told, *([summed, *parts] if rank == 0 else [])]
        on_both(ours, gloo, rooted, f"broadcast, reduce, gather {dtype}")
    # Gloo lacks int16, so the check computes the expected values.
    everyone = torch.stack([values(r, 700, torch.int16) - 2 for r in range(size)])
    reduced = {Op.SUM: everyone.sum(0), Op.MIN: everyone.amin(0), Op.MAX: everyone.amax(0), Op.PRODUCT: everyone.prod(0),
               Op.AVG: everyone.sum(0).div(size, rounding_mode="trunc"), Op.BOR: everyone[0].clone()}
    for other in everyone[1:]:
        reduced[Op.BOR] |= other
    for op, want in reduced.items():
        tensor = everyone[rank].clone()
        dist.all_reduce(tensor, op)
        same(tensor, want.to(torch.int16), f"int16 {op}")
    averaged = torch.full((9,), float(rank))
    dist.all_reduce(averaged, Op.AVG)
    same(averaged, torch.full((9,), (size - 1) / 2), "avg")
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags, Op.MAX)
    same(flags, torch.tensor([True, True, False]), "bool")
    scaled = torch.full((4,), 1.0)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    same(scaled, torch.full((4,), size / 2), "premultiplied sum")


def check_objects_and_messages(ours, gloo):
    rank, size = dist.get_rank(), dist.get_world_size()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "ä" * rank})
    assert objects == [{"rank": r, "text": "ä" * r} for r in range(size)], objects
    ring = [dist.P2POp(dist.isend, torch.full((50000,), float(rank)), (rank + 1) % size),
            dist.P2POp(dist.irecv, torch.zeros(50000), (rank - 1) % size)]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    same(ring[1].tensor, torch.full((50000,), float((rank - 1) % size)), "batch_isend_irecv")
    if rank == 0:
        senders = set()
        for _ in range(size - 1):
            got = torch.zeros(3)
            senders.add(sender := dist.recv(got))
            same(got, torch.full((3,), float(sender)), "recv from any")
        assert senders == set(range(1, size)), senders
    else:
        dist.send(torch.full((3,), float(rank)), 0)
    dist.monitored_barrier()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    chained = work.get_future().then(lambda future: future.value()[0] * 2)
    same(chained.wait(), torch.full((4,), 2.0 * size), "future")
    work.wait()
    halves = dist.new_group(list(range(0, size, 2)))  # also on the backend starling
    if rank % 2 == 0:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=halves)
        same(tensor, torch.full((3,), float((size + 1) // 2)), "subgroup")
        dist.destroy_process_group(halves)
    split = dist.split_group(split_ranks=[list(reversed(range(size)))])
    assert split.rank() == size - 1 - rank
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=split)
    same(tensor, torch.full((3,), float(size)), "split")
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    shared = backend.allocate_tensor(1000, dtype=torch.bfloat16, device=torch.device("cpu")).fill_(rank + 1)
    dist.all_reduce(shared)
    same(shared, torch.full((1000,), size * (size + 1) / 2, dtype=torch.bfloat16), "tensor in a window")


def check_one_sided(ours, gloo):
    """Tests windows between processes of one host.

    For ranks on several hosts, windows must raise an error.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.full((2, 50000), float(rank))
    one_host = "STARLING_KEY_FILE" not in os.environ
    assert dist._supports_window() == one_host
    if not one_host:
        try:
            dist._new_window(mine)
        except RuntimeError as error:
            assert "send and recv" in str(error), error
            return
        raise AssertionError("no error")
    window, after, before = dist._new_window(mine), (rank + 1) % size, (rank - 1) % size
    same(mine, torch.full((2, 50000), float(rank)), "a registered tensor")
    dist.barrier()
    for round_ in range(20):
        window.put(torch.full((50000,), 100.0 * rank + round_), after, 50000, round_ % 2 == 0)
        window.signal(after, True)
        window.wait_signal(before, False).wait()
        same(mine[1], torch.full((50000,), 100.0 * before + round_), "what was put")
        window.signal(before, True)  # the peer may put again
        window.wait_signal(after, False).wait()
    same(window.map_remote_tensor(after)[0], torch.full((50000,), float(after)), "a peer's tensor")
    dist.all_reduce(mine[0])
    same(mine[0], torch.full((50000,), size * (size - 1) / 2), "a registered tensor is an ordinary one, too")
    window.tensor_deregister()


def check_hooks_and_coalescing(ours, gloo):
    backend = ours._get_backend(torch.device("cpu"))
    assert backend.supports_coalescing and backend.supports_abort_hooks
    tensors = [torch.full((10 + i,), float(i)) for i in range(5)]
    with dist.distributed_c10d._coalescing_manager(ours, torch.device("cpu"), async_ops=True) as coalesced:
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
    coalesced.wait()
    for i, tensor in enumerate(tensors):
        same(tensor, torch.full((10 + i,), float(i * dist.get_world_size())), "coalesced")
    done, aborted = [], []
    ours._register_on_completion_hook(lambda info: done.append(info.op_type))
    ours._enable_collectives_timing()
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    work.wait()
    ours._wait_for_pending_works()
    assert len(done) == 1 and work._get_duration() >= 0, done
    ours.register_abort_hook(1, lambda: aborted.append(True))
    try:
        dist.all_reduce(torch.ones(3 + dist.get_rank()))  # shapes differ between the ranks
    except RuntimeError as error:
        assert aborted, error
        return
    raise AssertionError("no error")


def check_devices(ours, gloo):
    """If torch sees a GPU and has NCCL, the backend for CUDA is NCCL.

    The check runs on any machine: torch reports a GPU by a mock, and Gloo stands for NCCL.
    """
    from unittest import mock
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    kinds = dict(dist.Backend._plugins)
    kinds["NCCL"] = kinds["GLOO"]
    gpu = mock.patch("torch.cuda.is_available", return_value=True)
    with gpu, mock.patch.object(dist, "is_nccl_available", return_value=True), mock.patch.object(dist.Backend, "_plugins", kinds):
        both = dist.new_group(backend="starling", timeout=TIMEOUT)
        with mock.patch.dict(os.environ, STARLING_NCCL="0"):
            without = dist.new_group(backend="starling", timeout=TIMEOUT)
    assert both._get_backend(cpu).name() == "starling" and both._get_backend(cuda).name() == "gloo"
    assert cuda not in without._device_types, without._device_types
    for backend in (both._get_backend(cpu), both._get_backend(cuda)):
        tensor = torch.ones(3)
        backend.allreduce([tensor]).wait()
        same(tensor, torch.full((3,), float(dist.get_world_size())), "each backend of the group")
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, dist.get_rank(), group=both)
    assert objects == list(range(dist.get_world_size()))
    with gpu, mock.patch.object(dist, "is_nccl_available", return_value=False):
        alone = dist.new_group(backend="starling", timeout=TIMEOUT)
    assert alone._get_backend(cuda).name() == "starling"  # its error names the missing NCCL
    for group in (both, without, alone):
        dist.destroy_process_group(group)


def check_gpu(ours, gloo):
    """Tensors of a GPU go through NCCL, tensors of the CPU through Starling."""
    for device in (torch.device("cuda", dist.get_rank()), torch.device("cpu")):
        tensor = torch.full((1000,), float(dist.get_rank()), device=device)
        dist.all_reduce(tensor)
        same(tensor.cpu(), torch.full((1000,), dist.get_world_size() * (dist.get_world_size() - 1) / 2), str(device))
    assert ours._get_backend(torch.device("cuda")).name() == "nccl"


def small_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 64, bias=False), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 64), nn.GELU(),
                         nn.Linear(64, 5)).double()


def batches(rank, steps):
    random = torch.Generator().manual_seed(100 + rank)
    return [(torch.randn(16, 20, generator=random, dtype=torch.float64), torch.randint(0, 5, (16,), generator=random)) for _ in range(steps)]


def train(model, parameters, steps=8):
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    for x, y in batches(dist.get_rank(), steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def near(got, want, what, limit=1e-6):
    error = ((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)).item()
    assert error <= limit, f"{what}: relative difference {error}"


def check_ddp(ours, gloo):
    """Weights and buffers after eight steps in fp64 equal those with Gloo, up to the order of summation.

    The check trains with and without gradients as views of the buckets, and with sparse gradients.
    """
    from torch.nn.parallel import DistributedDataParallel as DDP
    for options in ({}, {"gradient_as_bucket_view": True, "static_graph": True}, {"find_unused_parameters": True}):
        states = []
        for group in (ours, gloo):
            model = DDP(small_model(), process_group=group, bucket_cap_mb=0.005, **options)
            train(model, model.parameters())
            states.append(model.module.state_dict())
        for name, want in states[1].items():
            near(states[0][name], want, f"DDP {options} {name}")
    tables = []
    for group in (ours, gloo):
        torch.manual_seed(5)
        table = DDP(nn.Embedding(30, 4, sparse=True), process_group=group)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
        table(torch.tensor([dist.get_rank(), 7, 7, 3 * dist.get_rank()])).square().sum().backward()
        optimizer.step()
        tables.append(table.module.weight.detach())
    near(tables[0], tables[1], "DDP with sparse gradients")


def check_buckets(ours, gloo):
    """DDP takes the memory of its buckets from the plug-in, but not from Gloo."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    def memory_of_gradients(group):
        model = DDP(small_model(), process_group=group, gradient_as_bucket_view=True)
        train(model, model.parameters())
        address = next(model.parameters()).grad.data_ptr()
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                begin, end = (int(a, 16) for a in line.split()[0].split("-"))
                if begin <= address < end:
                    return line
        raise AssertionError(f"no mapping at {address:x}")
    assert "memfd:starling" in memory_of_gradients(ours), memory_of_gradients(ours)
    assert "memfd:starling" not in memory_of_gradients(gloo), memory_of_gradients(gloo)


def check_remade_ddp(ours, _):
    """Twenty models one after another use the windows of the first: none stays mapped."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    def mapped():
        with open("/proc/self/maps", encoding="utf-8") as maps:
            ranges = [line.split()[0].split("-") for line in maps if "memfd:starling" in line]
        return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)
    after = []
    for _ in range(20):
        model = DDP(nn.Sequential(nn.Linear(400, 1000), nn.Linear(1000, 300)), process_group=ours)
        for _ in range(2):
            model(torch.ones(2, 400)).sum().backward()
        del model
        gc.collect()
        after.append(mapped())
    assert after[-1] > 700_000 * 4, after
    assert after[-1] == after[1], after


def check_fsdp(ours, gloo):
    """FSDP2 on a mesh of Starling's groups trains like DDP on Gloo."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel as DDP

    def plain():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5)).double()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    assert dist.get_backend(mesh.get_group()) == "starling"
    sharded = plain()
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    got = train(sharded, sharded.parameters())
    reference = DDP(plain(), process_group=gloo)
    want = train(reference, reference.parameters())
    near(torch.tensor(got), torch.tensor(want), "FSDP2 losses")
    for (name, parameter), other in zip(sharded.named_parameters(), reference.parameters(), strict=True):
        near(parameter.full_tensor(), other, f"FSDP2 {name}")


def check_mesh(ours, gloo):
    """Trains on a mesh of two axes, with a layer that is sharded along one axis."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replica", "tensor"))
    whole = torch.arange(48, dtype=torch.float32).view(8, 6)
    divided = distribute_tensor(whole, mesh, [Replicate(), Shard(0)])
    assert isinstance(divided, DTensor) and divided.to_local().shape == (4, 6)
    same(divided.redistribute(placements=[Replicate(), Replicate()]).to_local(), whole, "redistributed")
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))
    want = layers(whole)
    cut = parallelize_module(layers, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    near(cut(whole), want, "tensor parallel")


def check_pipeline(ours, gloo):
    """Two stages of torch.distributed.pipelining give the loss of the whole model."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    torch.manual_seed(1)
    whole = [nn.Sequential(nn.Linear(12, 30), nn.Tanh()), nn.Sequential(nn.Linear(30, 30), nn.Tanh()),
             nn.Sequential(nn.Linear(30, 30), nn.Tanh()), nn.Sequential(nn.Linear(30, 3))]
    rank, size = dist.get_rank(), dist.get_world_size()
    each = len(whole) // size
    part = nn.Sequential(*whole[rank * each:(rank + 1) * each])
    random = torch.Generator().manual_seed(9)
    x, y = torch.randn(16, 12, generator=random), torch.randint(0, 3, (16,), generator=random)
    loss = nn.functional.cross_entropy
    schedule = Schedule1F1B(PipelineStage(part, rank, size, torch.device("cpu")), n_microbatches=4, loss_fn=loss)
    losses = []
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=y, losses=losses)
    else:
        schedule.step()
    gradient = part[0][0].weight.grad.clone()
    part.zero_grad()
    want = loss(nn.Sequential(*whole)(x), y)
    want.backward()
    if losses:
        near(torch.stack(losses).mean(), want, "loss")
    near(gradient, part[0][0].weight.grad, "gradient of the stage", 1e-5)


def check_killed(ours, gloo):
    """The last rank is killed while the other ranks wait for it.

    Each of them gets an error that names the lost rank.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(100000))
    except RuntimeError as error:
        assert f"rank {size - 1}" in str(error) and "is lost" in str(error), error
        assert time.monotonic() - began < 10, "slow"
        print("named the lost rank", flush=True)
        os._exit(0)  # Gloo's threads would wait for the lost rank
    raise AssertionError("no error")


def check_waiting_lets_others_run(ours, gloo):
    """Other Python threads run while a call waits."""
    import threading
    if dist.get_rank() != 0:
        ours_store = dist.distributed_c10d._get_default_store()
        ours_store.wait(["others ran"])
        dist.barrier()
        return
    store = dist.distributed_c10d._get_default_store()
    thread = threading.Thread(target=lambda: store.set("others ran", "yes"))
    timer = threading.Timer(0.2, thread.start)
    timer.start()
    dist.barrier()  # would never end if it held Python's global lock
    timer.join()
    thread.join()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("starling", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    assert dist.get_backend() == "starling"
    for name in sys.argv[1:]:
        began = time.monotonic()
        globals()[f"check_{name}"](dist.group.WORLD, gloo)
        print(f"{name} {time.monotonic() - began:.1f} s", flush=True)
    if "no_farewell" not in os.environ:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
