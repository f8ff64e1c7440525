/* ranks: 1 2 5 */
/*
 * Threads that go on calling while the rank leaves its job and joins the next one: what they call
 * is done or refused, or there is no job.
 */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SEGMENT = 0, SIZE = 4096, CYCLES = 12, THREADS = 2 };

static atomic_int done;
static atomic_ulong inside;

static void *call_on(void *argument) {
  const gaspi_queue_id_t queue = *(const gaspi_queue_id_t *)argument;

  while (!atomic_load(&done)) {
    gaspi_notification_id_t first;
    gaspi_notification_t value;
    const gaspi_return_t code =
        gaspi_write_notify(SEGMENT, 0, 0, SEGMENT, 64, 8, 1, 1, queue, LIMIT);

    CHECK(code == GASPI_SUCCESS || code == GASPI_ERROR || code == GASPI_ERR_NOINIT ||
          code == GASPI_ERR_INV_SEG || code == GASPI_QUEUE_FULL);
    if (code == GASPI_SUCCESS) {
      atomic_fetch_add(&inside, 1);
    }
    if (gaspi_wait(queue, LIMIT) == GASPI_ERROR) {
      (void)gaspi_queue_purge(queue, LIMIT);
    }
    /* Sleeps until the rank leaves, or the next write comes. */
    (void)gaspi_notify_waitsome(SEGMENT, 1, 1, &first, 5);
    (void)gaspi_notify_reset(SEGMENT, 1, &value);
  }
  return NULL;
}

int main(void) {
  pthread_t threads[THREADS];
  gaspi_queue_id_t queues[THREADS];

  for (unsigned at = 0; at < THREADS; at++) {
    queues[at] = (gaspi_queue_id_t)at;
  }
  for (unsigned cycle = 0; cycle < CYCLES; cycle++) {
    const unsigned long before = atomic_load(&inside);

    job_start();
    (void)segment_on_all(SEGMENT, SIZE);
    if (cycle == 0) {
      for (unsigned at = 0; at < THREADS; at++) {
        CHECK(pthread_create(&threads[at], NULL, call_on, &queues[at]) == 0);
      }
    }
    /* The threads of this rank have reached the job. */
    while (atomic_load(&inside) < before + 20) {
      CHECK_OK(gaspi_wait(3, LIMIT));
    }
    job_end();
  }
  atomic_store(&done, 1);
  for (unsigned at = 0; at < THREADS; at++) {
    CHECK(pthread_join(threads[at], NULL) == 0);
  }
  return 0;
}
