"""Starling: distributed training of PyTorch models, and the program `starling`.

    import starling

    starling.init()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer = starling.DistributedOptimizer(model, optimizer, exchange="gossip")

`init()`, `rank()`, `world_size()` and `DistributedOptimizer` are the training API. torch is imported at the
first use of one of them.

The command `starling` and `python -m starling` run the program. `cmake_prefix()` names the CMake package.
Both exist in an installation of the wheel of `make wheel` only. The backend of torch.distributed is the
package `starling_c10d`, which torch imports by itself.
"""
from __future__ import annotations

import importlib
import pathlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starling.distributed_optimizer import DistributedOptimizer
    from starling.process import init, rank, world_size

__all__ = ["DistributedOptimizer", "cmake_prefix", "init", "program", "rank", "world_size"]

_HERE = pathlib.Path(__file__).resolve().parent
_LAZY = {"DistributedOptimizer": "starling.distributed_optimizer", "init": "starling.process", "rank": "starling.process",
         "world_size": "starling.process"}


def program() -> str:
    """Returns the path of the program."""
    return str(_HERE / "bin" / "starling")


def cmake_prefix() -> str:
    """Returns the folder to give as CMAKE_PREFIX_PATH, so that find_package(Starling) succeeds."""
    return str(_HERE)


def __getattr__(name: str) -> Any:
    """Imports the training API at its first use, because the program and CMake do not need torch."""
    if name not in _LAZY:
        raise AttributeError(f"module 'starling' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns the names of the module, those that are imported at their first use included."""
    return sorted({*globals(), *__all__})
