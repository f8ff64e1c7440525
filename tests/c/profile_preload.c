/* build: shared */
/*
 * A profiler as a shared library, for LD_PRELOAD: counts two procedures, passes them on, and
 * prints the counts when the process ends:
 *
 *   profile: gaspi_write 7 gaspi_barrier 5
 */
#include <GASPI.h>
#include <PGASPI.h>

#include <stdatomic.h>
#include <stdio.h>

atomic_ulong profiled_writes;
atomic_ulong profiled_barriers;

gaspi_return_t gaspi_write(gaspi_segment_id_t segment_id_local, gaspi_offset_t offset_local,
                           gaspi_rank_t rank, gaspi_segment_id_t segment_id_remote,
                           gaspi_offset_t offset_remote, gaspi_size_t size, gaspi_queue_id_t queue,
                           gaspi_timeout_t timeout) {
  atomic_fetch_add(&profiled_writes, 1);
  return pgaspi_write(segment_id_local, offset_local, rank, segment_id_remote, offset_remote, size,
                      queue, timeout);
}

gaspi_return_t gaspi_barrier(gaspi_group_t group, gaspi_timeout_t timeout) {
  atomic_fetch_add(&profiled_barriers, 1);
  return pgaspi_barrier(group, timeout);
}

__attribute__((destructor)) static void print_profile(void) {
  printf("profile: gaspi_write %lu gaspi_barrier %lu\n", atomic_load(&profiled_writes),
         atomic_load(&profiled_barriers));
  fflush(stdout);
}
