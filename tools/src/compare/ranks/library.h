/*
 * What burst.c wants of a library. gaspi.c, mpi.c and oneccl.cpp are the three that there are; one
 * of them is linked with burst.c.
 *
 * Functions return 0 on success. Elements are floats, operations sum.
 */
#ifndef LIBRARY_H
#define LIBRARY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum what {
  STOP = 0,
  BARRIER = 1,
  ALLREDUCE = 2,
  REDUCE = 3,
  BROADCAST = 4,
  REDUCE_SCATTER = 5,
  ALLGATHER = 6,
  ALLTOALL = 7,
  GATHER = 8,
  SCATTER = 9
};

enum memory { PRIVATE = 0, SEGMENT = 1 };

/*
 * One operation, as it is repeated. `count` is that of the larger of both buffers: what allreduce
 * sums, and all blocks together of operations with blocks. The root is rank 0.
 */
struct shape {
  enum what what;
  int in_place;
  unsigned rank, ranks;
  /* count, and elements for each rank. */
  size_t count, block;
};

/* What all ranks see, for libraries whose ranks have to be told something before they can talk:
 * `set` is stored by release when `bytes` are there. */
struct page {
  unsigned set;
  char bytes[1020];
};

int library_start(unsigned rank, unsigned ranks, struct page *page);
int library_stop(void);

/* Buffers of `bytes` each, on all ranks together; those of the call before are gone. */
int library_buffers(enum memory memory, size_t bytes, float **send, float **receive);

/* Whether it can do this at all. */
int library_offers(const struct shape *shape);

/* The operation, blocking. */
int library_call(const struct shape *shape, const float *send, float *receive);

int library_barrier(void);

/* Called now and then by a rank that waits for others outside of the library. */
void library_progress(void);

#ifdef __cplusplus
}
#endif

#endif
