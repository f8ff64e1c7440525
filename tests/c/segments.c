/* ranks: 1 2 5 */
/*
 * Segments: allocation, user memory, registration, lists, limits, deletion and reuse.
 */
#include "check.h"

#include <stdint.h>

enum { SIZE = 4096, MANY = 255 };

static gaspi_number_t segment_count(void) {
  gaspi_number_t num = 999;
  CHECK_OK(gaspi_segment_num(&num));
  return num;
}

static void check_zero(const char *memory, size_t size) {
  for (size_t at = 0; at < size; at++) {
    CHECK(memory[at] == 0);
  }
}

static void allocation(void) {
  gaspi_size_t size = 0;
  gaspi_notification_id_t first = 0;
  char *memory;

  CHECK(segment_count() == 0);
  CHECK_ERR(gaspi_segment_alloc(1, 0, GASPI_MEM_INITIALIZED), GASPI_ERR_INV_SEGSIZE);
  CHECK_ERR(gaspi_segment_alloc(255, SIZE, GASPI_MEM_INITIALIZED), GASPI_ERR_INV_SEG);
  CHECK(segment_count() == 0);

  CHECK_OK(gaspi_segment_alloc(1, SIZE + 5, GASPI_MEM_INITIALIZED));
  CHECK_ERR(gaspi_segment_alloc(1, SIZE, GASPI_MEM_INITIALIZED), GASPI_ERR_INV_SEG);
  memory = segment_at(1);
  CHECK((uintptr_t)memory % (uintptr_t)sysconf(_SC_PAGESIZE) == 0);
  check_zero(memory, SIZE + 5);
  memset(memory, 0x7f, SIZE + 5);
  CHECK_OK(gaspi_segment_size(1, my_rank, &size));
  CHECK(size == SIZE + 5);
  CHECK_RC(gaspi_notify_waitsome(1, 0, 65536, &first, GASPI_TEST), GASPI_TIMEOUT);
  CHECK_OK(gaspi_segment_delete(1));
  CHECK_ERR(gaspi_segment_delete(1), GASPI_ERR_INV_SEG);

  CHECK_OK(gaspi_segment_alloc(1, SIZE + 5, GASPI_MEM_INITIALIZED));
  check_zero(segment_at(1), SIZE + 5);
  CHECK_OK(gaspi_segment_delete(1));
  CHECK_OK(gaspi_segment_alloc(1, 1, GASPI_ALLOC_DEFAULT));
  segment_at(1)[0] = 1;
  CHECK_OK(gaspi_segment_delete(1));
}

static void lists(void) {
  static const gaspi_segment_id_t used[4] = {200, 3, 0, 17};
  static const gaspi_segment_id_t sorted[4] = {0, 3, 17, 200};
  gaspi_segment_id_t list[5] = {99, 99, 99, 99, 99};
  gaspi_segment_id_t available = 99;

  CHECK_OK(gaspi_segment_avail_local(&available));
  CHECK(available == 0);
  for (int at = 0; at < 4; at++) {
    CHECK_OK(gaspi_segment_alloc(used[at], SIZE, GASPI_MEM_UNINITIALIZED));
  }
  CHECK(segment_count() == 4);
  CHECK_OK(gaspi_segment_list(4, list));
  CHECK(memcmp(list, sorted, sizeof sorted) == 0);
  CHECK(list[4] == 99);
  CHECK_ERR(gaspi_segment_list(3, list), GASPI_ERROR);
  CHECK_ERR(gaspi_segment_list(5, list), GASPI_ERROR);
  CHECK_OK(gaspi_segment_avail_local(&available));
  CHECK(available == 1);
  for (int at = 0; at < 4; at++) {
    CHECK_OK(gaspi_segment_delete(used[at]));
  }
  CHECK(segment_count() == 0);
}

static void limit(void) {
  gaspi_number_t max = 0;
  gaspi_segment_id_t available = 7;

  CHECK_OK(gaspi_segment_max(&max));
  CHECK(max == MANY);
  for (unsigned id = 0; id < MANY; id++) {
    CHECK_OK(gaspi_segment_alloc((gaspi_segment_id_t)id, SIZE, GASPI_MEM_UNINITIALIZED));
  }
  CHECK(segment_count() == MANY);
  CHECK_ERR(gaspi_segment_avail_local(&available), GASPI_ERR_MANY_SEG);
  CHECK(available == 7);
  CHECK_OK(gaspi_segment_delete(128));
  CHECK_OK(gaspi_segment_avail_local(&available));
  CHECK(available == 128);
  for (unsigned id = 0; id < MANY; id++) {
    if (id != 128) {
      CHECK_OK(gaspi_segment_delete((gaspi_segment_id_t)id));
    }
  }
}

