/* ranks: 1 2 5 */
/*
 * Global atomics: sums, distinct tickets, a lock by compare and swap, wrap-around, threads.
 */
#include "check.h"

#include <pthread.h>
#include <sched.h>

enum { SEGMENT = 0, SCRATCH = 1, SIZE = 1 << 16, ADDS = 2000, THREADS = 4, LOCKS = 100 };

static gaspi_atomic_value_t fetch_add(gaspi_offset_t offset, gaspi_rank_t rank,
                                      gaspi_atomic_value_t add) {
  gaspi_atomic_value_t old = 0;
  CHECK_OK(gaspi_atomic_fetch_add(SEGMENT, offset, rank, add, &old, LIMIT));
  return old;
}

static gaspi_atomic_value_t compare_swap(gaspi_offset_t offset, gaspi_rank_t rank,
                                         gaspi_atomic_value_t comparator,
                                         gaspi_atomic_value_t value) {
  gaspi_atomic_value_t old = 0;
  CHECK_OK(gaspi_atomic_compare_swap(SEGMENT, offset, rank, comparator, value, &old, LIMIT));
  return old;
}

static void wrong_arguments(void) {
  gaspi_atomic_value_t old = 4711;

  for (gaspi_offset_t offset = 1; offset < 8; offset++) {
    CHECK_ERR(gaspi_atomic_fetch_add(SEGMENT, offset, 0, 1, &old, LIMIT), GASPI_ERR_UNALIGN_OFF);
    CHECK_ERR(gaspi_atomic_compare_swap(SEGMENT, offset, 0, 1, 1, &old, LIMIT),
              GASPI_ERR_UNALIGN_OFF);
  }
  CHECK_ERR(gaspi_atomic_fetch_add(SEGMENT, SIZE, 0, 1, &old, LIMIT), GASPI_ERR_INV_REM_OFF);
  CHECK_ERR(gaspi_atomic_compare_swap(SEGMENT, SIZE, 0, 1, 1, &old, LIMIT),
            GASPI_ERR_INV_REM_OFF);
  /* A segment whose end is no multiple of 8 has no room for a value there. */
  CHECK_ERR(gaspi_atomic_fetch_add(SCRATCH, 8, 0, 1, &old, LIMIT), GASPI_ERR_INV_REM_OFF);
  CHECK_ERR(gaspi_atomic_fetch_add(9, 0, 0, 1, &old, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_atomic_fetch_add(SEGMENT, 0, ranks, 1, &old, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_atomic_fetch_add(SEGMENT, 0, 0, 1, NULL, LIMIT), GASPI_ERR_NULLPTR);
  CHECK_ERR(gaspi_atomic_compare_swap(SEGMENT, 0, 0, 1, 1, NULL, LIMIT), GASPI_ERR_NULLPTR);
  CHECK(old == 4711);
}

/* On one's own memory, where nobody else is: exact results. */
static void alone(const char *memory) {
  const gaspi_atomic_value_t *value =
      (const gaspi_atomic_value_t *)(const void *)(memory + SIZE - 8);

  CHECK(fetch_add(SIZE - 8, my_rank, 5) == 0);
  CHECK(fetch_add(SIZE - 8, my_rank, (gaspi_atomic_value_t)-1) == 5);
  CHECK(*value == 4);
  CHECK(fetch_add(SIZE - 8, my_rank, (gaspi_atomic_value_t)-5) == 4);
  CHECK(*value == (gaspi_atomic_value_t)-1);
  CHECK(fetch_add(SIZE - 8, my_rank, 1) == (gaspi_atomic_value_t)-1);
  CHECK(*value == 0);
  CHECK(compare_swap(SIZE - 8, my_rank, 1, 2) == 0);
  CHECK(*value == 0);
  CHECK(compare_swap(SIZE - 8, my_rank, 0, 77) == 0);
  CHECK(*value == 77);
  CHECK(compare_swap(SIZE - 8, my_rank, 77, 0) == 77);
}

/* Tickets drawn from rank 0 by all ranks are all different. */
static void tickets(const char *memory) {
  for (unsigned at = 0; at < ADDS; at++) {
    const gaspi_atomic_value_t ticket = fetch_add(0, 0, 1);
    CHECK(ticket < (gaspi_atomic_value_t)ADDS * ranks);
    /* Each ticket sets a bit of its own: one drawn twice would carry into the next. */
    (void)fetch_add(8 + ticket % 1000 * 8, 0, (gaspi_atomic_value_t)1 << (ticket / 1000 % 64));
  }
  sync_all();
  if (my_rank == 0) {
    const gaspi_atomic_value_t *value = (const gaspi_atomic_value_t *)(const void *)memory;
    const gaspi_atomic_value_t all = (gaspi_atomic_value_t)ADDS * ranks;
    CHECK(value[0] == all);
    for (unsigned at = 0; at < 1000; at++) {
      gaspi_atomic_value_t expected = 0;
      for (gaspi_atomic_value_t ticket = at; ticket < all; ticket += 1000) {
        expected += (gaspi_atomic_value_t)1 << (ticket / 1000 % 64);
      }
      CHECK(value[1 + at] == expected);
    }
  }
  sync_all();
}

/* A lock on the last rank guards a counter that is read and written without atomics. */
static void lock(char *memory) {
  const gaspi_rank_t owner = (gaspi_rank_t)(ranks - 1);
  const gaspi_offset_t lock_at = 16384;
  const gaspi_offset_t counter_at = 16384 + 64;
  gaspi_ulong *mine = (gaspi_ulong *)(void *)(memory + 32768);

  for (unsigned at = 0; at < LOCKS; at++) {
    while (compare_swap(lock_at, owner, 0, my_rank + 1u) != 0) {
      sched_yield();
    }
    CHECK_OK(gaspi_read(SEGMENT, 32768, owner, SEGMENT, counter_at, 8, 0, LIMIT));
    CHECK_OK(gaspi_wait(0, LIMIT));
    *mine += 1;
    CHECK_OK(gaspi_write(SEGMENT, 32768, owner, SEGMENT, counter_at, 8, 0, LIMIT));
    CHECK_OK(gaspi_wait(0, LIMIT));
    CHECK(compare_swap(lock_at, owner, my_rank + 1u, 0) == my_rank + 1u);
  }
  sync_all();
  if (my_rank == owner) {
    CHECK(*(gaspi_ulong *)(void *)(memory + counter_at) == (gaspi_ulong)LOCKS * ranks);
  }
  sync_all();
}

static void *adder(void *argument) {
  (void)argument;
  for (unsigned at = 0; at < ADDS; at++) {
    (void)fetch_add(49152, rank_after(1), 3);
  }
  return NULL;
}

static void threads(const char *memory) {
  pthread_t thread[THREADS];

  for (int at = 0; at < THREADS; at++) {
    CHECK(pthread_create(&thread[at], NULL, adder, NULL) == 0);
  }
  for (int at = 0; at < THREADS; at++) {
    CHECK(pthread_join(thread[at], NULL) == 0);
  }
  sync_all();
  CHECK(*(const gaspi_ulong *)(const void *)(memory + 49152) == 3ul * THREADS * ADDS);
  sync_all();
}

int main(void) {
  gaspi_atomic_value_t max = 0;
  char *memory;

  job_start();
  CHECK_OK(gaspi_atomic_max(&max));
  CHECK(max == (gaspi_atomic_value_t)-1);
  memory = segment_on_all(SEGMENT, SIZE);
  (void)segment_on_all(SCRATCH, 12);
  wrong_arguments();
  alone(memory);
  sync_all();
  tickets(memory);
  lock(memory);
  threads(memory);
  job_end();
  return 0;
}
