"""Starling's collectives as a backend of torch.distributed, which finds the backend by its name:

    torch.distributed.init_process_group("starling")

Environment variables that the backend reads:
  MASTER_ADDR         host of rank 0
  STARLING_KEY_FILE   file with the job key, which is equal on every host; required for ranks on several hosts
  STARLING_NET_SECURITY  none, auth or encrypt: how data between hosts is protected; equal on every rank
  STARLING_INTERFACE  interface or address of this host; the default is the interface that leads to rank 0
  STARLING_NCCL       0 switches NCCL off

The backend sets DDP_DISABLE_COMM_MEM=0 if the variable is not set and NCCL is not used. DDP then asks the
backend for the memory of its buckets.

If torch sees a GPU and has NCCL, tensors of GPUs go to torch's NCCL.
"""
import atexit
import os

import torch  # noqa: F401  (loads torch's libraries, which _C needs)
import torch.distributed as dist

from starling_c10d import _C

_backends = []  # every backend of this process; an ended one keeps no resources


def _add_gpus(options, backend_options, ours):
    """Registers the group's backend for CUDA tensors. Returns whether that backend is NCCL.

    NCCL connects at its first operation. If torch lacks NCCL, Starling's backend takes CUDA tensors and
    raises an error that says so.
    """
    if not torch.cuda.is_available() or os.environ.get("STARLING_NCCL", "1") == "0":
        return False
    cuda = torch.device("cuda")
    if cuda in options.process_group._device_types:
        return True  # the user asked for "cuda:nccl,cpu:starling"
    kinds = dist.ProcessGroup.BackendType
    if not dist.is_nccl_available():
        options.process_group._register_backend(cuda, kinds.CUSTOM, ours)
        return False
    of_cpu, parent = options.store, options.split_from
    # A parent of another backend cannot be split.
    options.store, options.split_from = dist.PrefixStore("nccl/", of_cpu), None
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
                        net_security=os.environ.get("STARLING_NET_SECURITY", ""),
                        interface=os.environ.get("STARLING_INTERFACE", ""),
                        master_host=os.environ.get("MASTER_ADDR", ""), reconfigurable=options.enable_reconfigure)
    _backends.append(backend)
    if not _add_gpus(options, backend_options, backend):
        # DistributedDataParallel reads it when it is constructed.
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    return backend


@atexit.register
def _leave():
    """Leaves every group if the program ends without destroy_process_group.

    Without this call, the other ranks would report this rank as lost.
    """
    for backend in reversed(_backends):
        backend.shutdown()
    _backends.clear()


def register():
    """Registers the backend with torch.distributed. torch calls this function through its entry point."""
    dist.Backend.register_backend("starling", _create, extended_api=True, devices=["cpu"])
