/* One rank of an MPI: an fp32 sum over all ranks, in place, timed as bench/comm_all_reduce.cc does.
 * bench/peers/all_reduce builds and runs this program.
 *
 * From 64 KB on, each rank writes its tensor anew before each all-reduce, as a training step does. The
 * writing is not timed. Below 64 KB, a timing is the mean of a hundred all-reduces.
 *
 * First argument: the name of the side. Second argument "nonblocking": MPI_Iallreduce and a
 * loop of MPI_Test. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void all_reduce(float* values, size_t count, int nonblocking) {
  MPI_Request request;
  int done = 0;
  if (!nonblocking) {
    MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return;
  }
  MPI_Iallreduce(MPI_IN_PLACE, values, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
  while (!done) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
}

int main(int argc, char** argv) {
  static const size_t sizes[] = {256, 4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  const int nonblocking = argc > 2 && strcmp(argv[2], "nonblocking") == 0;
  double times[300];
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  float* values = malloc(sizes[6]);
  for (size_t i = 0; i < sizes[6] / 4; ++i) values[i] = 1;
  for (int s = 0; s < 7; ++s) {
    const size_t count = sizes[s] / 4, repeat = ((size_t)1 << 30) / sizes[s];
    const int inner = sizes[s] < 65536 ? 100 : 1, outer = repeat > 200 ? 200 : repeat < 16 ? 16 : (int)repeat;
    for (int o = -2; o < outer; ++o) {
      if (inner == 1)
        for (size_t i = 0; i < count; ++i) values[i] = (float)o;
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      for (int i = 0; i < inner; ++i) all_reduce(values, count, nonblocking);
      if (o >= 0) times[o] = (MPI_Wtime() - start) / inner * 1e6;
      MPI_Barrier(MPI_COMM_WORLD); /* a rank on the same core waits until this one has read the clock */
    }
    for (size_t i = 0; i < count; ++i) values[i] = 1;
    qsort(times, (size_t)outer, sizeof(double), ascending);
    if (rank == 0)
      printf("{\"side\": \"%s\", \"bytes\": %zu, \"min_us\": %.3f, \"median_us\": %.3f, \"max_us\": %.3f}\n",
             argv[1], sizes[s], times[0], times[outer / 2], times[outer - 1]);
    fflush(stdout);
  }
  free(values);
  return MPI_Finalize();
}
