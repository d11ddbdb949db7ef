"""One rank of the tests of starling.DistributedOptimizer. `python loop_ranks.py CHECK…` runs checks.

Each rank computes what it expects by itself: it knows the samples of all ranks and trains plain copies of the
model. Models are fp64 if nothing else is said, and results may differ by 1e-10, relative to a tensor's norm.
"""
import copy
import datetime
import os
import pathlib
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

import starling
from starling import process

TIMEOUT = datetime.timedelta(seconds=200)
STEPS, BATCH = 12, 12  # 12 samples are shared equally by 1, 2 and 3 ranks


class Net(nn.Module):
    """A network with a part that takes no part in the loss, or a frozen part."""

    def __init__(self, seed, frozen=False, unused=False, kind=torch.float64):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 2)
        self.spare = nn.Linear(2, 2) if unused else None
        self.register_buffer("scale", torch.rand(1))
        self.to(kind)
        if frozen:
            self.first.requires_grad_(False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) * self.scale


def samples(step, rank=None):
    """Returns the batch of a step: that of all ranks, or the share of one rank."""
    x = torch.sin(torch.arange(3 * BATCH, dtype=torch.float64).reshape(BATCH, 3) * (step + 1) + 1)
    y = (x.sum(1) > 0).long()
    return (x, y) if rank is None else (x[rank::starling.world_size()], y[rank::starling.world_size()])


def backward(model, batch, factor=1.0):
    x, y = batch
    (factor * nn.functional.cross_entropy(model(x.to(model.second.weight.dtype)), y)).backward()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def plain_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def near(got, want, what, limit=1e-10):
    """Expects that two models have equal weights."""
    for (name, a), (_, b) in zip(got.named_parameters(), want.named_parameters(), strict=True):
        distance = ((a - b).norm() / b.norm().clamp(min=1e-30)).item()
        assert distance <= limit, f"{what}: {name} differs by {distance}"


def equal_on_all_ranks(model, what):
    """Expects that the parameters and buffers of all ranks are equal bit for bit."""
    own = torch.cat([t.detach().double().flatten() for t in model.state_dict().values()])
    everyone = [torch.empty_like(own) for _ in range(starling.world_size())]
    dist.all_gather(everyone, own)
    assert all(torch.equal(t, everyone[0]) for t in everyone), f"{what}: the replicas differ"


def refuses(kind, words, call):
    """Expects an error of this type whose message has these words."""
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in: {error}"
        return
    raise AssertionError(f"no {kind.__name__} with {words}")


CASES = {"sgd": {}, "adam": {"optimizer": adam}, "rmsprop": {"optimizer": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01)},
         "frozen": {"frozen": True}, "unused": {"unused": True, "optimizer": adam}, "accumulation": {"accumulate": 3},
         "clipping": {"clip": True}, "clip_norm": {"clip_norm": 0.05}, "outer schedule": {"schedule": "outer"},
         "inner schedule": {"schedule": "inner"}, "closure": {"closure": True}}
# Optimizers whose states are of other kinds. Adagrad makes them with the optimizer.
ELEMENTWISE = {
    name: {"optimizer": lambda m, make=make: make(m.parameters(), lr=0.01)}
    for name, make in (("adagrad", torch.optim.Adagrad), ("adadelta", torch.optim.Adadelta), ("adamax", torch.optim.Adamax),
                       ("nadam", torch.optim.NAdam), ("radam", torch.optim.RAdam), ("asgd", torch.optim.ASGD), ("rprop", torch.optim.Rprop))}


def check_one_process():
    """All-reduce makes the update that one process makes of the batch of all ranks."""
    for name, case in CASES.items():
        equals_one_process(name, case, {})


def check_sharded():
    """So do ranks that update a part of the parameters each, or none of them."""
    for way in ({"shard": "optimizer"}, {"shard": "gradients"}, {"exchange": "central"},
                {"exchange": "central", "settings": {"exchange.central": "master"}}):
        for name, case in (CASES | ELEMENTWISE).items():
            if "clip_norm" not in case or "exchange" not in way:
                equals_one_process(name, case, way)


def check_gradients_are_freed():
    """With ZeRO 2 no gradient exists between the steps, and a rank updates by its share of the mean."""
    own = Net(3)
    optimizer = starling.DistributedOptimizer(own, adam(own), shard="gradients")
    one_step(optimizer, own)
    assert all(p.grad is None for p in own.parameters())
    told = optimizer.statistics()
    assert told["gradient_elements"] == told["shard_elements"], told
    assert told["shard_elements"] * starling.world_size() * 8 == told["parameter_bytes"], told
    kept = sum(t.numel() for state in optimizer.state.values() for t in state.values() if t.dim() > 0)
    assert kept <= 2 * told["shard_elements"], (kept, told)


