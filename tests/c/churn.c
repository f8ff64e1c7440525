/* ranks: 1 2 5 */
/*
 * Threads write, notify and read while the segment that they use is deleted and made anew, smaller
 * and larger, at both ends: each request is done or refused, and none touches memory that is gone.
 */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LOCAL = 0, SHARED = 1, SMALL = 4096, LARGE = 1 << 20, ROUNDS = 24, THREADS = 2 };

static atomic_int done;
static atomic_ulong succeeded;

/* What may become of a request to a segment that comes and goes. */
static void check_code(gaspi_return_t code) {
  CHECK(code == GASPI_SUCCESS || code == GASPI_ERROR || code == GASPI_ERR_INV_SEG ||
        code == GASPI_ERR_INV_LOC_OFF || code == GASPI_ERR_INV_REM_OFF ||
        code == GASPI_ERR_INV_COMMSIZE || code == GASPI_QUEUE_FULL);
  if (code == GASPI_SUCCESS) {
    atomic_fetch_add(&succeeded, 1);
  }
}

static void *use(void *argument) {
  const unsigned number = *(const unsigned *)argument;
  const gaspi_rank_t right = rank_after(1);
  const gaspi_queue_id_t queue = (gaspi_queue_id_t)(number % 2);
  const gaspi_size_t sizes[] = {8, 100, SMALL, LARGE / 2};
  unsigned round = 0;

  while (!atomic_load(&done)) {
    const gaspi_size_t size = sizes[round % 4];
    const gaspi_offset_t far = round % 3 == 0 ? LARGE - size : 0;

    round++;
    check_code(gaspi_write(LOCAL, 0, right, SHARED, far, size, queue, LIMIT));
    check_code(gaspi_write_notify(SHARED, far, right, SHARED, 0, size, number, 1, queue, LIMIT));
    check_code(gaspi_read(SHARED, 0, right, SHARED, far, size, queue, LIMIT));
    check_code(gaspi_notify(SHARED, right, 65535, 1, queue, LIMIT));
    if (gaspi_wait(queue, LIMIT) != GASPI_SUCCESS) {
      CHECK_OK(gaspi_queue_purge(queue, LIMIT));
    }
  }
  return NULL;
}

int main(void) {
  pthread_t threads[THREADS];
  unsigned numbers[THREADS];

  job_start();
  (void)segment_on_all(LOCAL, LARGE);
  for (unsigned at = 0; at < THREADS; at++) {
    numbers[at] = at;
    CHECK(pthread_create(&threads[at], NULL, use, &numbers[at]) == 0);
  }
  for (unsigned round = 0; round < ROUNDS; round++) {
    const gaspi_size_t size = round % 2 == 0 ? LARGE : SMALL;

    CHECK_OK(gaspi_segment_alloc(SHARED, size, GASPI_MEM_UNINITIALIZED));
    CHECK_OK(gaspi_segment_register(SHARED, rank_before(1), LIMIT));
    /* As soon as something got through, so that it is in use. */
    for (unsigned long before = atomic_load(&succeeded); atomic_load(&succeeded) < before + 4;) {
      (void)gaspi_queue_purge(2, LIMIT);
    }
    CHECK_OK(gaspi_segment_delete(SHARED));
  }
  atomic_store(&done, 1);
  for (unsigned at = 0; at < THREADS; at++) {
    CHECK(pthread_join(threads[at], NULL) == 0);
  }
  job_end();
  return 0;
}
