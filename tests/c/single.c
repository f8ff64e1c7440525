/* ranks: 1 */
/* launcher: none */
/*
 * A program that nobody launched is a job of one rank, in which everything works.
 */
#include "check.h"

#include <pthread.h>

static void *sender(void *argument) {
  (void)argument;
  CHECK_OK(gaspi_passive_send(0, 0, 0, 16, LIMIT));
  return NULL;
}

int main(void) {
  gaspi_rank_t rank = 9;
  gaspi_atomic_value_t old = 9;
  gaspi_group_t group = 0;
  gaspi_double in = 2.5;
  gaspi_double out = 0;
  pthread_t thread;
  char *memory;

  job_start();
  CHECK(my_rank == 0 && ranks == 1);
  CHECK_OK(gaspi_proc_local_rank(&rank));
  CHECK(rank == 0);
  CHECK_OK(gaspi_proc_local_num(&rank));
  CHECK(rank == 1);
  CHECK_OK(gaspi_proc_ping(0, LIMIT));
  CHECK_OK(gaspi_connect(0, LIMIT));

  memory = segment_on_all(0, 4096);
  CHECK_OK(gaspi_segment_register(0, 0, LIMIT));
  memcpy(memory, "sixteen letters", 16);
  CHECK_OK(gaspi_write_notify(0, 0, 0, 0, 100, 16, 1, 2, 0, LIMIT));
  CHECK(take(0, 1) == 2);
  CHECK_OK(gaspi_read(0, 200, 0, 0, 100, 16, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
  CHECK(memcmp(memory + 200, "sixteen letters", 16) == 0);
  CHECK_OK(gaspi_atomic_fetch_add(0, 1024, 0, 5, &old, LIMIT));
  CHECK(old == 0);

  CHECK(pthread_create(&thread, NULL, sender, NULL) == 0);
  CHECK_OK(gaspi_passive_receive(0, 300, &rank, 16, LIMIT));
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(rank == 0 && memcmp(memory + 300, "sixteen letters", 16) == 0);

  CHECK_OK(gaspi_group_create(&group));
  CHECK_OK(gaspi_group_add(group, 0));
  CHECK_OK(gaspi_group_commit(group, LIMIT));
  CHECK_OK(gaspi_barrier(group, GASPI_TEST));
  CHECK_OK(gaspi_allreduce(&in, &out, 1, GASPI_OP_SUM, GASPI_TYPE_DOUBLE, group, GASPI_TEST));
  CHECK(out == 2.5);
  sync_all();
  job_end();
  return 0;
}