def equals_one_process(name, case, way):
    """Trains by DistributedOptimizer, and a plain copy on the batches of all ranks. Compares the weights."""
    nets = [Net(3 + rank, case.get("frozen", False), case.get("unused", False)) for rank in (0, starling.rank())]
    plain, own = nets
    bare, inner = (case.get("optimizer", sgd)(net) for net in nets)
    optimizer = starling.DistributedOptimizer(own, inner, clip_norm=case.get("clip_norm"), **way)
    near(own, plain, f"{name} at the start", 0)
    assert torch.equal(own.scale, plain.scale), name
    before = [id(p) for p in own.parameters()]
    schedules = []
    if "schedule" in case:
        scheduled = {"outer": optimizer, "inner": inner}[case["schedule"]]
        schedules = [torch.optim.lr_scheduler.StepLR(o, 4, 0.5) for o in (bare, scheduled)]
    parts = case.get("accumulate", 1)
    for step in range(STEPS):
        bare.zero_grad()
        optimizer.zero_grad()
        for part in range(parts):
            backward(plain, samples(parts * step + part), 1 / parts)
        if case.get("clip") or "clip_norm" in case:
            norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
            assert norm > 0.05, norm
        bare.step()
        share = [samples(parts * step + part, starling.rank()) for part in range(parts)]
        with optimizer.no_sync():
            for part in share[:-1]:
                backward(own, part, 1 / parts)
        if case.get("closure"):
            optimizer.step(lambda own=own, share=share: backward(own, share[-1]))
        else:
            backward(own, share[-1], 1 / parts)
            if case.get("clip"):
                optimizer.synchronize()
                nn.utils.clip_grad_norm_(own.parameters(), 0.05)
            optimizer.step()
        for schedule in schedules:
            schedule.step()
    near(own, plain, f"{name} {way}")
    assert before == [id(p) for p in own.parameters()], "a parameter has been replaced"
    assert optimizer.steps == STEPS and optimizer.param_groups is inner.param_groups
    equal_on_all_ranks(own, f"{name} {way}")
    if case.get("unused") and not way:
        assert own.spare.weight.grad is None


def check_two_optimizers():
    """Two networks with an optimizer each, as in a GAN."""
    plain, own = ([Net(3 + rank), Net(30 + rank)] for rank in (0, starling.rank()))
    bare = [sgd(plain[0]), adam(plain[1])]
    optimizers = [starling.DistributedOptimizer(own[0], sgd(own[0])), starling.DistributedOptimizer(own[1], adam(own[1]))]
    for step in range(STEPS):
        for nets, steppers, batch in ((plain, bare, samples(step)), (own, optimizers, samples(step, starling.rank()))):
            for net, stepper in zip(nets, steppers, strict=True):
                stepper.zero_grad()
                backward(net, batch)
                stepper.step()
    near(own[0], plain[0], "the first network")
    near(own[1], plain[1], "the second network")


def simulate(make_optimizer, between, end):
    """Trains a plain replica for each rank.

    The functions are called before and after each update. They get the replicas and the number of the step.
    """
    first = Net(3)
    replicas = [copy.deepcopy(first) for _ in range(starling.world_size())]
    optimizers = [make_optimizer(replica) for replica in replicas]
    for step in range(STEPS):
        for rank, replica in enumerate(replicas):
            optimizers[rank].zero_grad()
            backward(replica, samples(step, rank))
        with torch.no_grad():
            between(replicas, step)
            for optimizer in optimizers:
                optimizer.step()
            end(replicas, step)
    return replicas


def nothing(_replicas, _step):
    pass


def each(replicas):
    """Yields the tensors of one parameter in all replicas, for each parameter."""
    yield from zip(*(replica.parameters() for replica in replicas), strict=True)


def average(replicas):
    for tensors in each(replicas):
        mean = sum(tensors) / len(tensors)
        for tensor in tensors:
            tensor.copy_(mean)


def own_replica(make_optimizer, **words):
    """Trains with DistributedOptimizer. Returns this rank's replica, the agreed one, and the optimizer."""
    own = Net(3 + starling.rank())
    optimizer = starling.DistributedOptimizer(own, make_optimizer(own), **words)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(own, samples(step, starling.rank()))
        optimizer.step()
    with optimizer.consensus():
        equal_on_all_ranks(own, f"the consensus of {words}")
        refuses(RuntimeError, ["consensus()"], optimizer.step)
        agreed = copy.deepcopy(own)
    return own, agreed, optimizer


