/*
 * The part for libgaspi, which is linked by the names of its binary interface, so that no installed
 * headers are needed.
 */
#include "library.h"

#include <stdint.h>
#include <stdlib.h>

enum { TYPE_F32 = 34, OP_SUM = 16, ROOT = 0, GROUP_ALL = 0, SEGMENT_ID = 1, PAGE = 4096 };
enum { UNINITIALIZED = 0 };
#define BLOCK UINT64_MAX
#define IN_PLACE ((void *)-1)

/* Options of collective operations: there are none. */
struct options;

int gaspi_proc_init(unsigned long timeout);
int gaspi_proc_term(unsigned long timeout);
int gaspi_barrier(unsigned char group, unsigned long timeout);
int gaspi_segment_create(unsigned char id, unsigned long size, unsigned char group,
                         unsigned long timeout, unsigned policy);
int gaspi_segment_delete(unsigned char id);
int gaspi_segment_ptr(unsigned char id, void **pointer);
int gaspi_coll_allreduce(const void *send, void *receive, uint64_t count, unsigned type,
                         uint64_t op, unsigned char group, const struct options *options,
                         unsigned long timeout);
int gaspi_coll_reduce(const void *send, void *receive, uint64_t count, unsigned type, uint64_t op,
                      unsigned short root, unsigned char group, const struct options *options,
                      unsigned long timeout);
int gaspi_coll_broadcast(const void *send, void *receive, uint64_t count, unsigned type,
                         unsigned short root, unsigned char group, const struct options *options,
                         unsigned long timeout);
int gaspi_coll_reduce_scatter(const void *send, void *receive, uint64_t count, unsigned type,
                              uint64_t op, unsigned char group, const struct options *options,
                              unsigned long timeout);
int gaspi_coll_allgather(const void *send, void *receive, uint64_t count, unsigned type,
                         unsigned char group, const struct options *options, unsigned long timeout);
int gaspi_coll_alltoall(const void *send, void *receive, uint64_t count, unsigned type,
                        unsigned char group, const struct options *options, unsigned long timeout);
int gaspi_coll_gather(const void *send, void *receive, uint64_t count, unsigned type,
                      unsigned short root, unsigned char group, const struct options *options,
                      unsigned long timeout);
int gaspi_coll_scatter(const void *send, void *receive, uint64_t count, unsigned type,
                       unsigned short root, unsigned char group, const struct options *options,
                       unsigned long timeout);

static enum memory kind = PRIVATE;

int library_start(unsigned rank, unsigned ranks, struct page *page) {
  (void)rank, (void)ranks, (void)page;
  return gaspi_proc_init(BLOCK);
}

int library_stop(void) { return gaspi_proc_term(BLOCK); }

static int in_segment(size_t bytes, float **send, float **receive) {
  void *base;
  if (gaspi_segment_create(SEGMENT_ID, 2 * bytes, GROUP_ALL, BLOCK, UNINITIALIZED) != 0) return 1;
  if (gaspi_segment_ptr(SEGMENT_ID, &base) != 0) return 1;
  *send = base;
  *receive = (float *)((char *)base + bytes);
  return 0;
}

int library_buffers(enum memory memory, size_t bytes, float **send, float **receive) {
  size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
  if (kind == SEGMENT) {
    /* No rank is still in an operation with it. */
    if (gaspi_barrier(GROUP_ALL, BLOCK) != 0 || gaspi_segment_delete(SEGMENT_ID) != 0) return 1;
  } else {
    free(*send);
    free(*receive);
  }
  kind = memory;
  if (memory == SEGMENT) return in_segment(whole, send, receive);
  *send = aligned_alloc(PAGE, whole);
  *receive = aligned_alloc(PAGE, whole);
  return *send == NULL || *receive == NULL;
}

int library_offers(const struct shape *shape) {
  (void)shape;
  return 1;
}

int library_call(const struct shape *shape, const float *send, float *receive) {
  const void *from = shape->in_place ? IN_PLACE : send;
  uint64_t count = shape->count, block = shape->block;
  switch (shape->what) {
    case BARRIER:
      return gaspi_barrier(GROUP_ALL, BLOCK);
    case ALLREDUCE:
      return gaspi_coll_allreduce(from, receive, count, TYPE_F32, OP_SUM, GROUP_ALL, NULL, BLOCK);
    case REDUCE:
      /* In place, others than the root have their input where the result would be. */
      if (shape->in_place && shape->rank != ROOT) from = receive;
      return gaspi_coll_reduce(from, receive, count, TYPE_F32, OP_SUM, ROOT, GROUP_ALL, NULL,
                               BLOCK);
    case BROADCAST:
      return gaspi_coll_broadcast(receive, receive, count, TYPE_F32, ROOT, GROUP_ALL, NULL, BLOCK);
    case REDUCE_SCATTER:
      return gaspi_coll_reduce_scatter(send, receive, block, TYPE_F32, OP_SUM, GROUP_ALL, NULL,
                                       BLOCK);
    case ALLGATHER:
      return gaspi_coll_allgather(from, receive, block, TYPE_F32, GROUP_ALL, NULL, BLOCK);
    case ALLTOALL:
      return gaspi_coll_alltoall(send, receive, block, TYPE_F32, GROUP_ALL, NULL, BLOCK);
    case GATHER:
      return gaspi_coll_gather(send, receive, block, TYPE_F32, ROOT, GROUP_ALL, NULL, BLOCK);
    case SCATTER:
      return gaspi_coll_scatter(send, receive, block, TYPE_F32, ROOT, GROUP_ALL, NULL, BLOCK);
    default:
      return 1;
  }
}

int library_barrier(void) { return gaspi_barrier(GROUP_ALL, BLOCK); }

/* The library has a thread for it. */
void library_progress(void) {}
