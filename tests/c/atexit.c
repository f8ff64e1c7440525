/* ranks: 1 2 5 */
/*
 * The library is used, and left, by a handler that runs after main.
 */
#include "check.h"

static void leave(void) {
  gaspi_uint mine = 1;
  gaspi_uint sum = 0;

  CHECK_OK(gaspi_write_notify(0, 0, rank_after(1), 0, 8, 8, 1, 7, 0, LIMIT));
  CHECK(take(0, 1) == 7);
  CHECK_OK(gaspi_wait(0, LIMIT));
  CHECK_OK(gaspi_allreduce(&mine, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_UINT, GASPI_GROUP_ALL, LIMIT));
  CHECK(sum == ranks);
  CHECK_ERR(gaspi_barrier(99, LIMIT), GASPI_ERR_INV_GROUP);
  gaspi_printf("rank %d leaves\n", (int)my_rank);
  job_end();
}

int main(void) {
  CHECK(atexit(leave) == 0);
  job_start();
  (void)segment_on_all(0, 64);
  return 0;
}