def check_local_sgd():
    for words in ({"exchange": "local-sgd", "every": 4}, {"exchange": "parallel-sgd", "every": 4}):
        replicas = simulate(adam, nothing, lambda r, step: average(r) if (step + 1) % 4 == 0 else None)
        near(own_replica(adam, **words)[0], replicas[starling.rank()], str(words))
    # Averaging after each step of SGD without momentum equals averaging the gradients.
    plain = Net(3)
    bare = plain_sgd(plain)
    for step in range(STEPS):
        bare.zero_grad()
        backward(plain, samples(step))
        bare.step()
    near(own_replica(plain_sgd, exchange="local-sgd", every=1)[0], plain, "local-sgd after every step")


def check_gossip():
    """With up to three ranks in a ring, every rank mixes with all others."""
    def mix(replicas, _step):
        average(replicas)  # the gradients are those of the weights before
    replicas = simulate(sgd, mix, nothing)
    own, agreed, optimizer = own_replica(sgd, exchange="gossip")
    near(own, replicas[starling.rank()], "gossip")
    with torch.no_grad():
        average(replicas)
    near(agreed, replicas[0], "the consensus of gossip")
    assert optimizer.statistics()["disagreement"] > 1e-6


def check_admm():
    rho, every = 0.5, 3
    world = starling.world_size()
    first = [p.detach().clone() for p in Net(3).parameters()]
    z, u = first, [[torch.zeros_like(p) for p in first] for _ in range(world)]

    def penalize(replicas, _step):
        for k, replica in enumerate(replicas):
            for x, z_i, u_i in zip(replica.parameters(), z, u[k], strict=True):
                x.grad += rho * (x - z_i + u_i)

    def round_of(replicas, step):
        if (step + 1) % every != 0:
            return
        for i, tensors in enumerate(each(replicas)):
            z[i] = sum(x + u[k][i] for k, x in enumerate(tensors)) / world
            for k, x in enumerate(tensors):
                u[k][i] += x - z[i]
    replicas = simulate(plain_sgd, penalize, round_of)
    own, _, optimizer = own_replica(plain_sgd, exchange="admm", every=every,
                                    settings={"exchange.rho": rho, "exchange.adaptive_rho": False})
    near(own, replicas[starling.rank()], "admm")
    assert optimizer.statistics()["rounds"] == STEPS // every


def check_codecs():
    """Where all gradients have one magnitude, 1bit loses nothing. In general the replicas stay equal."""
    model = nn.Linear(4, 8, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = starling.DistributedOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.5), codec="1bit")
    signs = torch.tensor([1.0, -1.0]).repeat(16).reshape(8, 4)
    for _ in range(3):
        optimizer.zero_grad()
        (model.weight * signs * 0.25).sum().backward()
        optimizer.step()
    assert torch.equal(model.weight, -3 * 0.5 * 0.25 * signs), model.weight
    for codec in ("1bit", "fp16", "bf16", "int8", "threshold:correction=off", "prune:keep=0.5,correction=off", "lowrank:rank=1"):
        own = Net(3 + starling.rank(), kind=torch.float32)
        optimizer = starling.DistributedOptimizer(own, sgd(own), codec=codec)
        begun = copy.deepcopy(own)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(own, samples(step, starling.rank()))
            optimizer.step()
        equal_on_all_ranks(own, codec)
        assert any(not torch.equal(a, b) for a, b in zip(own.parameters(), begun.parameters(), strict=True)), codec


def check_resume():
    """A state that rank 0 has saved continues to the same weights, bit for bit."""
    ways = ({}, {"codec": "1bit"}, {"exchange": "gossip"}, {"exchange": "admm"}, {"exchange": "local-sgd", "every": 3},
            {"shard": "optimizer"}, {"shard": "gradients"}, {"exchange": "central"},
            {"exchange": "central", "settings": {"exchange.central": "master"}})
    for number, words in enumerate(ways):
        kind = torch.float32 if "codec" in words else torch.float64
        file = pathlib.Path(f"state-{number}.pt")

        def train(own, optimizer, steps):
            for step in steps:
                optimizer.zero_grad()
                backward(own, samples(step, starling.rank()))
                optimizer.step()
        whole = Net(3 + starling.rank(), frozen=True, kind=kind)
        optimizer = starling.DistributedOptimizer(whole, adam(whole), **words)
        train(whole, optimizer, range(5))
        state = optimizer.state_dict()
        if starling.rank() == 0:
            torch.save(state, file)
        dist.barrier()
        train(whole, optimizer, range(5, STEPS))
        resumed = Net(77, frozen=True, kind=kind)
        after = starling.DistributedOptimizer(resumed, adam(resumed), **words)
        after.load_state_dict(torch.load(file, weights_only=True))
        assert after.steps == 5
        train(resumed, after, range(5, STEPS))
        near(resumed, whole, f"{words}", 0)
        if "shard" in words or words == {"exchange": "central"}:
            continue  # the wrapped optimizer has parts of the parameters
        # The state is also one of the wrapped optimizer alone.
        adam(Net(3, frozen=True, kind=kind)).load_state_dict(torch.load(file, weights_only=True))


