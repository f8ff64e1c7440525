/*
 * The library with writes that are lost: those of LOSSY_SIZE bytes by rank LOSSY_RANK through queue
 * LOSSY_QUEUE.
 */
#include <PGASPI.h>
#include <stdlib.h>

static int is(const char *name, unsigned long value) {
  const char *text = getenv(name);
  return text != NULL && strtoul(text, NULL, 10) == value;
}

gaspi_return_t gaspi_write(gaspi_segment_id_t segment_id_local, gaspi_offset_t offset_local,
                           gaspi_rank_t rank, gaspi_segment_id_t segment_id_remote,
                           gaspi_offset_t offset_remote, gaspi_size_t size, gaspi_queue_id_t queue,
                           gaspi_timeout_t timeout) {
  gaspi_rank_t own;
  if (is("LOSSY_SIZE", size) && is("LOSSY_QUEUE", queue) &&
      pgaspi_proc_rank(&own) == GASPI_SUCCESS && is("LOSSY_RANK", own)) {
    return GASPI_SUCCESS;
  }
  return pgaspi_write(segment_id_local, offset_local, rank, segment_id_remote, offset_remote, size,
                      queue, timeout);
}
