"""Starling's collectives as a backend of torch.distributed, found by its name:

    torch.distributed.init_process_group("starling")

Read from the environment: MASTER_ADDR and, for ranks on several hosts, STARLING_KEY_FILE (the job key, the same on each
host) and STARLING_INTERFACE (an interface or address of this host; by default the one that leads to rank 0).
Sets DDP_DISABLE_COMM_MEM=0 unless it is set, or NCCL is there too: DDP then asks the backend for the memory of its buckets.

Tensors of GPUs go to torch's NCCL, which is made beside ours where torch sees a GPU and has NCCL. STARLING_NCCL=0: without.
"""
import atexit
import os

import torch  # noqa: F401  (its libraries, before ours)
import torch.distributed as dist

from starling_c10d import _C

_backends = []  # all that were made: ended groups keep no resources


def _add_gpus(options, backend_options, ours):
    """The group's backend for CUDA: NCCL, which connects at its first operation; ours without NCCL, for the sake of its error."""
    if not torch.cuda.is_available() or os.environ.get("STARLING_NCCL", "1") == "0":
        return False
    cuda = torch.device("cuda")
    if cuda in options.process_group._device_types:
        return True  # "cuda:nccl,cpu:starling"
    kinds = dist.ProcessGroup.BackendType
    if not dist.is_nccl_available():
        options.process_group._register_backend(cuda, kinds.CUSTOM, ours)
        return False
    of_cpu, parent = options.store, options.split_from
    options.store, options.split_from = dist.PrefixStore("nccl/", of_cpu), None  # the parent would be of another backend
    try:
        nccl_options = backend_options if isinstance(backend_options, dist.ProcessGroupNCCL.Options) else None
        nccl = dist.Backend._plugins["NCCL"].creator_fn(options, nccl_options)
    finally:
        options.store, options.split_from = of_cpu, parent
    options.process_group._register_backend(cuda, kinds.NCCL, nccl)
    return True


def _create(options, backend_options):
    ranks = list(options.global_ranks_in_group)
    backend = _C.create(store=options.store, rank=options.group_rank, size=options.group_size,
                        timeout_s=options.timeout.total_seconds(), name=str(options.group_id), world_ranks=ranks,
                        key_file=os.environ.get("STARLING_KEY_FILE", ""),
                        interface=os.environ.get("STARLING_INTERFACE", ""),
                        master_host=os.environ.get("MASTER_ADDR", ""), reconfigurable=options.enable_reconfigure)
    _backends.append(backend)
    if not _add_gpus(options, backend_options, backend):
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")  # read when a DDP is made
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
