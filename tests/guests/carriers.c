/*
 * Which way data goes, for `cargo xtask rxe`: each rank writes to every other one, reads the same
 * back, and looks at its counters. Data goes by shared memory within a host, by devices between
 * hosts where both ranks have one, and by TCP elsewhere.
 *
 *     carriers EACH [RANK...]     EACH ranks share a host, one host after the other; these ranks
 *                                 have no device
 */
#include "counters.h"

#include <time.h>

enum { SEGMENT = 0, QUEUE = 0, SIZE = 4096, TIMES = 20 };
enum carrier { SHARED, DEVICE, TCP, CARRIERS };

static const char *const NAMES[CARRIERS] = {"shared memory", "devices", "TCP"};
static const char *const WRITTEN[CARRIERS] = {"BytesWrittenShm", "BytesWrittenVerbs",
                                              "BytesWrittenTcp"};
static const char *const READ[CARRIERS] = {"BytesReadShm", "BytesReadVerbs", "BytesReadTcp"};

static char *memory;

static void write_to(gaspi_rank_t peer, gaspi_size_t size) {
  CHECK_OK(gaspi_write(SEGMENT, 0, peer, SEGMENT, (gaspi_offset_t)SIZE * (2 + my_rank), size, QUEUE,
                       LIMIT));
  CHECK_OK(gaspi_wait(QUEUE, LIMIT));
}

static void read_from(gaspi_rank_t peer, gaspi_size_t size) {
  CHECK_OK(gaspi_read(SEGMENT, SIZE, peer, SEGMENT, (gaspi_offset_t)SIZE * (2 + my_rank), size,
                      QUEUE, LIMIT));
  CHECK_OK(gaspi_wait(QUEUE, LIMIT));
}

/* The first requests go by TCP, until the pair of devices is up. */
static void until_by_device(gaspi_rank_t peer) {
  const time_t begin = time(NULL);
  uint64_t before;
  do {
    CHECK((unsigned long)(time(NULL) - begin) < LIMIT / 1000);
    before = count_of(WRITTEN[DEVICE]);
    write_to(peer, 8);
  } while (count_of(WRITTEN[DEVICE]) == before);
}

/* Data to and from a rank goes this way, and no other one. */
static void expect(gaspi_rank_t peer, enum carrier carrier) {
  uint64_t before[2][CARRIERS];
  if (carrier == DEVICE) {
    until_by_device(peer);
  }
  for (int other = 0; other < CARRIERS; other++) {
    before[0][other] = count_of(WRITTEN[other]);
    before[1][other] = count_of(READ[other]);
  }
  for (int turn = 0; turn < TIMES; turn++) {
    memset(memory, 16 * my_rank + turn, SIZE);
    write_to(peer, SIZE);
    read_from(peer, SIZE);
    CHECK(memcmp(memory, memory + SIZE, SIZE) == 0);
  }
  for (int other = 0; other < CARRIERS; other++) {
    const uint64_t expected = other == (int)carrier ? (uint64_t)TIMES * SIZE : 0;
    const uint64_t written = count_of(WRITTEN[other]) - before[0][other];
    const uint64_t read = count_of(READ[other]) - before[1][other];
    if (written != expected || read != expected) {
      printf("rank %d: %lu bytes written to rank %d and %lu read by %s, not %lu\n", (int)my_rank,
             (unsigned long)written, (int)peer, (unsigned long)read, NAMES[other],
             (unsigned long)expected);
      fflush(stdout);
    }
    CHECK(written == expected && read == expected);
  }
  printf("rank %d: to rank %d by %s\n", (int)my_rank, (int)peer, NAMES[carrier]);
  fflush(stdout);
}

/* Whether a rank is named among those without a device. */
static int is_without(gaspi_rank_t rank, int argc, char **argv) {
  for (int named = 2; named < argc; named++) {
    if (atoi(argv[named]) == rank) {
      return 1;
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc >= 2);
  const int each = atoi(argv[1]);
  CHECK(each > 0);
  job_start();
  memory = segment_on_all(SEGMENT, (gaspi_size_t)SIZE * (2 + ranks));
  for (unsigned distance = 1; distance < ranks; distance++) {
    const gaspi_rank_t peer = rank_after(distance);
    enum carrier carrier = DEVICE;
    if (peer / each == my_rank / each) {
      carrier = SHARED;
    } else if (is_without(peer, argc, argv) || is_without(my_rank, argc, argv)) {
      carrier = TCP;
    }
    expect(peer, carrier);
  }
  job_end();
  return 0;
}
