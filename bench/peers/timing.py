"""What every side of bench/peers/all_reduce measures, so that all measure the same: an fp32 sum over all ranks, in place."""
import json
import time

SIZES = [256, 4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def repetitions(bytes_):
    """(all-reduces in one timing, timings)"""
    inner = max(1, min(100, (1 << 20) // bytes_))
    return inner, max(8, min(100, (256 << 20) // (bytes_ * inner)))


def measure(all_reduce, barrier, bytes_):
    """Seconds of an all-reduce, a list; all_reduce(bytes) runs one."""
    inner, outer = repetitions(bytes_)
    times = []
    for number in range(-2, outer):
        barrier()
        start = time.perf_counter()
        for _ in range(inner):
            all_reduce(bytes_)
        if number >= 0:
            times.append((time.perf_counter() - start) / inner)
    return times


def tell(side, bytes_, times):
    times = sorted(times)
    print(json.dumps({"side": side, "bytes": bytes_, "min_us": times[0] * 1e6, "median_us": times[len(times) // 2] * 1e6,
                      "max_us": times[-1] * 1e6}), flush=True)
