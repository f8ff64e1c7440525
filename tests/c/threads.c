/* ranks: 1 2 5 */
/*
 * GASPI_Threads.h: the pool, numbers of threads, barriers of threads and of all ranks' threads.
 */
#include "check.h"

#include <GASPI_Threads.h>

#include <sched.h>
#include <stdatomic.h>

enum { POOL = 3, ROUNDS = 50 };

static atomic_uint registered;
static atomic_uint arrived;
static atomic_uint finished;
static atomic_uint seen;

static void *work(void *argument) {
  gaspi_int tid = -1;
  gaspi_int again = -1;

  CHECK_OK(gaspi_threads_register(&tid));
  CHECK(tid >= 0 && tid < POOL);
  CHECK((atomic_fetch_or(&seen, 1u << tid) & 1u << tid) == 0);
  CHECK_OK(gaspi_threads_get_tid(&again));
  CHECK(again == tid);
  CHECK(argument == &registered);
  atomic_fetch_add(&registered, 1);
  while (atomic_load(&registered) < POOL) {
    sched_yield();
  }

  for (unsigned round = 1; round <= ROUNDS; round++) {
    atomic_fetch_add(&arrived, 1);
    gaspi_threads_sync();
    CHECK(atomic_load(&arrived) == POOL * round);
    gaspi_threads_sync();
  }
  for (unsigned round = 0; round < 10; round++) {
    CHECK_OK(gaspi_threads_sync_all(GASPI_GROUP_ALL, LIMIT));
  }
  CHECK_ERR(gaspi_threads_sync_all(99, LIMIT), GASPI_ERR_INV_GROUP);
  gaspi_threads_sync();
  atomic_fetch_add(&finished, 1);
  return NULL;
}

int main(void) {
  gaspi_int number = 0;

  job_start();
  CHECK_OK(gaspi_threads_get_num_cores(&number));
  CHECK(number >= 1);
  CHECK_ERR(gaspi_threads_get_num_cores(NULL), GASPI_ERR_NULLPTR);
  CHECK_ERR(gaspi_threads_run(work, &registered), GASPI_ERROR);
  CHECK(gaspi_threads_init_user(0) != GASPI_SUCCESS);

  CHECK_OK(gaspi_threads_init_user(POOL));
  CHECK_OK(gaspi_threads_get_total(&number));
  CHECK(number == POOL);
  CHECK_ERR(gaspi_threads_get_total(NULL), GASPI_ERR_NULLPTR);
  CHECK_ERR(gaspi_threads_run(NULL, NULL), GASPI_ERR_NULLPTR);
  for (int at = 0; at < POOL; at++) {
    CHECK_OK(gaspi_threads_run(work, &registered));
  }
  while (atomic_load(&finished) < POOL) {
    sched_yield();
  }
  CHECK(atomic_load(&seen) == (1u << POOL) - 1);
  CHECK_OK(gaspi_threads_term());
  job_end();
  return 0;
}
