/* ranks: 1 2 5 */
/*
 * Notifications: values, ranges, order behind data, reads that notify, threads that compete.
 */
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

enum { SEGMENT = 0, SIZE = 1 << 16, ROUNDS = 500, THREADS = 4, COMPETED = 256, MAX_ID = 65535 };

static void post(gaspi_rank_t rank, gaspi_notification_id_t id, gaspi_notification_t value) {
  CHECK_OK(gaspi_notify(SEGMENT, rank, id, value, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
}

static void wrong_arguments(void) {
  gaspi_notification_id_t first = 4711;
  gaspi_notification_t old = 0;

  CHECK_ERR(gaspi_notify(SEGMENT, my_rank, 0, 0, 0, LIMIT), GASPI_ERR_INV_NOTIF_VAL);
  CHECK_ERR(gaspi_notify(SEGMENT, my_rank, MAX_ID + 1, 1, 0, LIMIT), GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_notify_waitsome(SEGMENT, MAX_ID + 1, 1, &first, LIMIT),
            GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_notify_waitsome(SEGMENT, MAX_ID, 2, &first, LIMIT), GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_notify_waitsome(SEGMENT, 1, UINT32_MAX, &first, LIMIT), GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_notify_reset(SEGMENT, MAX_ID + 1, &old), GASPI_ERR_INV_NOTIF_ID);
  CHECK(first == 4711);
  CHECK_OK(gaspi_notify_waitsome(SEGMENT, 5, 0, &first, GASPI_TEST));
}

/* To oneself: the lowest id is found, the last value wins, a reset takes it. */
static void own(void) {
  gaspi_notification_id_t first = 4711;
  gaspi_notification_t value = 99;

  CHECK_RC(gaspi_notify_waitsome(SEGMENT, 0, MAX_ID + 1, &first, GASPI_TEST), GASPI_TIMEOUT);
  CHECK_RC(gaspi_notify_waitsome(SEGMENT, 0, 1, &first, 20), GASPI_TIMEOUT);
  CHECK(first == 4711);
  CHECK_OK(gaspi_notify_reset(SEGMENT, 3, &value));
  CHECK(value == 0);

  post(my_rank, MAX_ID, UINT32_MAX);
  post(my_rank, 300, 1);
  post(my_rank, 300, 2);
  CHECK_OK(gaspi_notify_waitsome(SEGMENT, 0, MAX_ID + 1, &first, LIMIT));
  CHECK(first == 300);
  CHECK_OK(gaspi_notify_waitsome(SEGMENT, 0, MAX_ID + 1, &first, GASPI_TEST));
  CHECK(first == 300);
  CHECK_RC(gaspi_notify_waitsome(SEGMENT, 0, 300, &first, GASPI_TEST), GASPI_TIMEOUT);
  CHECK_OK(gaspi_notify_waitsome(SEGMENT, 300, 1, &first, GASPI_TEST));
  CHECK_OK(gaspi_notify_waitsome(SEGMENT, 301, MAX_ID - 300, &first, GASPI_TEST));
  CHECK(first == MAX_ID);
  CHECK_OK(gaspi_notify_reset(SEGMENT, 300, &value));
  CHECK(value == 2);
  CHECK_OK(gaspi_notify_reset(SEGMENT, 300, NULL));
  CHECK(take(SEGMENT, MAX_ID) == UINT32_MAX);
}

/* Everybody notifies everybody, each with its own id. */
static void from_all(void) {
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_notify(SEGMENT, rank, 1000u + my_rank, my_rank + 1u, 1, LIMIT));
  }
  CHECK_OK(gaspi_wait(1, LIMIT));
  for (unsigned left = ranks; left > 0; left--) {
    gaspi_notification_id_t first = 0;
    gaspi_notification_t value = 0;
    CHECK_OK(gaspi_notify_waitsome(SEGMENT, 1000, ranks, &first, LIMIT));
    CHECK_OK(gaspi_notify_reset(SEGMENT, first, &value));
    CHECK(value == first - 1000 + 1);
  }
  sync_all();
}

/* What was written before, on the same queue to the same rank, is there when the notification is.
 */