def resnet():
    import torchvision
    torch.manual_seed(1)
    return torchvision.models.resnet18(num_classes=4), lambda model, x: model(x)


def gpt():
    import transformers
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
                                     attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config), lambda model, x: model(x).logits


def check_models():
    """A torchvision and a transformers model train with every whole-model exchange."""
    for make in (resnet, gpt):
        for words in ({}, {"codec": "1bit"}, {"exchange": "gossip"}, {"exchange": "local-sgd", "every": 2}, {"exchange": "admm", "every": 2},
                      {"shard": "gradients"}, {"exchange": "central"}):
            model, forward = make()
            optimizer = starling.DistributedOptimizer(model, torch.optim.AdamW(model.parameters(), lr=1e-3), **words)
            generator = torch.Generator().manual_seed(5 + starling.rank())
            x = torch.randn(4, 3, 32, 32, generator=generator) if make is resnet else torch.randint(0, 64, (4, 16), generator=generator)
            y = torch.arange(4) if make is resnet else x
            losses = []
            for _ in range(4):
                optimizer.zero_grad()
                out = forward(model, x)
                loss = nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert losses[-1] < losses[0], (make, words, losses)
            with optimizer.consensus():
                equal_on_all_ranks(model, f"{make.__name__} {words}")
            if not words.get("exchange"):
                equal_parameters = nn.ParameterList(model.parameters())
                equal_on_all_ranks(equal_parameters, f"parameters of {make.__name__} {words}")


def check_gpt_is_that_of_one_process():
    (plain, forward), (own, _) = gpt(), gpt()
    bare = sgd(plain.double())
    optimizer = starling.DistributedOptimizer(own, sgd(own))
    for step in range(3):
        x = torch.randint(0, 64, (6, 16), generator=torch.Generator().manual_seed(step))
        for model, stepper, tokens in ((plain, bare, x), (own, optimizer, x[starling.rank()::starling.world_size()])):
            stepper.zero_grad()
            nn.functional.cross_entropy(forward(model, tokens).flatten(0, 1), tokens.flatten()).backward()
            stepper.step()
    near(own.double(), plain, "gpt", 1e-5)


def check_autocast():
    own = Net(3, kind=torch.float32)
    optimizer = starling.DistributedOptimizer(own, sgd(own))
    for step in range(3):
        x, y = samples(step, starling.rank())
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = own.second(torch.tanh(own.first(x.float())))
            assert out.dtype == torch.bfloat16
        nn.functional.cross_entropy(out.float(), y).backward()
        optimizer.step()
    equal_on_all_ranks(own, "autocast")


def check_other_collectives():
    """Collectives of the program run beside those of the optimizer, whose group has the same timeout."""
    own = Net(3)
    optimizer = starling.DistributedOptimizer(own, sgd(own), exchange="gossip")
    assert process.training_backend().options._timeout == TIMEOUT
    for step in range(3):
        optimizer.zero_grad()
        told = torch.full((1000,), float(starling.rank()))
        work = dist.all_reduce(told, async_op=True)
        backward(own, samples(step, starling.rank()))
        optimizer.step()
        work.wait()
        assert told[0] == sum(range(starling.world_size()))


def one_step(optimizer, model):
    optimizer.zero_grad()
    backward(model, samples(0, starling.rank()))
    optimizer.step()


def check_waiting_lets_others_run():
    """Other Python threads run while a step waits for a rank."""
    own = Net(3)
    optimizer = starling.DistributedOptimizer(own, sgd(own))
    store = dist.distributed_c10d._get_default_store()
    timer = threading.Timer(0.2, lambda: store.set("others ran", "yes"))
    if starling.rank() == 0:
        timer.start()
    else:
        store.wait(["others ran"])
    one_step(optimizer, own)  # would never end if rank 0 held Python's global lock
    if starling.rank() == 0:
        timer.join()


