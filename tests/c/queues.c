/* ranks: 1 2 5 */
/*
 * Queues: number, creation and deletion, fill, independence, wait and purge.
 */
#include "check.h"

enum { SEGMENT = 0, SIZE = 4096 };

static gaspi_number_t queue_count(void) {
  gaspi_number_t num = 0;
  CHECK_OK(gaspi_queue_num(&num));
  return num;
}

static void create_and_delete(void) {
  gaspi_number_t max = 0;
  gaspi_queue_id_t queue = 255;
  gaspi_number_t made = 0;

  CHECK(queue_count() == 8);
  CHECK_OK(gaspi_queue_max(&max));
  CHECK(max >= 8 && max <= 255);
  while (queue_count() < max) {
    CHECK_OK(gaspi_queue_create(&queue, LIMIT));
    CHECK(queue == 8 + made);
    made++;
    CHECK(queue_fill(queue) == 0);
    CHECK_OK(gaspi_write(SEGMENT, 0, rank_after(1), SEGMENT, 8, 8, queue, LIMIT));
    CHECK(queue_fill(queue) == 1);
    CHECK_OK(gaspi_wait(queue, LIMIT));
    CHECK(queue_fill(queue) == 0);
  }
  queue = 77;
  CHECK(gaspi_queue_create(&queue, LIMIT) != GASPI_SUCCESS);
  CHECK(queue == 77);
  if (made > 0) {
    CHECK_OK(gaspi_queue_delete(8));
    CHECK(queue_count() == max - 1);
    CHECK_ERR(gaspi_queue_delete(8), GASPI_ERR_INV_QUEUE);
    CHECK_ERR(gaspi_wait(8, LIMIT), GASPI_ERR_INV_QUEUE);
    CHECK_ERR(gaspi_write(SEGMENT, 0, my_rank, SEGMENT, 8, 8, 8, LIMIT), GASPI_ERR_INV_QUEUE);
    CHECK_OK(gaspi_queue_create(&queue, LIMIT));
    CHECK(queue == 8);
  }
  for (gaspi_number_t at = 0; at < made; at++) {
    CHECK_OK(gaspi_queue_delete((gaspi_queue_id_t)(8 + at)));
  }
  CHECK(queue_count() == 8);
}

static void unknown(void) {
  gaspi_number_t size = 0;

  CHECK_ERR(gaspi_queue_size(100, &size), GASPI_ERR_INV_QUEUE);
  CHECK_ERR(gaspi_queue_delete(255), GASPI_ERR_INV_QUEUE);
  CHECK_ERR(gaspi_queue_purge(100, LIMIT), GASPI_ERR_INV_QUEUE);
  CHECK_ERR(gaspi_wait(255, GASPI_TEST), GASPI_ERR_INV_QUEUE);
  CHECK_ERR(gaspi_notify(SEGMENT, my_rank, 1, 1, 100, LIMIT), GASPI_ERR_INV_QUEUE);
}

/* Waiting for one queue leaves the others alone. */
static void independent(void) {
  const gaspi_rank_t right = rank_after(1);

  for (gaspi_queue_id_t queue = 0; queue < 8; queue++) {
    for (unsigned request = 0; request <= queue; request++) {
      CHECK_OK(gaspi_write(SEGMENT, 8ul * queue, right, SEGMENT, 1024 + 8ul * queue, 8, queue,
                           LIMIT));
    }
  }
  for (gaspi_queue_id_t queue = 0; queue < 8; queue += 2) {
    CHECK_OK(gaspi_wait(queue, LIMIT));
  }
  for (gaspi_queue_id_t queue = 0; queue < 8; queue++) {
    CHECK(queue_fill(queue) == (queue % 2 == 0 ? 0u : queue + 1u));
  }
  for (gaspi_queue_id_t queue = 1; queue < 8; queue += 2) {
    CHECK_OK(gaspi_wait(queue, LIMIT));
    CHECK(queue_fill(queue) == 0);
  }
}

/* An empty queue is waited for in no time; purging one that has no errors is harmless. */
static void empty(void) {
  for (gaspi_queue_id_t queue = 0; queue < 8; queue++) {
    CHECK_OK(gaspi_wait(queue, GASPI_TEST));
    CHECK_OK(gaspi_queue_purge(queue, LIMIT));
  }
  CHECK_OK(gaspi_write(SEGMENT, 0, rank_after(1), SEGMENT, 2048, 8, 0, LIMIT));
  CHECK_OK(gaspi_queue_purge(0, LIMIT));
  CHECK(queue_fill(0) == 0);
  CHECK_OK(gaspi_wait(0, GASPI_TEST));
}

int main(void) {
  job_start();
  (void)segment_on_all(SEGMENT, SIZE);
  create_and_delete();
  unknown();
  independent();
  empty();
  job_end();
  return 0;
}
