/* ranks: 1 2 5 */
/*
 * One-sided communication: write, read, lists, odd sizes and offsets, zero sizes, full queues,
 * many threads on one queue.
 */
#include "check.h"

#include <pthread.h>
#include <stdint.h>

enum { SOURCE = 0, TARGET = 1, SIZE = 1 << 20, ENTRIES = 255, THREADS = 4, PER_THREAD = 3000 };

/* A byte that tells writer, value and place apart. */
static unsigned char pattern(unsigned writer, unsigned round, size_t at) {
  return (unsigned char)(writer * 31u + round * 7u + at * 13u + (at >> 8));
}

static void fill(char *memory, size_t size, unsigned writer, unsigned round) {
  for (size_t at = 0; at < size; at++) {
    memory[at] = (char)pattern(writer, round, at);
  }
}

static void verify(const char *memory, size_t size, unsigned writer, unsigned round) {
  for (size_t at = 0; at < size; at++) {
    CHECK((unsigned char)memory[at] == pattern(writer, round, at));
  }
}

/* Every rank writes its block to all; wait and barrier make it visible. */
static void all_to_all(char *source, char *target) {
  const size_t block = SIZE / ranks;

  for (unsigned round = 0; round < 3; round++) {
    fill(source, block, my_rank, round);
    for (unsigned distance = 0; distance < ranks; distance++) {
      CHECK_OK(gaspi_write(SOURCE, 0, rank_after(distance), TARGET, block * my_rank, block,
                           (gaspi_queue_id_t)(distance % 8), LIMIT));
    }
    for (gaspi_queue_id_t queue = 0; queue < 8; queue++) {
      CHECK_OK(gaspi_wait(queue, LIMIT));
      CHECK(queue_fill(queue) == 0);
    }
    sync_all();
    for (unsigned rank = 0; rank < ranks; rank++) {
      verify(target + block * rank, block, rank, round);
    }
    sync_all();
  }
}

/* Sizes around the powers of two, at odd places; neighbouring bytes stay. */
static void sizes_and_offsets(char *source, char *target) {
  const gaspi_rank_t right = rank_after(1);
  const gaspi_rank_t left = rank_before(1);
  unsigned round = 0;

  for (size_t size = 1; size <= 1 << 19; size = size < 64 ? size + 1 : size * 2 - 1) {
    const size_t from = size % 7;
    const size_t to = 1 + size % 11;

    fill(source + from, size, my_rank, ++round);
    memset(target, 0x11, size + 16);
    sync_all();
    CHECK_OK(gaspi_write(SOURCE, from, right, TARGET, to, size, 0, LIMIT));
    CHECK_OK(gaspi_wait(0, LIMIT));
    sync_all();
    verify(target + to, size, left, round);
    CHECK(target[to - 1] == 0x11 && target[to + size] == 0x11);
    memset(target, 0x22, size + 16);
    CHECK_OK(gaspi_read(TARGET, to, right, SOURCE, from, size, 0, LIMIT));
    CHECK_OK(gaspi_wait(0, LIMIT));
    verify(target + to, size, right, round);
    CHECK(target[to - 1] == 0x22 && target[to + size] == 0x22);
    sync_all();
  }
}

