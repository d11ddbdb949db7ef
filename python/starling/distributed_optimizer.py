"""DistributedOptimizer makes a PyTorch training loop distributed.

    starling.init()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer = starling.DistributedOptimizer(model, optimizer, exchange="gossip")
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
"""
from __future__ import annotations

import contextlib
import ctypes
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from starling import process
from starling_c10d import _C

# The attributes in which torch keeps the hooks of an optimizer. This object and the wrapped optimizer share
# the hooks.
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_state_dict_pre_hooks",
          "_optimizer_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
_OWN = "own_optimizer"


def _text(value: object) -> str:
    """Returns a value as a configuration file writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return str(value)


def _to_bytes(value: object) -> torch.Tensor:
    """Returns what torch.save() writes, as a tensor of bytes."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return torch.frombuffer(stream.getbuffer(), dtype=torch.uint8).clone()


def _of_bytes(data: torch.Tensor) -> Any:
    """Returns the value whose bytes _to_bytes() has returned."""
    whole = data.contiguous()  # its numpy() would need the package numpy
    return torch.load(io.BytesIO(ctypes.string_at(whole.data_ptr(), whole.numel())), weights_only=True)


# The optimizers of torch that update each element of a parameter by itself. With --shard, a rank updates some
# elements.
_ELEMENTWISE = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")


def _part_of_state(state: Mapping[str, Any], whole: torch.Tensor, part: torch.Tensor) -> dict[str, Any]:
    """Returns the part of a parameter's state that belongs to some of its elements."""
    first = (part.data_ptr() - whole.data_ptr()) // part.element_size()
    own = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == whole.shape and name != "step":
            alike = torch.empty_strided(whole.shape, whole.stride(), dtype=value.dtype).copy_(value)  # as `whole` lies in memory
            own[name] = torch.as_strided(alike, (part.numel(),), (1,), first).clone()
        else:
            own[name] = value
    return own


