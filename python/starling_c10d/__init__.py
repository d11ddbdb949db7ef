"""Starling's collectives as a backend of torch.distributed, found by its name:

    torch.distributed.init_process_group("starling")

Read from the environment: MASTER_ADDR and, for ranks on several hosts, STARLING_KEY_FILE (the job key, the same on each
host) and STARLING_INTERFACE (an interface or address of this host; by default the one that leads to rank 0).
Sets DDP_DISABLE_COMM_MEM=0 unless it is set: DDP then asks the backend for the memory of its buckets.
"""
import atexit
import os

import torch  # noqa: F401  (its libraries, before ours)
import torch.distributed as dist

from starling_c10d import _C

_backends = []  # all that were made: ended groups keep no resources


def _create(options, backend_options):
    ranks = list(options.global_ranks_in_group)
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")  # read when a DDP is made; other backends offer no memory
    backend = _C.create(store=options.store, rank=options.group_rank, size=options.group_size,
                        timeout_s=options.timeout.total_seconds(), name=str(options.group_id), world_ranks=ranks,
                        key_file=os.environ.get("STARLING_KEY_FILE", ""),
                        interface=os.environ.get("STARLING_INTERFACE", ""),
                        master_host=os.environ.get("MASTER_ADDR", ""), reconfigurable=options.enable_reconfigure)
    _backends.append(backend)
    return backend


@atexit.register
def _leave():
    """A program that ends without destroy_process_group leaves its groups in order, so nobody takes it for dead."""
    for backend in reversed(_backends):
        backend.shutdown()
    _backends.clear()


def register():
    """Makes the backend known to torch.distributed; its entry point calls this."""
    dist.Backend.register_backend("starling", _create, extended_api=True, devices=["cpu"])