def check_killed():
    """A lost rank is an error of the others that names it."""
    own, last = Net(3), starling.world_size() - 1
    optimizer = starling.DistributedOptimizer(own, sgd(own))
    one_step(optimizer, own)
    if starling.rank() == last:
        os.kill(os.getpid(), signal.SIGKILL)
    refuses(RuntimeError, [f"rank {last}", "is lost"], lambda: one_step(optimizer, own))
    print("named the lost rank", flush=True)
    os._exit(0)


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        raise KeyError("of the program")


class Whole(torch.optim.SGD):
    """An optimizer of the program, which may need all elements of a parameter."""


def check_errors():
    def made(net=None, make=sgd, **words):
        net = net or Net(3)
        return starling.DistributedOptimizer(net, make(net), **words)
    refuses(ValueError, ["exchange.name", "gosip", "gossip"], lambda: made(exchange="gosip"))
    refuses(ValueError, ["exchange.grph", "exchange.graph"], lambda: made(settings={"exchange.grph": "ring"}))
    refuses(ValueError, ["exchange.every"], lambda: made(exchange="local-sgd", every=0))
    refuses(ValueError, ["exchange.every", "all-reduce does not read", "local-sgd", "admm"], lambda: made(every=3))
    refuses(ValueError, ["exchange.codec", "gossip does not read"], lambda: made(Net(3, kind=torch.float32), exchange="gossip", codec="1bit"))
    refuses(ValueError, ["optimizer.lr", "optimizer.clip_norm"], lambda: made(settings={"optimizer.lr": 0.1}))
    refuses(ValueError, ["parameter-server", "local-sgd", "gossip"], lambda: made(exchange="parameter-server"))
    refuses(ValueError, ["train.shard", "gradients"], lambda: made(shard="parameters"))
    refuses(ValueError, ["train.shard", "gossip"], lambda: made(shard="optimizer", exchange="gossip"))
    refuses(ValueError, ["train.shard", "each element by itself"], lambda: made(make=lambda net: Whole(net.parameters(), lr=1), shard="optimizer"))
    refuses(ValueError, ["central does not clip gradients"], lambda: made(exchange="central", clip_norm=1.0))
    refuses(ValueError, ["1bit"], lambda: made(Net(3, kind=torch.float32), codec="2bit"))
    refuses(ValueError, ["fp32"], lambda: made(codec="1bit"))
    refuses(ValueError, ["LBFGS"], lambda: made(make=lambda net: torch.optim.LBFGS(net.parameters())))
    refuses(ValueError, ["4 parameters that are not the model's"], lambda: made(make=lambda _: sgd(Net(4))))
    refuses(ValueError, ["0.weight", "meta"], lambda: made(nn.Sequential(nn.Linear(2, 2, device="meta"))))
    refuses(ValueError, ["1.weight", "autocast"], lambda: made(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())))
    refuses(ValueError, ["make a new DistributedOptimizer"], lambda: made().add_param_group({"params": []}))
    refuses(TypeError, ["state_dict()"], lambda: copy.deepcopy(made()))
    refuses(ValueError, ["already"], lambda: made(make=lambda net: made(net)))
    refuses(KeyError, ["of the program"], lambda: made(make=lambda net: Failing(net.parameters(), lr=1)).step())
    refuses(ValueError, ["not one of a DistributedOptimizer"], lambda: made().load_state_dict(sgd(Net(3)).state_dict()))
    gossip, admm = made(exchange="gossip"), made(exchange="admm")
    state = [gossip.state_dict()]
    dist.broadcast_object_list(state)
    refuses(RuntimeError, ["checkpoint"], lambda: admm.load_state_dict(state[0]))
    if starling.world_size() > 1:
        wide = nn.Linear(2, 2 + starling.rank() % 2)
        refuses(ValueError, ["the model of rank 1 differs from that of rank 0"], lambda: made(wide))
    table = nn.Embedding(4, 2, sparse=True)
    sparse = made(table, plain_sgd)
    table(torch.tensor([1])).sum().backward()
    refuses(ValueError, ["weight", "sparse=False"], sparse.step)
    frozen = Net(3, frozen=True)
    optimizer = made(frozen)
    with optimizer.no_sync():
        refuses(RuntimeError, ["no_sync()"], optimizer.step)
    frozen.first.requires_grad_(True)
    backward(frozen, samples(0, starling.rank()))
    refuses(ValueError, ["first.weight", "DistributedOptimizer"], optimizer.step)


def main():
    torch.set_num_threads(1)
    if "first" in os.environ:  # the program has its own group
        dist.init_process_group(os.environ["first"], timeout=TIMEOUT)
    starling.init(timeout=TIMEOUT)
    for name in sys.argv[1:]:
        began = time.monotonic()
        globals()[f"check_{name}"]()
        print(f"{name} {time.monotonic() - began:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
