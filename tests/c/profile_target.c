/* ranks: 1 2 5 */
/* preload: profile_preload */
/* expect: profile: gaspi_write 7 gaspi_barrier 5 */
/*
 * A program of 7 writes and 5 barriers for the preloaded profiler to count. The library itself
 * never calls gaspi_*, so that nothing else is counted: creating the segment has a barrier too.
 */
#include "check.h"

int main(void) {
  job_start();
  (void)segment_on_all(0, 4096);
  for (int at = 0; at < 7; at++) {
    CHECK_OK(gaspi_write(0, 0, rank_after(1), 0, 64, 8, 0, LIMIT));
  }
  CHECK_OK(gaspi_write_notify(0, 0, rank_after(1), 0, 64, 8, 0, 1, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
  (void)take(0, 0);
  for (int at = 0; at < 4; at++) {
    sync_all();
  }
  job_end();
  return 0;
}
