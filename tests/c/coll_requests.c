/* ranks: 1 2 4 7 */
/*
 * Requests of collective operations: many at once, prepared ones in another order on each rank,
 * timeouts that continue, several groups, progress without a call, and ends in every order.
 */
#include "coll_elements.h"

#include <pthread.h>

enum { MANY = 40, PREPARED = 24, ROUNDS = 30, LONGEST = 30000 };

/* A sequence of numbers that a seed gives, another one on each rank. */
static uint64_t chance_state;

static unsigned chance(unsigned below) {
  chance_state = chance_state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(chance_state >> 33) % below;
}

static void shuffle(unsigned *order, unsigned num) {
  for (unsigned i = 0; i < num; i++) {
    order[i] = i;
  }
  for (unsigned i = num; i > 1; i--) {
    const unsigned other = chance(i);
    const unsigned kept = order[i - 1];
    order[i - 1] = order[other];
    order[other] = kept;
  }
}

/* What a rank contributes to element `at` of operation `which` in a round. */
static int64_t contribution(gaspi_rank_t rank, unsigned which, unsigned round, uint64_t at) {
  return (int64_t)(rank + 1) * 1000003 + which * 7919 + round * 104729 + (int64_t)at;
}

static void fill(int64_t *buffer, uint64_t count, unsigned which, unsigned round) {
  for (uint64_t at = 0; at < count; at++) {
    buffer[at] = contribution(my_rank, which, round, at);
  }
}

static void check(const int64_t *buffer, uint64_t count, unsigned which, unsigned round) {
  for (uint64_t at = 0; at < count; at++) {
    int64_t sum = 0;
    for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
      sum += contribution(rank, which, round, at);
    }
    CHECK(buffer[at] == sum);
  }
}

static uint64_t count_of(unsigned which) {
  static const uint64_t counts[] = {1, 5, 600, 3, LONGEST, 40, 0, 2048};
  return counts[which % 8];
}

/* Many under way on one group, ended by waits and tests in an order of this rank's own. */
static void many(void) {
  static gaspi_coll_request_t requests[MANY];
  static int64_t *buffers[MANY];
  unsigned order[MANY];

  for (unsigned i = 0; i < MANY; i++) {
    buffers[i] = (int64_t *)malloc((LONGEST + 1) * sizeof **buffers);
    CHECK(buffers[i] != NULL);
    fill(buffers[i], count_of(i), i, 0);
    CHECK_OK(gaspi_coll_allreduce_start(GASPI_COLL_IN_PLACE, buffers[i], count_of(i),
                                        GASPI_COLL_TYPE_I64, GASPI_COLL_OP_SUM, GASPI_GROUP_ALL,
                                        NULL, &requests[i], LIMIT));
    for (unsigned other = 0; other < i; other++) {
      CHECK(requests[other] != requests[i]);
    }
  }
  shuffle(order, MANY);
  for (unsigned i = 0; i < MANY; i++) {
    const unsigned which = order[i];
    int done = 0;
    while (i % 2 == 0 && !done) {
      CHECK_OK(gaspi_coll_test(requests[which], &done));
    }
    if (!done) {
      CHECK_OK(gaspi_coll_wait(requests[which], LIMIT));
    }
    check(buffers[which], count_of(which), which, 0);
    /* It has ended, and does not exist any more. */
    CHECK_ERR(gaspi_coll_wait(requests[which], GASPI_TEST), GASPI_ERROR);
    CHECK_ERR(gaspi_coll_test(requests[which], &done), GASPI_ERROR);
    CHECK_ERR(gaspi_coll_free(requests[which]), GASPI_ERROR);
    CHECK_ERR(gaspi_coll_start(requests[which]), GASPI_ERROR);
  }
  for (unsigned i = 0; i < MANY; i++) {
    free(buffers[i]);
  }
}

