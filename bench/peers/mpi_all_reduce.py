"""One rank of an MPI, started by its mpiexec: bench/peers/all_reduce runs it."""
import sys

import numpy
from mpi4py import MPI

import timing

world = MPI.COMM_WORLD
values = numpy.ones(timing.SIZES[-1] // 4, numpy.float32)
for size in timing.SIZES:
    part = values[: size // 4]
    times = timing.measure(lambda _, part=part: world.Allreduce(MPI.IN_PLACE, part, op=MPI.SUM), world.Barrier, size)
    part[:] = 1
    if world.rank == 0:
        timing.tell(sys.argv[1], size, times)
