/*
 * die.c: all ranks work until one has died. The others learn it by the first error or from the
 * state vector. What needs the dead one fails from then on. The others go on in their own group.
 */
#include "soak.h"

#include <pthread.h>

/* Rounds of calls that need the dead rank. They add another value than the mix does: the same call
 * would continue one that timed out, whose answer may be there already. */
enum { ROUNDS = 3, NEW = 7 };

static void expect_dead(worker_t *me, const char *what) {
  if (me->code != GASPI_ERROR) {
    complain(me, "%s returns %d although rank %d is dead", what, (int)me->code, (int)victim);
    return;
  }
  if (!names_rank(me->detail, victim)) {
    complain(me, "the error does not name rank %d", (int)victim);
  }
  expect_states(me, victim);
  if (me->took_us > AT_ONCE_US) {
    complain(me, "it took long to fail although rank %d is dead", (int)victim);
  }
}

/* A call that needs the dead rank. */
#define NEEDS_DEAD(me, call)  \
  do {                        \
    (void)CALL(me, call);     \
    expect_dead(me, #call);   \
  } while (0)

static void pairwise_with_dead(worker_t *me) {
  gaspi_atomic_value_t old;

  note(me, "a dead rank");
  NEEDS_DEAD(me, gaspi_atomic_fetch_add(SEGMENT, ADDED, victim, NEW, &old, GASPI_BLOCK));
  NEEDS_DEAD(me, gaspi_proc_ping(victim, GASPI_BLOCK));
  if (me->sending && CALL(me, gaspi_passive_queue_purge(GUARD)) != GASPI_SUCCESS) {
    complain(me, "passive messages cannot be purged");
  }
  me->sending = 0;
  NEEDS_DEAD(me, gaspi_passive_send(SEGMENT, PASSIVE_OUT, victim, 64, GASPI_BLOCK));
  (void)CALL(me, gaspi_write(SEGMENT, OUT, victim, SEGMENT, INBOX, 64, me->queue, GASPI_BLOCK));
  if (me->code == GASPI_SUCCESS) {
    NEEDS_DEAD(me, gaspi_wait(me->queue, GASPI_BLOCK));
  } else {
    expect_dead(me, "gaspi_write");
  }
}

static void collectives_with_dead(worker_t *me, gaspi_group_t group) {
  const gaspi_number_t count = 1 + (gaspi_number_t)draw(&me->own, 255);
  const uint64_t many = 1 + draw(&me->own, BUFFER_BYTES / 8);

  note(me, "group %d has a dead rank", (int)group);
  NEEDS_DEAD(me, gaspi_barrier(group, GASPI_BLOCK));
  NEEDS_DEAD(me, gaspi_allreduce(me->input, me->output, count, GASPI_OP_SUM, GASPI_TYPE_DOUBLE,
                                 group, GASPI_BLOCK));
  NEEDS_DEAD(me, gaspi_coll_allreduce(me->input, me->output, many, GASPI_COLL_TYPE_F64,
                                      GASPI_COLL_OP_SUM, group, NULL, GASPI_BLOCK));
}

/* A rank whose connections broke is corrupt a moment before its death is known: a call that may
 * wait fails once it is. The atomic comes right behind: a dead rank stays so from the first moment
 * on. */
static void learn(worker_t *me, outcome_t outcome) {
  worker_t first = *me;
  gaspi_atomic_value_t old;

  if (me->pairs) {
    note(me, "a rank that is just known to be dead");
    NEEDS_DEAD(me, gaspi_proc_ping(victim, GASPI_BLOCK));
    NEEDS_DEAD(me, gaspi_atomic_fetch_add(SEGMENT, ADDED, victim, NEW, &old, GASPI_BLOCK));
  }
  if (me->number == 0) {
    printf("knows %d %llu\n", (int)my_rank, (unsigned long long)now_us());
  }
  expect_states(&first, victim);
  if (outcome == ERROR_SEEN) {
    report(&first, "knew by an error");
    if (!names_rank(first.detail, victim)) {
      complain(&first, "the first error does not name rank %d", (int)victim);
    }
  }
}

/* Others may not know yet, and so may be in the collective that comes next: another one would
 * differ from it. What the dead one did before its end may be enough for this one, not for ever. */
static void finish_together(worker_t *me) {
  while (collective(me, GASPI_BLOCK) == FINE) {
  }
  expect_dead(me, "a collective of the mix");
}

/* A worker, until it knows and has checked what it can alone. */
static void *work(void *worker) {
  worker_t *me = worker;
  outcome_t outcome = FINE;

  while (outcome == FINE) {
    outcome = mix(me);
  }
  if (my_rank == victim) {
    give_up(me, "the victim thinks that somebody is dead");
  }
  learn(me, outcome);
  if (me->collectives) {
    finish_together(me);
  }
  for (int round = 0; round < ROUNDS; round++) {
    if (me->pairs) {
      pairwise_with_dead(me);
    }
    if (me->collectives) {
      collectives_with_dead(me, me->group);
    }
  }
  return NULL;
}

static gaspi_group_t group_of_all(worker_t *me) {
  gaspi_group_t group = 0;

  MUST(me, gaspi_group_create(&group));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    MUST(me, gaspi_group_add(group, rank));
  }
  MUST(me, gaspi_group_commit(group, GUARD));
  return group;
}

static void *leave(void *at_us) {
  pause_us(*(uint64_t *)at_us);
  leave_now();
}

/* The victim leaves without a word: after some calls, or in the middle of one. */
static void prepare_to_leave(worker_t *me) {
  static uint64_t at_us;
  dice_t dice = dice_of(900);
  pthread_t thread;

  if (draw(&dice, 2) == 0) {
    leave_after(1 + draw(&dice, (uint64_t)1 << (4 + draw(&dice, 8))));
    return;
  }
  at_us = draw(&dice, 80000);
  if (pthread_create(&thread, NULL, leave, &at_us) != 0) {
    give_up(me, "there is no thread");
  }
}

static void start_workers(worker_t *me) {
  pthread_t threads[WORKERS];

  for (unsigned number = 0; number < WORKERS; number++) {
    if (pthread_create(&threads[number], NULL, work, &workers[number]) != 0) {
      give_up(me, "there is no thread");
    }
  }
  for (unsigned number = 0; number < WORKERS; number++) {
    pthread_join(threads[number], NULL);
  }
}

void die(void) {
  worker_t *me = &workers[0];
  gaspi_group_t survivors = 0;

  if (scenario == THREADS) {
    workers[0].group = group_of_all(me);
    workers[1].group = group_of_all(me);
  }
  MUST(me, gaspi_group_create(&survivors));
  begin_together(me);
  if (scenario == EXIT && my_rank == victim) {
    prepare_to_leave(me);
  }
  if (scenario == THREADS) {
    start_workers(me);
    collectives_with_dead(me, GASPI_GROUP_ALL);
    recover(me, 1);
    recover(me, 2);
  } else {
    work(me);
  }
  recover(me, 0);
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    if (rank != victim) {
      MUST(me, gaspi_group_add(survivors, rank));
    }
  }
  note(me, "group %d of the survivors", (int)survivors);
  MUST(me, gaspi_group_commit(survivors, GUARD));
  go_on(me, survivors);
  MUST(me, gaspi_proc_term(GUARD));
  if (complaints() == 0) {
    printf("survived %d\n", (int)my_rank);
  }
}