static void order(char *memory) {
  const gaspi_rank_t right = rank_after(1);
  const gaspi_rank_t left = rank_before(1);
  uint64_t *out = (uint64_t *)(void *)memory;
  const uint64_t *in = (const uint64_t *)(const void *)(memory + SIZE / 2);

  for (unsigned round = 1; round <= ROUNDS; round++) {
    const size_t last = round % 400;

    for (size_t at = 0; at < 400; at++) {
      out[at] = (uint64_t)my_rank << 32 | round;
    }
    CHECK_OK(gaspi_write(SEGMENT, 0, right, SEGMENT, SIZE / 2, 8 * last + 8, 2, LIMIT));
    if (round % 2 == 0) {
      CHECK_OK(gaspi_notify(SEGMENT, right, 7, round, 2, LIMIT));
    } else {
      CHECK_OK(gaspi_write_notify(SEGMENT, 8, right, SEGMENT, SIZE / 2 + 3200, 8, 7, round, 2,
                                  LIMIT));
    }
    CHECK(take(SEGMENT, 7) == round);
    for (size_t at = 0; at <= last; at++) {
      CHECK(in[at] == ((uint64_t)left << 32 | round));
    }
    if (round % 2 == 1) {
      CHECK(in[400] == ((uint64_t)left << 32 | round));
    }
    CHECK_OK(gaspi_wait(2, LIMIT));
    /* The data was looked at: the sender may go on. */
    CHECK_OK(gaspi_notify(SEGMENT, left, 8, round, 2, LIMIT));
    CHECK(take(SEGMENT, 8) == round);
    CHECK_OK(gaspi_wait(2, LIMIT));
  }
  sync_all();
}

/* Lists that notify, and calls without data. */
static void lists_and_empty(char *memory) {
  const gaspi_rank_t right = rank_after(1);
  const gaspi_rank_t left = rank_before(1);
  gaspi_segment_id_t segments[3] = {SEGMENT, SEGMENT, SEGMENT};
  gaspi_offset_t from[3] = {0, 100, 200};
  gaspi_offset_t to[3] = {1000, 3000, 2000};
  gaspi_size_t sizes[3] = {10, 0, 20};
  gaspi_size_t empty[3] = {0, 0, 0};

  memset(memory, 'a' + my_rank % 20, 1000);
  sync_all();
  CHECK_OK(gaspi_write_list_notify(3, segments, from, right, segments, to, sizes, SEGMENT, 20, 5,
                                   3, LIMIT));
  CHECK(queue_fill(3) == 3);
  CHECK(take(SEGMENT, 20) == 5);
  CHECK(memory[1009] == 'a' + left % 20 && memory[2019] == 'a' + left % 20);
  CHECK_OK(gaspi_wait(3, LIMIT));
  CHECK_OK(gaspi_write_list_notify(3, segments, from, right, segments, to, empty, SEGMENT, 21, 6,
                                   3, LIMIT));
  CHECK(queue_fill(3) == 1);
  CHECK(take(SEGMENT, 21) == 6);
  CHECK_OK(gaspi_wait(3, LIMIT));
  CHECK_OK(gaspi_write_notify(SEGMENT, 0, right, SEGMENT, 0, 0, 22, 7, 3, LIMIT));
  CHECK(queue_fill(3) == 1);
  CHECK(take(SEGMENT, 22) == 7);
  CHECK_OK(gaspi_wait(3, LIMIT));
  sync_all();
}