/* gaspi_coll_wait_all, which continues after a timeout. */
static void all_at_once(void) {
  gaspi_coll_request_t requests[8];
  int64_t buffers[8][2048];
  gaspi_return_t code;

  requests[3] = GASPI_COLL_REQUEST_NULL;
  for (unsigned i = 0; i < 8; i++) {
    fill(buffers[i], 2048, i, 1);
    if (i != 3) {
      CHECK_OK(gaspi_coll_allreduce_start(GASPI_COLL_IN_PLACE, buffers[i], 2048,
                                          GASPI_COLL_TYPE_I64, GASPI_COLL_OP_SUM, GASPI_GROUP_ALL,
                                          NULL, &requests[i], LIMIT));
    }
  }
  do {
    code = gaspi_coll_wait_all(8, requests, GASPI_TEST);
  } while (code == GASPI_TIMEOUT);
  CHECK_RC(code, GASPI_SUCCESS);
  for (unsigned i = 0; i < 8; i++) {
    CHECK(requests[i] == GASPI_COLL_REQUEST_NULL);
    if (i != 3) {
      check(buffers[i], 2048, i, 1);
    }
  }
  CHECK_OK(gaspi_coll_wait_all(8, requests, GASPI_TEST));
  CHECK_OK(gaspi_coll_wait_all(0, NULL, GASPI_TEST));
}

/* Prepared operations, started and ended in another order on each rank, in each round. */
static void prepared(gaspi_uint background) {
  static gaspi_coll_request_t requests[PREPARED];
  static int64_t *in[PREPARED], *out[PREPARED];
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;
  unsigned order[PREPARED];

  options.background = background;
  for (unsigned i = 0; i < PREPARED; i++) {
    in[i] = (int64_t *)malloc((LONGEST + 1) * sizeof **in);
    out[i] = (int64_t *)malloc((LONGEST + 1) * sizeof **out);
    CHECK(in[i] != NULL && out[i] != NULL);
    CHECK_OK(gaspi_coll_allreduce_init(in[i], out[i], count_of(i), GASPI_COLL_TYPE_I64,
                                       GASPI_COLL_OP_SUM, GASPI_GROUP_ALL, &options, &requests[i],
                                       LIMIT));
    CHECK_OK(gaspi_coll_wait(requests[i], GASPI_TEST));
  }
  for (unsigned round = 0; round < ROUNDS; round++) {
    shuffle(order, PREPARED);
    for (unsigned i = 0; i < PREPARED; i++) {
      fill(in[order[i]], count_of(order[i]), order[i], round);
      CHECK_OK(gaspi_coll_start(requests[order[i]]));
    }
    if (round % 3 == 2) {
      CHECK_OK(gaspi_coll_wait_all(PREPARED, requests, LIMIT));
    } else {
      shuffle(order, PREPARED);
      for (unsigned i = 0; i < PREPARED; i++) {
        CHECK_OK(gaspi_coll_wait(requests[order[i]], LIMIT));
      }
    }
    for (unsigned i = 0; i < PREPARED; i++) {
      int done = 0;
      CHECK_OK(gaspi_coll_test(requests[i], &done));
      CHECK(done == 1);
      check(out[i], count_of(i), i, round);
    }
  }
  for (unsigned i = 0; i < PREPARED; i++) {
    CHECK_OK(gaspi_coll_free(requests[i]));
    CHECK_ERR(gaspi_coll_free(requests[i]), GASPI_ERROR);
    CHECK_ERR(gaspi_coll_start(requests[i]), GASPI_ERROR);
    free(in[i]);
    free(out[i]);
  }
}

/* A prepared operation that others have not started yet: under way, cannot be started or freed. */
static void under_way(void) {
  gaspi_coll_request_t request;
  int64_t buffer[3];
  int done = 77;

  fill(buffer, 3, 0, 2);
  CHECK_OK(gaspi_coll_allreduce_init(GASPI_COLL_IN_PLACE, buffer, 3, GASPI_COLL_TYPE_I64,
                                     GASPI_COLL_OP_SUM, GASPI_GROUP_ALL, NULL, &request, LIMIT));
  if (ranks > 1 && my_rank == 0) {
    CHECK_OK(gaspi_coll_start(request));
    CHECK_OK(gaspi_coll_test(request, &done));
    CHECK(done == 0);
    CHECK_RC(gaspi_coll_wait(request, GASPI_TEST), GASPI_TIMEOUT);
    CHECK_RC(gaspi_coll_wait(request, 20), GASPI_TIMEOUT);
    CHECK_ERR(gaspi_coll_start(request), GASPI_ERROR);
    CHECK_ERR(gaspi_coll_free(request), GASPI_ERROR);
    sync_all();
  } else {
    sync_all();
    CHECK_OK(gaspi_coll_start(request));
  }
  CHECK_OK(gaspi_coll_wait(request, LIMIT));
  check(buffer, 3, 0, 2);
  CHECK_OK(gaspi_coll_free(request));
}

