"""One rank that times all-reduces of torch.distributed as comm_bench does.

  torch_all_reduce.py [BACKEND [LARGEST]]

BACKEND is gloo by default. LARGEST is the size of the largest tensor in bytes, by default 64 MB. The rank
reads torchrun's environment variables. bench/peers/all_reduce and bench/peers/between_hosts run this program.
"""
import json
import sys
import time

import torch
import torch.distributed as dist

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "gloo"
LARGEST = int(sys.argv[2]) if len(sys.argv) > 2 else 64 << 20
SIZES = [n for n in (256, 1024, 4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20) if n <= LARGEST]

torch.set_num_threads(1)
dist.init_process_group(BACKEND)
values = torch.ones(SIZES[-1] // 4)
for size in SIZES:
    part = values[: size // 4]
    inner, outer = (100, 10) if size < 65536 else (1, max(8, min(100, (1 << 29) // size)))
    times = []
    for number in range(-2, outer):
        if inner == 1:
            part.fill_(number)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(inner):
            dist.all_reduce(part)
        if number >= 0:
            times.append((time.perf_counter() - start) / inner * 1e6)
        dist.barrier()  # keeps ranks that share a core from running before this rank has read the clock
    part.fill_(1)
    times.sort()
    if dist.get_rank() == 0:
        print(json.dumps({"side": BACKEND, "bytes": size, "min_us": times[0], "median_us": times[len(times) // 2],
                          "max_us": times[-1]}), flush=True)
dist.destroy_process_group()