/* A segment is accessible to whom it was registered with, and to nobody else. */
static void registration(void) {
  const gaspi_rank_t right = rank_after(1);
  const gaspi_rank_t left = rank_before(1);
  gaspi_size_t size = 0;
  char *memory;

  CHECK_OK(gaspi_segment_alloc(5, SIZE + my_rank, GASPI_MEM_INITIALIZED));
  CHECK_ERR(gaspi_segment_register(6, right, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_segment_register(5, ranks, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_OK(gaspi_segment_register(5, my_rank, LIMIT));
  CHECK_OK(gaspi_segment_register(5, right, LIMIT));
  CHECK_OK(gaspi_segment_register(5, right, LIMIT));
  sync_all();

  CHECK_OK(gaspi_segment_size(5, left, &size));
  CHECK(size == (gaspi_size_t)SIZE + left);
  if (ranks > 2) {
    CHECK_ERR(gaspi_segment_size(5, right, &size), GASPI_ERR_INV_SEG);
    CHECK_ERR(gaspi_write(5, 0, right, 5, 0, 1, 0, LIMIT), GASPI_ERR_INV_SEG);
  }
  memory = segment_at(5);
  memory[0] = (char)(my_rank + 1);
  CHECK_OK(gaspi_write(5, 0, left, 5, 100, 1, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
  sync_all();
  CHECK(memory[100] == (char)(right + 1));
  sync_all();
  CHECK_OK(gaspi_segment_delete(5));
}

/* gaspi_segment_create with another size on each rank. */
static void creation(void) {
  gaspi_size_t size = 0;

  CHECK_OK(gaspi_segment_create(0, SIZE * (1u + my_rank), GASPI_GROUP_ALL, LIMIT,
                                GASPI_MEM_INITIALIZED));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_segment_size(0, rank, &size));
    CHECK(size == SIZE * (1u + rank));
  }
  sync_all();
  CHECK_OK(gaspi_segment_delete(0));
  CHECK_ERR(gaspi_segment_create(0, 0, GASPI_GROUP_ALL, LIMIT, GASPI_MEM_INITIALIZED),
            GASPI_ERR_INV_SEGSIZE);
  CHECK_ERR(gaspi_segment_create(0, SIZE, 9, LIMIT, GASPI_MEM_INITIALIZED), GASPI_ERR_INV_GROUP);
  CHECK(segment_count() == 0);
}

/* Memory of the program, in two segments that overlap, written by the neighbour. */
static void user_memory(void) {
  const gaspi_rank_t right = rank_after(1);
  const gaspi_rank_t left = rank_before(1);
  char *memory = (char *)calloc(2, SIZE);

  CHECK(memory != NULL);
  CHECK_ERR(gaspi_segment_bind(1, NULL, SIZE, 0), GASPI_ERR_NULLPTR);
  CHECK_ERR(gaspi_segment_bind(1, memory, 0, 0), GASPI_ERR_INV_SEGSIZE);
  CHECK_ERR(gaspi_segment_bind(1, memory, (gaspi_size_t)1 << 46, 0), GASPI_ERR_INV_SEGSIZE);
  CHECK_ERR(gaspi_segment_bind(1, (gaspi_pointer_t)64, SIZE, 0), GASPI_ERR_INV_SEGSIZE);
  CHECK_OK(gaspi_segment_bind(1, memory, SIZE + 100, 0));
  CHECK(segment_at(1) == memory);
  CHECK_ERR(gaspi_segment_bind(1, memory, SIZE, 0), GASPI_ERR_INV_SEG);
  CHECK_OK(gaspi_segment_use(2, memory + 3, 2 * SIZE - 3, GASPI_GROUP_ALL, LIMIT, 0));
  CHECK(segment_at(2) == memory + 3);
  CHECK_OK(gaspi_segment_register(1, left, LIMIT));
  memory[7] = (char)(0x40 + my_rank);
  sync_all();

  CHECK_OK(gaspi_write(1, 7, right, 2, 1000 - 3, 1, 0, LIMIT));
  CHECK_OK(gaspi_notify(2, right, 4, 1, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
  (void)take(2, 4);
  CHECK(memory[1000] == (char)(0x40 + left));
  CHECK_OK(gaspi_read(2, 2000, right, 1, 7, 1, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
  CHECK(memory[2003] == (char)(0x40 + right));

  sync_all();
  CHECK_OK(gaspi_segment_delete(1));
  memory[0] = 1;
  CHECK_OK(gaspi_segment_delete(2));
  sync_all();
  free(memory);
}

/* An access after the owner's delete is an error of the initiator, and nothing else happens. */
static void deleted_at_target(void) {
  const gaspi_rank_t right = rank_after(1);
  gaspi_state_t *states = (gaspi_state_t *)calloc(ranks, sizeof *states);
  gaspi_return_t posted;

  CHECK(states != NULL);
  (void)segment_on_all(0, SIZE);
  (void)segment_on_all(1, SIZE);
  CHECK_OK(gaspi_segment_delete(1));
  sync_all();
  if (ranks > 1) {
    posted = gaspi_write(0, 0, right, 1, 0, 64, 2, LIMIT);
    if (posted == GASPI_SUCCESS) {
      CHECK_ERR(gaspi_wait(2, LIMIT), GASPI_ERROR);
      CHECK_OK(gaspi_state_vec_get(states));
      CHECK(states[right] == GASPI_STATE_CORRUPT);
      CHECK(states[my_rank] == GASPI_STATE_HEALTHY);
    } else {
      CHECK(posted == GASPI_ERROR || posted == GASPI_ERR_INV_SEG);
    }
    CHECK_OK(gaspi_queue_purge(2, LIMIT));
    CHECK(queue_fill(2) == 0);
  } else {
    CHECK_ERR(gaspi_write(0, 0, right, 1, 0, 64, 2, LIMIT), GASPI_ERR_INV_SEG);
  }
  sync_all();
  /* Later requests are tried, and the id is good for a new segment. */
  (void)segment_on_all(1, 2 * SIZE);
  CHECK_OK(gaspi_write(0, 0, right, 1, SIZE, SIZE, 2, LIMIT));
  CHECK_OK(gaspi_wait(2, LIMIT));
  sync_all();
  CHECK_OK(gaspi_segment_delete(0));
  CHECK_OK(gaspi_segment_delete(1));
  free(states);
}

int main(void) {
  job_start();
  allocation();
  lists();
  limit();
  registration();
  creation();
  user_memory();
  deleted_at_target();
  CHECK(segment_count() == 0);
  job_end();
  return 0;
}