/* A waiting call that ran into its timeout is continued by the same call, and by no other. */
static void continued(void) {
  int64_t buffer[100], other[100], out[100];

  fill(buffer, 100, 0, 3);
  if (ranks > 1 && my_rank == 0) {
    CHECK_RC(gaspi_coll_allreduce(buffer, out, 100, GASPI_COLL_TYPE_I64, GASPI_COLL_OP_SUM,
                                  GASPI_GROUP_ALL, NULL, 20),
             GASPI_TIMEOUT);
    CHECK_ERR(gaspi_coll_allreduce(other, out, 100, GASPI_COLL_TYPE_I64, GASPI_COLL_OP_SUM,
                                   GASPI_GROUP_ALL, NULL, 20),
              GASPI_ERR_ACTIVE_COLL);
    CHECK_ERR(gaspi_coll_barrier(GASPI_GROUP_ALL, NULL, 20), GASPI_ERR_ACTIVE_COLL);
  }
  sync_all();
  CHECK_OK(gaspi_coll_allreduce(buffer, out, 100, GASPI_COLL_TYPE_I64, GASPI_COLL_OP_SUM,
                                GASPI_GROUP_ALL, NULL, LIMIT));
  check(out, 100, 0, 3);
}

/* An operation that others look after while this rank makes no call but barriers. */
static void background(void) {
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;
  gaspi_coll_request_t request;
  static int64_t buffer[LONGEST];
  int done = 0;

  options.background = 1;
  fill(buffer, LONGEST, 5, 4);
  CHECK_OK(gaspi_coll_allreduce_start(GASPI_COLL_IN_PLACE, buffer, LONGEST, GASPI_COLL_TYPE_I64,
                                      GASPI_COLL_OP_SUM, GASPI_GROUP_ALL, &options, &request,
                                      LIMIT));
  /* Rank 0 ends its operation although no other rank tests or waits meanwhile. */
  if (my_rank == 0) {
    CHECK_OK(gaspi_coll_wait(request, LIMIT));
    sync_all();
  } else {
    sync_all();
    while (!done) {
      CHECK_OK(gaspi_coll_test(request, &done));
    }
  }
  check(buffer, LONGEST, 5, 4);
}

/* A thread that works on its own group. */
static void *on_own_group(void *argument) {
  const gaspi_group_t group = *(const gaspi_group_t *)argument;
  int64_t in[50], out[50];

  for (unsigned round = 0; round < 50; round++) {
    fill(in, 50, group, round);
    CHECK_OK(gaspi_coll_allreduce(in, out, 50, GASPI_COLL_TYPE_I64, GASPI_COLL_OP_SUM, group, NULL,
                                  LIMIT));
    check(out, 50, group, round);
  }
  return NULL;
}

/* Two groups of the same ranks, each used by a thread, at the same time. */
static void two_groups(void) {
  gaspi_group_t groups[2] = {GASPI_GROUP_ALL, 0};
  pthread_t threads[2];

  CHECK_OK(gaspi_group_create(&groups[1]));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_group_add(groups[1], rank));
  }
  CHECK_OK(gaspi_group_commit(groups[1], LIMIT));
  for (unsigned i = 0; i < 2; i++) {
    CHECK(pthread_create(&threads[i], NULL, on_own_group, &groups[i]) == 0);
  }
  for (unsigned i = 0; i < 2; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  sync_all();
  CHECK_OK(gaspi_group_delete(groups[1]));
}

int main(void) {
  job_start();
  chance_state = my_rank * 7919u + 1;
  many();
  all_at_once();
  prepared(0);
  prepared(1);
  under_way();
  continued();
  background();
  two_groups();
  job_end();
  return 0;
}
