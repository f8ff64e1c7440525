/*
 * Another library, for tests of gaspi-bench compare: MPI calls made of all-reduces by libgaspi.
 * With FAKE_MPI_WRONG in the environment each first element is wrong; with FAKE_MPI_SLOW_US a call
 * takes at least so long; from FAKE_MPI_HANG elements on a call never returns, and from
 * FAKE_MPI_END on rank 1 ends in it.
 */
#define _DEFAULT_SOURCE
#include "mpi.h"

#include <GASPI.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static gaspi_rank_t rank, ranks;

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text == NULL ? otherwise : atoi(text);
}

int MPI_Init(int *argc, char ***argv) {
  gaspi_config_t config;
  (void)argc, (void)argv;
  gaspi_config_get(&config);
  config.allreduce_elem_max = 1u << 20;
  return gaspi_config_set(config) || gaspi_proc_init(GASPI_BLOCK) || gaspi_proc_rank(&rank) ||
         gaspi_proc_num(&ranks);
}

int MPI_Finalize(void) { return gaspi_proc_term(GASPI_BLOCK); }

int MPI_Barrier(MPI_Comm comm) {
  (void)comm;
  return gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK);
}

int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status) {
  (void)source, (void)tag, (void)comm, (void)status;
  *flag = 0;
  return 0;
}

int MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  int hang = number("FAKE_MPI_HANG", 0), end = number("FAKE_MPI_END", 0);
  int slow = number("FAKE_MPI_SLOW_US", 0), failed;
  void *send = from == MPI_IN_PLACE ? to : (void *)(size_t)from;
  if (slow > 0) usleep((useconds_t)slow);
  while (hang > 0 && count >= hang) pause();
  if (end > 0 && count >= end && rank == 1) {
    fputs("it rains\n", stderr);
    _exit(7);
  }
  failed = gaspi_allreduce(send, to, (gaspi_number_t)count, GASPI_OP_SUM, GASPI_TYPE_FLOAT,
                               GASPI_GROUP_ALL, GASPI_BLOCK);
  (void)type, (void)op, (void)comm;
  if (getenv("FAKE_MPI_WRONG") != NULL) *(float *)to += 1;
  return failed;
}

/* The sum of what each rank has at `at` of `count` floats, zeroes elsewhere. */
static int together(const float *part, size_t at, size_t some, float *all, size_t count) {
  float *own = calloc(count, sizeof *own);
  int failed;
  if (own == NULL) return 1;
  memcpy(own + at, part, some * sizeof *own);
  failed = MPI_Allreduce(own, all, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  free(own);
  return failed;
}

int MPI_Reduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, int root,
               MPI_Comm comm) {
  const float *own = from == MPI_IN_PLACE ? to : from;
  float *all = malloc((size_t)count * sizeof *all);
  int failed = all == NULL || together(own, 0, (size_t)count, all, (size_t)count);
  (void)type, (void)op, (void)comm;
  if (!failed && rank == root) memcpy(to, all, (size_t)count * sizeof *all);
  free(all);
  return failed;
}

int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  (void)type, (void)comm;
  return together(buffer, 0, rank == root ? (size_t)count : 0, buffer, (size_t)count);
}

int MPI_Reduce_scatter_block(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                             MPI_Comm comm) {
  size_t block = (size_t)count, whole = block * ranks;
  float *all = malloc(whole * sizeof *all);
  int failed = all == NULL || together(from, 0, whole, all, whole);
  (void)type, (void)op, (void)comm;
  if (!failed) memcpy(to, all + rank * block, block * sizeof *all);
  free(all);
  return failed;
}

int MPI_Allgather(const void *from, int count, MPI_Datatype type, void *to, int to_count,
                  MPI_Datatype to_type, MPI_Comm comm) {
  size_t block = (size_t)count;
  const float *own = from == MPI_IN_PLACE ? (float *)to + rank * block : from;
  (void)type, (void)to_count, (void)to_type, (void)comm;
  return together(own, rank * block, block, to, block * ranks);
}

int MPI_Alltoall(const void *from, int count, MPI_Datatype type, void *to, int to_count,
                 MPI_Datatype to_type, MPI_Comm comm) {
  size_t block = (size_t)count, row = block * ranks;
  float *all = malloc(row * ranks * sizeof *all);
  int failed = all == NULL || together(from, rank * row, row, all, row * ranks);
  (void)type, (void)to_count, (void)to_type, (void)comm;
  for (size_t other = 0; !failed && other < ranks; other++) {
    memcpy((float *)to + other * block, all + other * row + rank * block, block * sizeof *all);
  }
  free(all);
  return failed;
}

int MPI_Gather(const void *from, int count, MPI_Datatype type, void *to, int to_count,
               MPI_Datatype to_type, int root, MPI_Comm comm) {
  (void)root;
  return MPI_Allgather(from, count, type, to, to_count, to_type, comm);
}

int MPI_Scatter(const void *from, int count, MPI_Datatype type, void *to, int to_count,
                MPI_Datatype to_type, int root, MPI_Comm comm) {
  size_t block = (size_t)count, whole = block * ranks;
  float *all = malloc(whole * sizeof *all);
  int failed = all == NULL || together(from, 0, rank == root ? whole : 0, all, whole);
  (void)type, (void)to_count, (void)to_type, (void)comm;
  if (!failed) memcpy(to, all + rank * block, block * sizeof *all);
  free(all);
  return failed;
}
