/* The part for MPI libraries. */
#include "library.h"

#include <limits.h>
#include <mpi.h>
#include <stdlib.h>

enum { PAGE = 4096 };

int library_start(unsigned rank, unsigned ranks, struct page *page) {
  (void)rank, (void)ranks, (void)page;
  return MPI_Init(NULL, NULL);
}

int library_stop(void) { return MPI_Finalize(); }

int library_buffers(enum memory memory, size_t bytes, float **send, float **receive) {
  size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
  (void)memory;
  free(*send);
  free(*receive);
  *send = aligned_alloc(PAGE, whole);
  *receive = aligned_alloc(PAGE, whole);
  return *send == NULL || *receive == NULL;
}

int library_offers(const struct shape *shape) { return shape->count <= INT_MAX; }

int library_call(const struct shape *shape, const float *send, float *receive) {
  const void *from = shape->in_place ? MPI_IN_PLACE : send;
  int count = (int)shape->count, block = (int)shape->block;
  MPI_Comm world = MPI_COMM_WORLD;
  switch (shape->what) {
    case BARRIER:
      return MPI_Barrier(world);
    case ALLREDUCE:
      return MPI_Allreduce(from, receive, count, MPI_FLOAT, MPI_SUM, world);
    case REDUCE:
      if (shape->in_place && shape->rank != 0) {
        return MPI_Reduce(receive, NULL, count, MPI_FLOAT, MPI_SUM, 0, world);
      }
      return MPI_Reduce(from, receive, count, MPI_FLOAT, MPI_SUM, 0, world);
    case BROADCAST:
      return MPI_Bcast(receive, count, MPI_FLOAT, 0, world);
    case REDUCE_SCATTER:
      return MPI_Reduce_scatter_block(send, receive, block, MPI_FLOAT, MPI_SUM, world);
    case ALLGATHER:
      return MPI_Allgather(from, block, MPI_FLOAT, receive, block, MPI_FLOAT, world);
    case ALLTOALL:
      return MPI_Alltoall(send, block, MPI_FLOAT, receive, block, MPI_FLOAT, world);
    case GATHER:
      return MPI_Gather(send, block, MPI_FLOAT, receive, block, MPI_FLOAT, 0, world);
    case SCATTER:
      return MPI_Scatter(send, block, MPI_FLOAT, receive, block, MPI_FLOAT, 0, world);
    default:
      return 1;
  }
}

int library_barrier(void) { return MPI_Barrier(MPI_COMM_WORLD); }

void library_progress(void) {
  int found;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
}