class _Inner:
    """The program's own optimizer, as the module _C calls it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def step(self) -> None:
        self._optimizer.step()

    def lr(self) -> float:
        return float(self._optimizer.param_groups[0].get("lr", 0))

    def shard(self, parts: list[tuple[torch.Tensor, torch.Tensor | None]]) -> bool:
        optimizer = self._optimizer
        known = type(optimizer).__module__.startswith("torch.optim.") and type(optimizer).__name__ in _ELEMENTWISE
        if not known and not getattr(optimizer, "elementwise", False):
            return False
        part_of = {id(whole): part for whole, part in parts}
        for whole, part in parts:
            state = optimizer.state.pop(whole, None)
            if state and part is not None:
                optimizer.state[part] = _part_of_state(state, whole, part)
        for group in optimizer.param_groups:
            group["params"] = [part_of[id(p)] for p in group["params"] if part_of.get(id(p)) is not None]
        return True

    def state(self) -> torch.Tensor:
        return _to_bytes(self._optimizer.state_dict())

    def load_state(self, data: torch.Tensor) -> None:
        self._optimizer.load_state_dict(_of_bytes(data))


class DistributedOptimizer(torch.optim.Optimizer):
    """An optimizer that exchanges with the other ranks when it steps.

    It wraps any optimizer of torch and has the wrapped optimizer's `param_groups`, `state` and `defaults`.
    Schedulers of torch work on either of the two. Several DistributedOptimizers may exist, one for each
    module (as the two of a GAN). Every rank makes the same calls in the same order.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, exchange: str = "all-reduce",
                 codec: str = "none", every: int | None = None, clip_norm: float | None = None, shard: str = "none",
                 settings: Mapping[str, object] | None = None) -> None:
        """Begins training with the parameters and buffers of rank 0 on all ranks. Collective.

        Args:
            model: The module that owns all parameters of `optimizer`. Its parameters are on the CPU, and
                those that are trained are all float32 or all float64. They keep their identity.
            optimizer: The optimizer that updates the parameters. Make it before, as for one process.
            exchange: How the ranks agree: "all-reduce", "central", "local-sgd", "easgd", "parallel-sgd",
                "admm", "gossip" or "sgp". With "central" the ranks of one host share the memory of the
                parameters, and the optimizer must be one of those that `shard` takes, unless the setting
                "exchange.central" is "master".
            codec: The compression of what is exchanged, for example "1bit", "int8" or "threshold".
            every: The number of steps between two synchronization rounds of local-sgd, easgd, parallel-sgd
                and admm.
            clip_norm: The largest norm of the gradient that the optimizer gets.
            shard: What each rank keeps a share of: "none", "optimizer" (ZeRO 1: the states of the optimizer)
                or "gradients" (ZeRO 2: also the gradients between the reduction and the update). The groups
                of the wrapped optimizer then hold parts of the parameters. The optimizer must update each
                element by itself, as SGD and Adam do. An optimizer that is not torch's says so by an
                attribute `elementwise = True`.
            settings: Further keys of the configuration and their values, for example
                {"exchange.graph": "exponential"}. They are "optimizer.clip_value" and those that begin with
                "exchange.". The manual lists them.

        Raises:
            ValueError: A setting or a combination of settings is wrong, the models of the ranks differ, a
                parameter has another type or device, or a parameter of the optimizer is not the model's.
            RuntimeError: The ranks have not met (see starling.init()), or a rank was lost.
        """
        # Optimizer.__init__() is not called: its parameter groups and hooks are those of the wrapped
        # optimizer.
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError("the optimizer is a DistributedOptimizer already; give the optimizer of torch")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("LBFGS evaluates the loss several times in a step; use an optimizer that takes one gradient")
        self.optimizer = optimizer
        for name in _HOOKS:
            setattr(self, name, getattr(optimizer, name))
        given = {"exchange.name": exchange, "exchange.codec": None if codec == "none" else codec, "exchange.every": every,
                 "optimizer.clip_norm": clip_norm, "train.shard": None if shard == "none" else shard}
        chosen = {key: value for key, value in given.items() if value is not None} | dict(settings or {})
        parameters, frozen = _split(model, optimizer)
        self._trained = [parameter for _, parameter in parameters]
        self._block = ""  # the block in which step() is refused
        self._loop = _C.TrainingLoop(
            backend=process.training_backend(), settings=[(key, _text(value)) for key, value in chosen.items()],
            parameters=parameters, frozen=frozen, buffers=list(model.named_buffers()), optimizer=_Inner(optimizer))
        if process.rank() == 0:
            for warning in self._loop.warnings():
                warnings.warn(warning, stacklevel=2)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of parameters of the wrapped optimizer. Their settings may be changed at any time."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the wrapped optimizer on this rank."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The default settings of the wrapped optimizer."""
        return self.optimizer.defaults

    @property
    def steps(self) -> int:
        """The number of steps so far, those before a loaded state included."""
        return self._loop.steps()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Exchanges with the other ranks and updates the parameters. Collective.

        Gradients may have been accumulated over several backward passes, because nothing is exchanged before
        step(). A parameter that has a gradient on no rank is not updated. All ranks have equal weight in the
        mean of the gradients.

        Args:
            closure: A function that computes the loss and its gradients. It is called once, before the
                exchange.

        Returns:
            What the closure returned, or None without a closure.

        Raises:
            ValueError: A gradient is sparse, or belongs to a parameter that was frozen when this object was
                made.
            RuntimeError: A rank was lost, or step() was called inside no_sync() or consensus().
        """
        if self._block:
            raise RuntimeError(f"step() was called inside {self._block}; call it after the block")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._loop.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes the gradients, or sets them to zero, as torch.optim.Optimizer.zero_grad() does."""
        for parameter in self._trained:  # the groups of the wrapped optimizer may hold parts of them
            if parameter.grad is None:
                continue
            if set_to_none:
                parameter.grad = None
            else:
                parameter.grad.detach().zero_()

    def synchronize(self) -> None:
        """Exchanges the gradients now, if the exchange is one of gradients, as all-reduce is. Collective.

        The gradient of each parameter is then the mean over the ranks. The program may read or clip it before
        step(), which does not exchange it again.
        """
        self._loop.synchronize()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Marks backward passes that only accumulate gradients, as no_sync() of DistributedDataParallel does.

        Gradients are exchanged in step() and synchronize() only, so the block changes nothing. It refuses
        step(), and exists so that a loop for DistributedDataParallel needs no change.
        """
        before, self._block = self._block, "no_sync()"
        try:
            yield
        finally:
            self._block = before

    @contextlib.contextmanager
    def consensus(self) -> Iterator[None]:
        """Shows the model that is evaluated and saved: `with optimizer.consensus(): evaluate(model)`.

        Collective. With all-reduce this is the model itself, with buffers averaged over the ranks. If the
        replicas differ (gossip, admm, local-sgd), it is the model on which the ranks agree. No step may be
        made in the block.
        """
        self._loop.consensus()
        before, self._block = self._block, "consensus()"
        try:
            yield
        finally:
            self._block = before
            self._loop.resume_training()

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Returns the state for a checkpoint, complete on rank 0. Collective.

        The keys "state" and "param_groups" are those of the wrapped optimizer on this rank. The key
        "starling" has the number of steps, the parameters and buffers of the model, and what the exchange
        keeps for each rank. On the remaining ranks this part may be incomplete, so rank 0 saves the state.
        """
        whole = self._loop.state()
        own = sorted(name for name in whole["optimizer"] if name.startswith((_OWN + "/", _OWN + "@0/")))
        if process.rank() == 0:
            for name in own:  # "state" and "param_groups" have it
                del whole["optimizer"][name]
        return {**self.optimizer.state_dict(), "starling": {**whole, "own": own}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Loads the state that state_dict() returned on rank 0, and the model's tensors in it. Collective.

        Every rank gives the state of rank 0, for example by torch.load() of the file that rank 0 has saved.
        The exchange, the number of ranks and the wrapped optimizer are those of the run that saved the state.

        Raises:
            ValueError: The state is not one of a DistributedOptimizer.
            RuntimeError: The state does not fit the model, the exchange or the number of ranks.
        """
        if "starling" not in state_dict:
            raise ValueError("the state is not one of a DistributedOptimizer; load it into the wrapped optimizer "
                             "before the DistributedOptimizer is made")
        whole = dict(state_dict["starling"])
        own = _to_bytes({key: value for key, value in state_dict.items() if key != "starling"})
        whole["optimizer"] = whole["optimizer"] | {name: own for name in whole.pop("own")}
        self._loop.load_state(whole)

    def statistics(self) -> dict[str, float]:
        """Returns what the exchange reports about itself, such as the disagreement of the replicas.

        Collective. `starling strategies` explains the names.
        """
        return self._loop.statistics()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Is refused, because the exchange has been made for the parameters that the optimizer had.

        Raises:
            ValueError: Always.
        """
        raise ValueError("a DistributedOptimizer cannot take further parameters; add the group to the wrapped optimizer "
                         "and make a new DistributedOptimizer")

    def __getstate__(self) -> dict[str, Any]:
        """Refuses to copy or pickle this object, because it belongs to this rank's group."""
        raise TypeError("a DistributedOptimizer cannot be copied or pickled; use state_dict()")

    def __repr__(self) -> str:
        """Returns a description with the settings of each group of parameters."""
        return f"DistributedOptimizer({self.optimizer!r})"


def _split(model: torch.nn.Module, optimizer: torch.optim.Optimizer
           ) -> tuple[list[tuple[str, torch.Tensor]], list[tuple[str, torch.Tensor]]]:
    """Returns the model's parameters that the optimizer updates, and the remaining ones, with their names."""
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    parameters, frozen = [], []
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu":
            raise ValueError(f"{name} is on {parameter.device}; DistributedOptimizer trains on the CPU only, so move the "
                             "model there by model.cpu() before the optimizer is made")
        known = id(parameter) in updated
        updated.discard(id(parameter))
        (parameters if known and parameter.requires_grad else frozen).append((name, parameter))
    if updated:
        raise ValueError(f"the optimizer has {len(updated)} parameters that are not the model's; give the module that owns "
                         "all of them, or one optimizer for each module")
    return parameters, frozen
