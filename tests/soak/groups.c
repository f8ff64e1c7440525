/*
 * groups.c: all ranks make, use and delete a group of all without end, until one has died. The
 * others then make their own, by the same id.
 */
#include "soak.h"

static gaspi_group_t group_without(worker_t *me, gaspi_rank_t left_out) {
  gaspi_group_t group = 0;

  MUST(me, gaspi_group_create(&group));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    if (rank != left_out) {
      MUST(me, gaspi_group_add(group, rank));
    }
  }
  return group;
}

/* One life of a group; whether a call has failed. Ranks are at it for different times. */
static int use_group(worker_t *me, int with_sum) {
  const gaspi_group_t group = group_without(me, ranks);
  double one = 1, sum = 0;

  note(me, "group %d of all", (int)group);
  (void)CALL(me, gaspi_group_commit(group, GASPI_BLOCK));
  if (me->code == GASPI_SUCCESS && with_sum) {
    (void)CALL(me, gaspi_allreduce(&one, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_DOUBLE, group,
                                   GASPI_BLOCK));
  }
  if (me->code == GASPI_SUCCESS) {
    MUST(me, gaspi_group_delete(group));
    return 0;
  }
  printf("knows %d %llu\n", (int)my_rank, (unsigned long long)now_us());
  report(me, "knew by an error");
  expect_states(me, victim);
  if (!names_rank(me->detail, victim)) {
    complain(me, "the first error does not name rank %d", (int)victim);
  }
  MUST(me, gaspi_group_delete(group));
  return 1;
}

void groups(void) {
  worker_t *me = &workers[0];
  dice_t dice = dice_of(700);
  const int with_sum = draw(&dice, 2) == 0;
  gaspi_group_t survivors;

  MUST(me, gaspi_barrier(GASPI_GROUP_ALL, GUARD));
  printf("ready %d\n", (int)my_rank);
  while (!use_group(me, with_sum)) {
  }
  if (draw(&me->own, 2) == 0) {
    pause_us(draw(&me->own, 20000));
  }
  survivors = group_without(me, victim);
  note(me, "group %d of the survivors", (int)survivors);
  MUST(me, gaspi_group_commit(survivors, GUARD));
  go_on(me, survivors);
  MUST(me, gaspi_proc_term(GUARD));
  if (complaints() == 0) {
    printf("survived %d\n", (int)my_rank);
  }
}