/* A read's notification is local, has the value 1 and follows the data. */
static void reads(char *memory) {
  const gaspi_rank_t right = rank_after(1);
  gaspi_segment_id_t segments[2] = {SEGMENT, SEGMENT};
  gaspi_offset_t from[2] = {0, 500};
  gaspi_offset_t to[2] = {4000, 5000};
  gaspi_size_t sizes[2] = {100, 100};

  memset(memory, 'A' + my_rank % 20, 1000);
  memset(memory + 4000, 0, 2000);
  sync_all();
  CHECK_OK(gaspi_read_notify(SEGMENT, 4500, right, SEGMENT, 0, 100, 30, 3, LIMIT));
  CHECK(queue_fill(3) == 1);
  CHECK(take(SEGMENT, 30) == 1);
  CHECK(memory[4500] == 'A' + right % 20 && memory[4599] == 'A' + right % 20);
  CHECK_OK(gaspi_wait(3, LIMIT));
  CHECK_OK(gaspi_read_list_notify(2, segments, to, right, segments, from, sizes, SEGMENT, 31, 3,
                                  LIMIT));
  CHECK(queue_fill(3) == 3);
  CHECK(take(SEGMENT, 31) == 1);
  CHECK(memory[4099] == 'A' + right % 20 && memory[5099] == 'A' + right % 20);
  CHECK_OK(gaspi_wait(3, LIMIT));
  CHECK_OK(gaspi_read_notify(SEGMENT, 0, right, SEGMENT, 0, 0, 32, 3, LIMIT));
  CHECK(take(SEGMENT, 32) == 1);
  CHECK_OK(gaspi_wait(3, LIMIT));
  sync_all();
}

static atomic_uint taken;

static void *competitor(void *argument) {
  (void)argument;
  while (atomic_load(&taken) < COMPETED) {
    gaspi_notification_id_t first = 0;
    gaspi_notification_t value = 0;
    const gaspi_return_t found =
        gaspi_notify_waitsome(SEGMENT, 2000, COMPETED, &first, GASPI_TEST);

    if (found == GASPI_TIMEOUT) {
      sched_yield();
      continue;
    }
    CHECK_OK(found);
    CHECK(first >= 2000 && first < 2000 + COMPETED);
    CHECK_OK(gaspi_notify_reset(SEGMENT, first, &value));
    if (value != 0) {
      CHECK(value == first);
      atomic_fetch_add(&taken, 1);
    }
  }
  return NULL;
}

/* Several threads take the neighbour's notifications: each is taken exactly once. */
static void competition(void) {
  const gaspi_rank_t right = rank_after(1);

  for (int round = 0; round < 10; round++) {
    gaspi_notification_id_t first = 0;
    pthread_t thread[THREADS];

    atomic_store(&taken, 0);
    sync_all();
    for (int at = 0; at < THREADS; at++) {
      CHECK(pthread_create(&thread[at], NULL, competitor, NULL) == 0);
    }
    for (gaspi_notification_id_t id = 2000; id < 2000 + COMPETED; id++) {
      CHECK_OK(gaspi_notify(SEGMENT, right, id, id, 4, LIMIT));
    }
    CHECK_OK(gaspi_wait(4, LIMIT));
    for (int at = 0; at < THREADS; at++) {
      CHECK(pthread_join(thread[at], NULL) == 0);
    }
    CHECK(atomic_load(&taken) == COMPETED);
    CHECK_RC(gaspi_notify_waitsome(SEGMENT, 0, MAX_ID + 1, &first, GASPI_TEST), GASPI_TIMEOUT);
    sync_all();
  }
}

static void *sleeper(void *argument) {
  const gaspi_notification_id_t id = (gaspi_notification_id_t)(uintptr_t)argument;
  CHECK(take(SEGMENT, id) == id);
  return NULL;
}

/* Threads sleep on different ids at once; each is woken by its own. */
static void sleepers(void) {
  pthread_t thread[THREADS];

  for (uintptr_t at = 0; at < THREADS; at++) {
    CHECK(pthread_create(&thread[at], NULL, sleeper, (void *)(at + 50)) == 0);
  }
  for (unsigned at = THREADS; at > 0; at--) {
    post(rank_after(1), at - 1 + 50, at - 1 + 50);
  }
  for (int at = 0; at < THREADS; at++) {
    CHECK(pthread_join(thread[at], NULL) == 0);
  }
  sync_all();
}

int main(void) {
  gaspi_number_t num = 0;
  char *memory;

  job_start();
  CHECK_OK(gaspi_notification_num(&num));
  CHECK(num == MAX_ID + 1);
  memory = segment_on_all(SEGMENT, SIZE);
  wrong_arguments();
  own();
  sync_all();
  from_all();
  order(memory);
  lists_and_empty(memory);
  reads(memory);
  competition();
  sleepers();
  job_end();
  return 0;
}
