/*
 * stop.c: all ranks work while one of them is stopped for a while now and then. Nothing fails.
 */
#include "soak.h"

void stop(const char *file) {
  worker_t *me = &workers[0];
  gaspi_state_t states[RANKS_MAX];
  unsigned rounds = 0;
  int over = 0, all_over = 0;

  MUST(me, gaspi_barrier(GASPI_GROUP_ALL, GUARD));
  printf("ready %d\n", (int)my_rank);
  while (!all_over) {
    if (mix(me) != FINE) {
      give_up(me, "an error in round %u although nobody died", rounds);
    }
    /* Rank 0 decides; all end with the same round. */
    over = my_rank == 0 && access(file, F_OK) != 0;
    note(me, "agreeing after round %u", rounds);
    while (CALL(me, gaspi_allreduce(&over, &all_over, 1, GASPI_OP_MAX, GASPI_TYPE_INT,
                                    GASPI_GROUP_ALL, 1000)) != GASPI_SUCCESS) {
      if (me->code != GASPI_TIMEOUT) {
        give_up(me, "an error after round %u although nobody died", rounds);
      }
    }
    rounds++;
  }
  if (me->sending) {
    MUST(me, gaspi_passive_queue_purge(GUARD));
  }
  go_on(me, GASPI_GROUP_ALL);
  MUST(me, gaspi_state_vec_get(states));
  memcpy(me->states, states, sizeof states);
  expect_states(me, RANKS_MAX);
  MUST(me, gaspi_proc_term(GUARD));
  if (complaints() == 0) {
    printf("finished %d after %u rounds\n", (int)my_rank, rounds);
  }
}
