"""The ranks of a job: init(), rank() and world_size().

DistributedOptimizer communicates in the group that this module makes.
"""
from __future__ import annotations

import datetime
import os
import weakref

import torch
import torch.distributed as dist

import starling_c10d

# The training group of each default group of torch.distributed.
_groups: weakref.WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = weakref.WeakKeyDictionary()


def init(backend: str = "starling", timeout: datetime.timedelta | None = None) -> None:
    """Joins the ranks that torchrun or `starling launch` has started. Collective.

    A process that was started alone becomes the only rank. If the program has called
    torch.distributed.init_process_group() before, with any backend, this function keeps that group.

    Args:
        backend: The backend of torch.distributed for the program's own collectives. DistributedOptimizer
            communicates through Starling with any backend.
        timeout: The time after which a rank that waits raises an error. The default is that of torch.
    """
    _register()
    if dist.is_initialized():
        return
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=0, world_size=1)


def rank() -> int:
    """Returns the number of this rank, from 0. It is 0 before init()."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Returns the number of ranks. It is 1 before init()."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _register() -> None:
    """Makes the backend "starling" known to torch.

    The entry point of the package need not be installed.
    """
    if not hasattr(dist.Backend, "STARLING"):
        starling_c10d.register()


def _timeout(group: dist.ProcessGroup) -> datetime.timedelta:
    """Returns the time after which a rank of the group that waits raises an error."""
    devices = group._device_types
    cpu = torch.device("cpu")
    return group._get_backend(cpu if cpu in devices else devices[0]).options._timeout


def training_group() -> dist.ProcessGroup:
    """Returns the group of all ranks in which DistributedOptimizer communicates.

    The group is not the default group, so collectives of the program do not interfere. It has the
    timeout of the default group. The first call for a default group is collective.
    """
    if not dist.is_initialized():
        raise RuntimeError("the ranks have not met; call starling.init() before DistributedOptimizer")
    _register()
    world = dist.group.WORLD
    if world not in _groups:
        _groups[world] = dist.new_group(backend="starling", timeout=_timeout(world))
    return _groups[world]


def training_backend() -> dist.Backend:
    """Returns the backend of training_group()."""
    return training_group()._get_backend(torch.device("cpu"))
