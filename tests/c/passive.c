/* ranks: 1 2 5 */
/*
 * Passive communication: any sender, message sizes, rooms that are too small, timeouts, self.
 */
#include "check.h"

#include <pthread.h>

enum { OUT = 0, IN = 1, SIZE = 1 << 17, LARGEST = 65535 };

static void content(char *memory, size_t size, unsigned seed) {
  for (size_t at = 0; at < size; at++) {
    memory[at] = (char)(seed * 17 + at * 3);
  }
}

static void expect(const char *memory, size_t size, unsigned seed) {
  for (size_t at = 0; at < size; at++) {
    CHECK(memory[at] == (char)(seed * 17 + at * 3));
  }
}

static void limits(void) {
  gaspi_size_t size = 0;
  gaspi_rank_t rank = 4711;

  CHECK_OK(gaspi_passive_transfer_size_max(&size));
  CHECK(size == LARGEST);
  CHECK_OK(gaspi_passive_transfer_size_min(&size));
  CHECK(size <= 1);
  CHECK_ERR(gaspi_passive_send(OUT, 0, my_rank, LARGEST + 1, LIMIT), GASPI_ERR_INV_COMMSIZE);
  CHECK_ERR(gaspi_passive_send(OUT, SIZE, my_rank, 1, LIMIT), GASPI_ERR_INV_LOC_OFF);
  CHECK_ERR(gaspi_passive_send(OUT, SIZE - 1, my_rank, 2, LIMIT), GASPI_ERR_INV_COMMSIZE);
  CHECK_ERR(gaspi_passive_send(9, 0, my_rank, 1, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_passive_send(OUT, 0, ranks, 1, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_passive_receive(IN, SIZE, &rank, 1, LIMIT), GASPI_ERR_INV_LOC_OFF);
  CHECK_ERR(gaspi_passive_receive(9, 0, &rank, 1, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_passive_receive(IN, 0, NULL, 1, LIMIT), GASPI_ERR_NULLPTR);
  CHECK_RC(gaspi_passive_receive(IN, 0, &rank, LARGEST, GASPI_TEST), GASPI_TIMEOUT);
  CHECK_RC(gaspi_passive_receive(IN, 0, &rank, LARGEST, 20), GASPI_TIMEOUT);
  CHECK(rank == 4711);
}

/* All others send to rank 0, several sizes; it takes them as they come. */
static void many_to_one(char *out, char *in) {
  static const gaspi_size_t sizes[6] = {1, 8, 48, 1000, 16385, LARGEST};

  if (my_rank != 0) {
    for (unsigned at = 0; at < 6; at++) {
      content(out + at, sizes[at], my_rank * 10u + at);
      CHECK_OK(gaspi_passive_send(OUT, at, 0, sizes[at], LIMIT));
      memset(out, 0, SIZE);
    }
  } else {
    unsigned *received = (unsigned *)calloc(ranks, sizeof *received);

    CHECK(received != NULL);
    for (unsigned left = 6u * (ranks - 1u); left > 0; left--) {
      gaspi_rank_t from = 0;
      memset(in, 0, LARGEST + 64);
      CHECK_OK(gaspi_passive_receive(IN, 32, &from, LARGEST, LIMIT));
      CHECK(from > 0 && from < ranks && received[from] < 6);
      /* One sender's messages come in the order it sent them. */
      expect(in + 32, sizes[received[from]], from * 10u + received[from]);
      CHECK(in[31] == 0 && in[32 + sizes[received[from]]] == 0);
      received[from]++;
    }
    free(received);
  }
  sync_all();
}

/* A message waits for a room that is large enough; a receive that timed out leaves its room alone.
 */
static void small_room(char *out, char *in) {
  if (ranks < 2) {
    return;
  }
  if (my_rank == 1) {
    content(out, 100, 3);
    CHECK_RC(gaspi_passive_send(OUT, 0, 0, 100, GASPI_TEST), GASPI_TIMEOUT);
  }
  /* The pending message delays nothing else. */
  sync_all();
  if (my_rank == 0) {
    gaspi_rank_t from = 99;
    memset(in, 0x33, 1000);
    CHECK_RC(gaspi_passive_receive(IN, 0, &from, 10, 30), GASPI_TIMEOUT);
    CHECK_RC(gaspi_passive_receive(IN, 0, &from, 99, GASPI_TEST), GASPI_TIMEOUT);
    CHECK_OK(gaspi_passive_receive(IN, 500, &from, 100, LIMIT));
    CHECK(from == 1);
    expect(in + 500, 100, 3);
    for (int at = 0; at < 500; at++) {
      CHECK(in[at] == 0x33);
    }
    CHECK_RC(gaspi_passive_receive(IN, 0, &from, LARGEST, 30), GASPI_TIMEOUT);
  } else if (my_rank == 1) {
    CHECK_OK(gaspi_passive_send(OUT, 0, 0, 100, LIMIT));
  }
  sync_all();
}

/* A ring in which everybody sends and receives at once, by two threads each. */
static void *ring_sender(void *argument) {
  const gaspi_rank_t right = rank_after(1);
  char *out = (char *)argument;

  for (unsigned round = 0; round < 200; round++) {
    const gaspi_size_t size = 1 + round * 37 % 3000;
    content(out, size, round);
    CHECK_OK(gaspi_passive_send(OUT, 0, right, size, LIMIT));
  }
  return NULL;
}

static void ring(char *out, char *in) {
  pthread_t sender;

  CHECK(pthread_create(&sender, NULL, ring_sender, out) == 0);
  for (unsigned round = 0; round < 200; round++) {
    gaspi_rank_t from = 999;
    CHECK_OK(gaspi_passive_receive(IN, 0, &from, 3000, LIMIT));
    CHECK(from == rank_before(1));
    expect(in, 1 + round * 37 % 3000, round);
  }
  CHECK(pthread_join(sender, NULL) == 0);
  sync_all();
}

/* A send that is given up after a timeout is never received. */
static void purge(void) {
  const gaspi_rank_t right = rank_after(1);
  gaspi_rank_t from = 0;

  CHECK_OK(gaspi_passive_queue_purge(LIMIT));
  CHECK_RC(gaspi_passive_send(OUT, 0, right, 64, 10), GASPI_TIMEOUT);
  CHECK_OK(gaspi_passive_queue_purge(LIMIT));
  sync_all();
  CHECK_RC(gaspi_passive_receive(IN, 0, &from, LARGEST, 20), GASPI_TIMEOUT);
  sync_all();
}

int main(void) {
  char *out;
  char *in;

  job_start();
  out = segment_on_all(OUT, SIZE);
  in = segment_on_all(IN, SIZE);
  limits();
  sync_all();
  many_to_one(out, in);
  small_room(out, in);
  ring(out, in);
  purge();
  job_end();
  return 0;
}
