/* ranks: 1 2 5 */
/* link: static shared */
/* expect: profile: gaspi_write 3 gaspi_barrier 2 */
/*
 * The profiler of profile_preload.c linked into the program, in front of libgaspi.a (whose gaspi_*
 * are weak) or of libgaspi.so: its gaspi_write and gaspi_barrier are the ones that are called.
 */
#include "profile_preload.c"

#include "check.h"

int main(void) {
  job_start();
  (void)segment_on_all(0, 4096);
  CHECK(atomic_load(&profiled_writes) == 0 && atomic_load(&profiled_barriers) == 0);
  for (unsigned long at = 1; at <= 3; at++) {
    CHECK_OK(gaspi_write(0, 0, rank_after(1), 0, 64, 8, 0, LIMIT));
    CHECK(atomic_load(&profiled_writes) == at);
  }
  CHECK_OK(gaspi_wait(0, LIMIT));
  sync_all();
  CHECK(atomic_load(&profiled_barriers) == 1);
  CHECK_OK(pgaspi_barrier(GASPI_GROUP_ALL, LIMIT));
  CHECK(atomic_load(&profiled_barriers) == 1);
  job_end();
  CHECK(atomic_load(&profiled_barriers) == 2);
  return 0;
}