/* The last byte may be used, one more may not. */
static void edges(void) {
  const gaspi_rank_t right = rank_after(1);

  CHECK_OK(gaspi_write(SOURCE, SIZE - 1, right, TARGET, SIZE - 1, 1, 0, LIMIT));
  CHECK_OK(gaspi_write(SOURCE, 0, right, TARGET, 0, SIZE, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
  CHECK_ERR(gaspi_write(SOURCE, SIZE, right, TARGET, 0, 1, 0, LIMIT), GASPI_ERR_INV_LOC_OFF);
  CHECK_ERR(gaspi_write(SOURCE, 0, right, TARGET, SIZE, 1, 0, LIMIT), GASPI_ERR_INV_REM_OFF);
  CHECK_ERR(gaspi_write(SOURCE, 1, right, TARGET, 0, SIZE, 0, LIMIT), GASPI_ERR_INV_COMMSIZE);
  CHECK_ERR(gaspi_read(SOURCE, 0, right, TARGET, 1, SIZE, 0, LIMIT), GASPI_ERR_INV_COMMSIZE);
  CHECK_ERR(gaspi_read(SOURCE, 8, right, TARGET, 8, UINT64_MAX - 7, 0, LIMIT),
            GASPI_ERR_INV_COMMSIZE);
  CHECK_ERR(gaspi_write(SOURCE, UINT64_MAX, right, TARGET, 0, 1, 0, LIMIT), GASPI_ERR_INV_LOC_OFF);
  CHECK_ERR(gaspi_write(SOURCE, 0, right, TARGET, UINT64_MAX, 1, 0, LIMIT), GASPI_ERR_INV_REM_OFF);
  CHECK(queue_fill(0) == 0);
}

static void zero_sizes(void) {
  const gaspi_rank_t right = rank_after(1);

  CHECK_OK(gaspi_write(SOURCE, 0, right, TARGET, 0, 0, 0, LIMIT));
  CHECK_OK(gaspi_read(SOURCE, 0, right, TARGET, 0, 0, 0, GASPI_TEST));
  CHECK(queue_fill(0) == 0);
  CHECK_OK(gaspi_wait(0, GASPI_TEST));
}

/* Lists of growing length; empty entries take no slot. */
static void lists(char *source, char *target) {
  const gaspi_rank_t right = rank_after(1);
  const gaspi_rank_t left = rank_before(1);
  gaspi_segment_id_t local[ENTRIES + 1];
  gaspi_segment_id_t remote[ENTRIES + 1];
  gaspi_offset_t from[ENTRIES + 1];
  gaspi_offset_t to[ENTRIES + 1];
  gaspi_size_t size[ENTRIES + 1];

  for (unsigned num = 1; num <= ENTRIES; num += num < 4 ? 1 : 50) {
    gaspi_number_t slots = 0;
    for (unsigned at = 0; at < num; at++) {
      local[at] = SOURCE;
      remote[at] = TARGET;
      from[at] = at * 64;
      to[at] = (num - 1 - at) * 64;
      size[at] = at % 3 == 2 ? 0 : 1 + at % 64;
      slots += size[at] != 0;
    }
    fill(source, SIZE, my_rank, num);
    memset(target, 0, SIZE);
    sync_all();

    CHECK_OK(gaspi_write_list(num, local, from, right, remote, to, size, 1, LIMIT));
    CHECK(queue_fill(1) == slots);
    CHECK_OK(gaspi_wait(1, LIMIT));
    sync_all();
    for (unsigned at = 0; at < num; at++) {
      for (unsigned byte = 0; byte < 64; byte++) {
        const unsigned char expected =
            byte < size[at] ? pattern(left, num, from[at] + byte) : 0;
        CHECK((unsigned char)target[to[at] + byte] == expected);
      }
    }

    sync_all();
    memset(source, 0, SIZE);
    CHECK_OK(gaspi_read_list(num, local, from, right, remote, to, size, 1, LIMIT));
    CHECK(queue_fill(1) == slots);
    CHECK_OK(gaspi_wait(1, LIMIT));
    for (unsigned at = 0; at < num; at++) {
      for (unsigned byte = 0; byte < size[at]; byte++) {
        CHECK((unsigned char)source[from[at] + byte] == pattern(my_rank, num, from[at] + byte));
      }
    }
    sync_all();
  }

  for (unsigned at = 0; at <= ENTRIES; at++) {
    local[at] = SOURCE;
    remote[at] = TARGET;
    from[at] = to[at] = 0;
    size[at] = 0;
  }
  CHECK_ERR(gaspi_write_list(0, local, from, right, remote, to, size, 1, LIMIT),
            GASPI_ERR_INV_NUM);
  CHECK_ERR(gaspi_read_list(ENTRIES + 1, local, from, right, remote, to, size, 1, LIMIT),
            GASPI_ERR_INV_NUM);
  CHECK_OK(gaspi_write_list(ENTRIES, local, from, right, remote, to, size, 1, LIMIT));
  CHECK(queue_fill(1) == 0);
}

/* Exactly queue_size_max requests fit; the next is refused at once, also with time to spare. */
static void full_queue(void) {
  const gaspi_rank_t right = rank_after(1);
  gaspi_segment_id_t segments[2] = {SOURCE, SOURCE};
  gaspi_offset_t offsets[2] = {0, 8};
  gaspi_size_t sizes[2] = {8, 8};
  gaspi_number_t max = 0;

  CHECK_OK(gaspi_queue_size_max(&max));
  CHECK(max == 1024);
  for (gaspi_number_t posted = 0; posted < max; posted++) {
    CHECK(queue_fill(3) == posted);
    switch (posted % 3) {
      case 0:
        CHECK_OK(gaspi_write(SOURCE, 0, right, TARGET, 0, 8, 3, GASPI_TEST));
        break;
      case 1:
        CHECK_OK(gaspi_read(TARGET, 64, right, SOURCE, 0, 8, 3, GASPI_TEST));
        break;
      default:
        CHECK_OK(gaspi_write_notify(SOURCE, 0, right, TARGET, 0, 8, 1, 1, 3, GASPI_TEST));
        break;
    }
  }
  CHECK_RC(gaspi_write(SOURCE, 0, right, TARGET, 0, 8, 3, GASPI_BLOCK), GASPI_QUEUE_FULL);
  CHECK_RC(gaspi_read(SOURCE, 0, right, TARGET, 0, 8, 3, GASPI_TEST), GASPI_QUEUE_FULL);
  CHECK_RC(gaspi_notify(TARGET, right, 0, 1, 3, GASPI_BLOCK), GASPI_QUEUE_FULL);
  CHECK_RC(gaspi_write_list(2, segments, offsets, right, segments, offsets, sizes, 3, LIMIT),
           GASPI_QUEUE_FULL);
  CHECK(queue_fill(3) == max);
  /* Nothing to transfer needs no slot, and other queues are not concerned. */
  CHECK_OK(gaspi_write(SOURCE, 0, right, TARGET, 0, 0, 3, LIMIT));
  CHECK_OK(gaspi_write(SOURCE, 0, right, TARGET, 0, 8, 4, LIMIT));
  CHECK_OK(gaspi_wait(4, LIMIT));
  CHECK_OK(gaspi_wait(3, LIMIT));
  CHECK(queue_fill(3) == 0);
  CHECK_OK(gaspi_write(SOURCE, 0, right, TARGET, 0, 8, 3, LIMIT));
  CHECK_OK(gaspi_wait(3, LIMIT));
  sync_all();
}

static void *poster(void *argument) {
  const size_t thread = (size_t)(uintptr_t)argument;
  const gaspi_rank_t right = rank_after(1);

  for (unsigned at = 0; at < PER_THREAD; at++) {
    const gaspi_offset_t place = (thread * PER_THREAD + at) * 8;
    gaspi_return_t posted;
    while ((posted = gaspi_write(SOURCE, place, right, TARGET, place, 8, 5, LIMIT)) ==
           GASPI_QUEUE_FULL) {
      CHECK_OK(gaspi_wait(5, LIMIT));
    }
    CHECK_OK(posted);
  }
  return NULL;
}

/* Threads share one queue; each waits when it finds the queue full. */
static void threads(char *source, char *target) {
  pthread_t thread[THREADS];
  const size_t used = (size_t)THREADS * PER_THREAD * 8;

  fill(source, used, my_rank, 99);
  memset(target, 0, used);
  sync_all();
  for (uintptr_t at = 0; at < THREADS; at++) {
    CHECK(pthread_create(&thread[at], NULL, poster, (void *)at) == 0);
  }
  for (int at = 0; at < THREADS; at++) {
    CHECK(pthread_join(thread[at], NULL) == 0);
  }
  CHECK_OK(gaspi_wait(5, LIMIT));
  CHECK(queue_fill(5) == 0);
  sync_all();
  verify(target, used, rank_before(1), 99);
  sync_all();
}

int main(void) {
  char *source;
  char *target;

  job_start();
  source = segment_on_all(SOURCE, SIZE);
  target = segment_on_all(TARGET, SIZE);
  all_to_all(source, target);
  sizes_and_offsets(source, target);
  edges();
  zero_sizes();
  sync_all();
  lists(source, target);
  full_queue();
  threads(source, target);
  job_end();
  return 0;
}
