"""One rank of PyTorch's Gloo, in torchrun's environment: bench/peers/all_reduce runs it."""
import torch
import torch.distributed as dist

import timing

torch.set_num_threads(1)
dist.init_process_group("gloo")
values = torch.ones(timing.SIZES[-1] // 4)
for size in timing.SIZES:
    part = values[: size // 4]
    times = timing.measure(lambda _, part=part: dist.all_reduce(part), dist.barrier, size)
    part.fill_(1)
    if dist.get_rank() == 0:
        timing.tell("gloo", size, times)
dist.destroy_process_group()
