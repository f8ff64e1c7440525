/*
 * Requests that are made again where they failed, for `cargo xtask rxe`: a port goes down and comes
 * back under a job whose data goes by devices.
 *
 *     again EACH STARTED DOWN MET STOP
 *
 * EACH ranks share a host. Each rank writes to one of the next host and waits, in rounds with a
 * reduction behind each. Once data goes by devices the last rank makes the file STARTED and does
 * nothing until the file DOWN is there. Its next write meets the port that is down, behind which it
 * makes the file MET. After the file STOP is there the rounds end as soon as data of all ranks goes
 * by devices again. Whatever failed in between is an error that names the peer, and what a
 * successful wait promised has come.
 */
#include "counters.h"

#include <time.h>

enum { SEGMENT = 0, QUEUE = 0, SIZE = 4096 };
/* What ranks tell each other behind a round. */
enum { BY_DEVICE, RUNNING, NEWS };

static char *memory;
static unsigned long errors;
/* Made behind the next write, if it is the one that meets the port that is down. */
static const char *met;

static void touch(const char *name) {
  FILE *file = fopen(name, "w");
  CHECK(file != NULL);
  CHECK(fclose(file) == 0);
}

/* Waits for a file that the script makes. */
static void wait_for_file(const char *name) {
  const struct timespec pause = {0, 10 * 1000 * 1000};
  const time_t begin = time(NULL);
  while (access(name, F_OK) != 0) {
    CHECK((unsigned long)(time(NULL) - begin) < LIMIT / 1000);
    CHECK(nanosleep(&pause, NULL) == 0);
  }
}

/* Tells why a request failed, the first time in full. */
static void note_error(gaspi_return_t got, gaspi_rank_t peer) {
  char detail[1024] = "";
  char name[16];
  CHECK_OK(gaspi_error_detail(detail, sizeof detail));
  if (errors++ == 0) {
    printf("rank %d: %s\n", (int)my_rank, detail);
    fflush(stdout);
  }
  (void)snprintf(name, sizeof name, "rank %d", (int)peer);
  CHECK(got == GASPI_ERROR && strstr(detail, name) != NULL);
}

/* Where a round is written. Its writer may be in the next one already when it is looked at. */
static gaspi_offset_t place_of(unsigned long round) { return 64 + 64 * (round % 2); }

/* Writes the number of the round to a rank, again until a wait says that it is there. */
static void write_round(gaspi_rank_t peer, unsigned long round) {
  const time_t begin = time(NULL);
  gaspi_return_t got;
  memcpy(memory, &round, sizeof round);
  do {
    CHECK((unsigned long)(time(NULL) - begin) < LIMIT / 1000);
    got = gaspi_write(SEGMENT, 0, peer, SEGMENT, place_of(round), sizeof round, QUEUE, LIMIT);
    if (met != NULL) {
      touch(met);
      met = NULL;
    }
    if (got == GASPI_SUCCESS) {
      got = gaspi_wait(QUEUE, LIMIT);
    }
    if (got != GASPI_SUCCESS) {
      note_error(got, peer);
      CHECK_OK(gaspi_queue_purge(QUEUE, LIMIT));
    }
  } while (got != GASPI_SUCCESS);
}

/* One round; the news of all ranks, of each the least, are left in `news`. */
static void run_round(gaspi_rank_t peer, unsigned long round, int news[NEWS]) {
  const uint64_t before = count_of("BytesWrittenVerbs");
  unsigned long came;
  int own[NEWS];
  write_round(peer, round);
  own[BY_DEVICE] = count_of("BytesWrittenVerbs") > before;
  own[RUNNING] = news[RUNNING];
  CHECK_OK(gaspi_allreduce(own, news, NEWS, GASPI_OP_MIN, GASPI_TYPE_INT, GASPI_GROUP_ALL, LIMIT));
  memcpy(&came, memory + place_of(round), sizeof came);
  CHECK(came == round);
}

int main(int argc, char **argv) {
  CHECK(argc == 6);
  const int each = atoi(argv[1]);
  CHECK(each > 0);
  job_start();
  CHECK(ranks > (unsigned)each);
  memory = segment_on_all(SEGMENT, SIZE);
  const gaspi_rank_t peer = rank_after((unsigned)each);
  const int is_last = my_rank + 1 == ranks;
  int news[NEWS] = {0, 1};
  int started = 0;
  unsigned long round = 0;
  uint64_t by_tcp = 0;
  for (;;) {
    run_round(peer, ++round, news);
    if (!news[RUNNING] && news[BY_DEVICE]) {
      break;
    }
    if (!started && news[BY_DEVICE]) {
      by_tcp = count_of("BytesWrittenTcp");
      started = 1;
      if (is_last) {
        touch(argv[2]);
        wait_for_file(argv[3]);
        met = argv[4];
      }
    }
    if (is_last && access(argv[5], F_OK) == 0) {
      news[RUNNING] = 0;
    }
  }
  by_tcp = count_of("BytesWrittenTcp") - by_tcp;
  printf("rank %d: %lu rounds, %lu errors, %lu bytes by TCP in between\n", (int)my_rank, round,
         errors, (unsigned long)by_tcp);
  fflush(stdout);
  job_end();
  return 0;
}
