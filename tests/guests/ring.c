/*
 * A ring of notified writes, for `cargo xtask rxe`: a token goes round until the file FILE is
 * there on the host of the last rank.
 *
 *     ring STARTED FILE
 *
 * The last rank makes the file STARTED after some rounds. With the environment variable
 * RING_SURVIVES the job is to lose that many of its last ranks, or the connections to them: a call
 * that fails then ends the program with status 0, after the reason and the state of a rank of the
 * other part are printed, and the end of the ring is a failure.
 */
#include "../c/check.h"

#include <time.h>

enum { SEGMENT = 0, GO_ON = 1, STOP = 2, ROUNDS = 50 };

/* How many of the last ranks are to be lost. */
static gaspi_rank_t lost_ranks;

static double now_s(void) {
  struct timespec time;
  (void)clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Whether this rank is one of those that the others are to lose. */
static int is_lost(gaspi_rank_t rank) { return lost_ranks > 0 && rank >= ranks - lost_ranks; }

/* Whether a rank is CORRUPT; where ranks are to be lost, one of the other part. Ranks of the own
 * part end without a word once they know, and this rank may learn of that first. */
static int is_loss_seen(double since_s) {
  gaspi_state_t states[256];
  int seen = 0;
  CHECK(ranks <= sizeof states / sizeof states[0]);
  CHECK_OK(gaspi_state_vec_get(states));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    const int counts = lost_ranks == 0 || is_lost(rank) != is_lost(my_rank);
    if (counts && states[rank] != GASPI_STATE_HEALTHY) {
      printf("rank %d: the state of rank %d is CORRUPT after %.1f s\n", (int)my_rank, (int)rank,
             now_s() - since_s);
      seen = 1;
    }
  }
  fflush(stdout);
  return seen;
}

/* Ends the program if a call failed: well if ranks were to be lost. */
static void expect(gaspi_return_t got, const char *what, double since_s) {
  char detail[1024] = "";
  if (got == GASPI_SUCCESS) {
    return;
  }
  (void)gaspi_error_detail(detail, sizeof detail);
  printf("rank %d: %s: %s after %.1f s: %s\n", (int)my_rank, what, gaspi_error_str(got),
         now_s() - since_s, detail);
  fflush(stdout);
  if (lost_ranks == 0 || got != GASPI_ERROR) {
    _exit(1);
  }
  while (!is_loss_seen(since_s)) {
    CHECK(now_s() - since_s < LIMIT / 1000.0);
    (void)nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
  }
  _exit(0);
}

static gaspi_notification_t receive(double since_s) {
  gaspi_notification_id_t first;
  gaspi_notification_t value;
  gaspi_return_t got = GASPI_TIMEOUT;
  while (got == GASPI_TIMEOUT && now_s() - since_s < LIMIT / 1000.0) {
    /* A notification does not come from a certain rank, so waiting for one does not fail when a
     * rank is lost. The state vector tells of it. */
    if (is_loss_seen(since_s)) {
      _exit(lost_ranks > 0 ? 0 : 1);
    }
    got = gaspi_notify_waitsome(SEGMENT, 0, 1, &first, 500);
  }
  expect(got, "notify_waitsome", since_s);
  expect(gaspi_notify_reset(SEGMENT, first, &value), "notify_reset", since_s);
  return value;
}

static void touch(const char *name) {
  FILE *file = fopen(name, "w");
  CHECK(file != NULL);
  CHECK(fclose(file) == 0);
}

int main(int argc, char **argv) {
  gaspi_pointer_t memory;
  gaspi_notification_t token = GO_ON;
  unsigned long round = 0;
  CHECK(argc == 3);
  const char *lost = getenv("RING_SURVIVES");
  job_start();
  lost_ranks = lost == NULL ? 0 : (gaspi_rank_t)atoi(lost);
  CHECK(lost_ranks < ranks);
  CHECK_OK(gaspi_segment_create(SEGMENT, 4096, GASPI_GROUP_ALL, LIMIT, GASPI_MEM_INITIALIZED));
  CHECK_OK(gaspi_segment_ptr(SEGMENT, &memory));
  const gaspi_rank_t next = (gaspi_rank_t)((my_rank + 1) % ranks);
  unsigned long *sent = (unsigned long *)memory;
  volatile unsigned long *arrived = (volatile unsigned long *)memory + 8;
  const int is_last = my_rank + 1 == ranks;
  for (;;) {
    const double since_s = now_s();
    round++;
    if (my_rank != 0) {
      token = receive(since_s);
      CHECK(*arrived == round);
    }
    if (is_last && token == STOP) {
      break;
    }
    if (is_last && round == ROUNDS) {
      touch(argv[1]);
    }
    if (is_last && access(argv[2], F_OK) == 0) {
      token = STOP;
    }
    *sent = round;
    expect(gaspi_write_notify(SEGMENT, 0, next, SEGMENT, 64, sizeof *sent, 0, token, 0, LIMIT),
           "write_notify", since_s);
    expect(gaspi_wait(0, LIMIT), "wait", since_s);
    /* The end goes round once more, from rank 0 to the last one. */
    if (!is_last && token == STOP) {
      break;
    }
    if (my_rank == 0) {
      token = receive(since_s);
      CHECK(*arrived == round);
    }
  }
  if (my_rank == 0) {
    printf("%lu rounds\n", round);
    fflush(stdout);
  }
  CHECK(lost_ranks == 0);
  job_end();
  return 0;
}
