/* ranks: 1 2 5 */
/*
 * Process management: life cycle, ranks, local ranks, connections, liveness, state vector.
 */
#include "check.h"

static void before_init(void) {
  gaspi_number_t initialized = 7;
  gaspi_rank_t rank = 0;

  CHECK_OK(gaspi_initialized(&initialized));
  CHECK(initialized == 0);
  CHECK_ERR(gaspi_proc_rank(&rank), GASPI_ERR_NOINIT);
  CHECK_ERR(gaspi_proc_term(LIMIT), GASPI_ERR_NOINIT);
}

/* What only makes sense once is refused the second time, and nothing changes by it. */
static void once_only(void) {
  gaspi_number_t initialized = 0;
  gaspi_config_t config;
  gaspi_rank_t rank = 0;

  CHECK_OK(gaspi_initialized(&initialized));
  CHECK(initialized == 1);
  CHECK_ERR(gaspi_proc_init(LIMIT), GASPI_ERR_INITED);
  CHECK_ERR(gaspi_proc_init(GASPI_TEST), GASPI_ERR_INITED);
  CHECK_OK(gaspi_config_get(&config));
  CHECK_ERR(gaspi_config_set(config), GASPI_ERR_INITED);
  CHECK_OK(gaspi_proc_rank(&rank));
  CHECK(rank == my_rank);
}

/* Ranks are 0 to num - 1, each once. */
static void numbering(void) {
  const char *given_rank = getenv("GASPI_RANK");
  const char *given_num = getenv("GASPI_NRANKS");
  gaspi_ulong mine[3] = {1, my_rank, (gaspi_ulong)my_rank * my_rank};
  gaspi_ulong sum[3] = {0, 0, 0};
  gaspi_ulong expected = 0;
  gaspi_ulong expected_squares = 0;

  if (given_rank != NULL) {
    CHECK(atoi(given_rank) == (int)my_rank);
  }
  if (given_num != NULL) {
    CHECK(atoi(given_num) == (int)ranks);
  }
  for (gaspi_ulong rank = 0; rank < ranks; rank++) {
    expected += rank;
    expected_squares += rank * rank;
  }
  CHECK_OK(gaspi_allreduce(mine, sum, 3, GASPI_OP_SUM, GASPI_TYPE_ULONG, GASPI_GROUP_ALL, LIMIT));
  CHECK(sum[0] == ranks);
  CHECK(sum[1] == expected);
  CHECK(sum[2] == expected_squares);
}

static void local_numbering(void) {
  gaspi_rank_t local_rank = 0;
  gaspi_rank_t local_num = 0;
  gaspi_uint firsts = 0;
  gaspi_uint mine;

  CHECK_OK(gaspi_proc_local_rank(&local_rank));
  CHECK_OK(gaspi_proc_local_num(&local_num));
  CHECK(local_num >= 1 && local_num <= ranks);
  CHECK(local_rank < local_num);
  CHECK(local_rank <= my_rank);
  mine = local_rank == 0;
  CHECK_OK(gaspi_allreduce(&mine, &firsts, 1, GASPI_OP_SUM, GASPI_TYPE_UINT, GASPI_GROUP_ALL,
                           LIMIT));
  CHECK(firsts >= 1 && firsts <= ranks);
}

static void connections(void) {
  CHECK_ERR(gaspi_connect(ranks, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_disconnect(ranks, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_connect(65535, LIMIT), GASPI_ERR_INV_RANK);
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_connect(rank, LIMIT));
    CHECK_OK(gaspi_connect(rank, LIMIT));
  }
  sync_all();
  if (my_rank == 0) {
    for (gaspi_rank_t rank = 1; rank < ranks; rank++) {
      CHECK_OK(gaspi_disconnect(rank, LIMIT));
      CHECK_OK(gaspi_disconnect(rank, LIMIT));
      CHECK_OK(gaspi_connect(rank, LIMIT));
    }
  }
  sync_all();
}

static void liveness(void) {
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_proc_ping(rank, LIMIT));
  }
  CHECK_ERR(gaspi_proc_ping(ranks, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_proc_kill(ranks, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_proc_kill(my_rank, LIMIT), GASPI_ERR_INV_RANK);
}

/* One four-byte state per rank, and not a byte more. */
static void state_vector(void) {
  gaspi_state_t *states = (gaspi_state_t *)malloc((ranks + 2u) * sizeof *states);

  CHECK(states != NULL);
  memset(states, 0x5a, (ranks + 2u) * sizeof *states);
  CHECK_OK(gaspi_state_vec_get(states + 1));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK(states[1 + rank] == GASPI_STATE_HEALTHY);
  }
  CHECK(((unsigned char *)states)[3] == 0x5a);
  CHECK(((unsigned char *)(states + ranks + 1))[0] == 0x5a);
  free(states);
}

static void after_term(void) {
  gaspi_number_t initialized = 7;
  gaspi_rank_t rank = 0;

  CHECK_OK(gaspi_initialized(&initialized));
  CHECK(initialized == 0);
  CHECK_ERR(gaspi_proc_rank(&rank), GASPI_ERR_NOINIT);
  CHECK_ERR(gaspi_proc_term(LIMIT), GASPI_ERR_NOINIT);
}

int main(void) {
  before_init();
  job_start();
  once_only();
  numbering();
  local_numbering();
  connections();
  liveness();
  state_vector();
  job_end();
  after_term();
  return 0;
}
