/*
 * fusion.c: all ranks make fused buffers, sum in them for some steps and free them, without end.
 * Most steps are submitted by several threads of each rank. One rank dies at any moment, in the
 * middle of submits too, ends by itself after some call, or is stopped now and then. The others
 * hear of a death by the next error, free what they have, and go on with a new one.
 */
#include "soak.h"

#include <pthread.h>

enum { TENSORS_MAX = 12, COUNT_MAX = 20000, STEPS_MAX = 3 };

/* A fused buffer as all ranks draw it. */
typedef struct {
  gaspi_fusion_tensor_t tensors[TENSORS_MAX];
  gaspi_size_t num;
  gaspi_fusion_options_t options;
  unsigned steps;
  gaspi_group_t group;
  gaspi_rank_t members[RANKS_MAX];
  gaspi_number_t size;
  int is_made;
  gaspi_fusion_t fusion;
} buffer_t;

static float element(gaspi_rank_t rank, gaspi_size_t tensor, unsigned step, uint64_t index) {
  return (float)((rank * 5 + tensor * 3 + step * 7 + index) % 23) - 8.0F;
}

static void draw_buffer(worker_t *me, buffer_t *it, gaspi_group_t group) {
  static const gaspi_size_t thresholds[3] = {0, 4096, 32768};

  memset(it, 0, sizeof *it);
  it->group = group;
  it->options = (gaspi_fusion_options_t)GASPI_FUSION_OPTIONS_INIT;
  it->options.threshold = thresholds[draw(&me->common, 3)];
  it->options.order = draw(&me->common, 2) == 0 ? GASPI_FUSION_DECLARED : GASPI_FUSION_REVERSE;
  it->options.background = draw(&me->own, 4) != 0;
  it->num = 1 + draw(&me->common, TENSORS_MAX);
  it->steps = 1 + (unsigned)draw(&me->common, STEPS_MAX);
  for (gaspi_size_t tensor = 0; tensor < it->num; tensor++) {
    const uint64_t limit = draw(&me->common, 3) == 0 ? COUNT_MAX : 400;

    it->tensors[tensor].count = 1 + draw(&me->common, limit);
    it->tensors[tensor].datatype = GASPI_COLL_TYPE_F32;
  }
  if (gaspi_group_size(group, &it->size) != GASPI_SUCCESS || it->size > RANKS_MAX ||
      gaspi_group_ranks(group, it->members) != GASPI_SUCCESS) {
    give_up(me, "group %d has no members", (int)group);
  }
}

static void check(worker_t *me, const buffer_t *it, gaspi_size_t tensor, unsigned step,
                  const float *found) {
  for (uint64_t index = 0; index < it->tensors[tensor].count; index++) {
    float sum = 0;

    for (gaspi_number_t member = 0; member < it->size; member++) {
      sum += element(it->members[member], tensor, step, index);
    }
    if (found[index] != sum) {
      complain(me, "element %lu of tensor %lu in step %u is %g, not %g", (unsigned long)index,
               tensor, step, (double)found[index], (double)sum);
      return;
    }
  }
}

/* Repeats a call that times out, with this rank's patience. */
#define UNTIL_DONE(me, call)                                                           \
  do {                                                                                 \
    const uint64_t until_began = now_us();                                             \
    while (CALL(me, call) == GASPI_TIMEOUT) {                                          \
      if (now_us() - until_began > HANG_US) {                                          \
        give_up(me, "%s was repeated after timeouts for 10 s", #call);                 \
      }                                                                                \
    }                                                                                  \
  } while (0)

static void hand_over(worker_t *me, const buffer_t *it, gaspi_size_t tensor, unsigned step) {
  void *place = me->input;

  if (draw(&me->own, 2) == 0) {
    (void)CALL(me, gaspi_fusion_tensor_ptr(it->fusion, tensor, &place));
  }
  for (uint64_t index = 0; index < it->tensors[tensor].count; index++) {
    ((float *)place)[index] = element(my_rank, tensor, step, index);
  }
  (void)CALL(me, gaspi_fusion_submit(it->fusion, tensor, place, 1.0));
}

/* Whether the last call, which may fail because a rank has died, has. */
static int has_failed(const worker_t *me) { return me->code != GASPI_SUCCESS; }

/* What a thread submits of a step: every so many'th tensor. */
typedef struct {
  worker_t *worker;
  const buffer_t *it;
  const gaspi_size_t *order;
  unsigned step;
  unsigned threads;
} share_t;

static void *hand_share_over(void *given) {
  const share_t *share = given;
  worker_t *me = share->worker;

  me->code = GASPI_SUCCESS;
  for (gaspi_size_t place = me->number; place < share->it->num; place += share->threads) {
    note(me, "step %u, tensor %lu of %lu, %u threads", share->step, share->order[place],
         share->it->num, share->threads);
    hand_over(me, share->it, share->order[place], share->step);
    if (has_failed(me)) {
      break;
    }
  }
  return NULL;
}

/* Submits all tensors, by one thread or several; the error of any of them is this worker's. */
static void hand_all_over(worker_t *me, const buffer_t *it, const gaspi_size_t *order,
                          unsigned step) {
  const unsigned several = draw(&me->own, 4) != 0, threads = several ? WORKERS : 1;
  pthread_t started[WORKERS];
  share_t shares[WORKERS];

  for (unsigned number = 0; number < threads; number++) {
    shares[number] = (share_t){&workers[number], it, order, step, threads};
    if (number > 0 &&
        pthread_create(&started[number], NULL, hand_share_over, &shares[number]) != 0) {
      give_up(me, "there is no thread");
    }
  }
  (void)hand_share_over(&shares[0]);
  for (unsigned number = 1; number < threads; number++) {
    const worker_t *other = &workers[number];

    pthread_join(started[number], NULL);
    if (has_failed(other) && !has_failed(me)) {
      atomic_store(&me->call, atomic_load(&other->call));
      memcpy(me->note, other->note, sizeof me->note);
      me->took_us = other->took_us;
      me->code = other->code;
      memcpy(me->states, other->states, sizeof me->states);
      memcpy(me->detail, other->detail, sizeof me->detail);
    }
  }
}

static void take_over(worker_t *me, const buffer_t *it, gaspi_size_t tensor, unsigned step,
                      gaspi_timeout_t timeout) {
  float *sum = (float *)(void *)me->output;
  const void *lent = NULL;
  int done = 0;

  switch (draw(&me->own, 3)) {
    case 0:
      UNTIL_DONE(me, gaspi_fusion_result(it->fusion, tensor, &lent, timeout));
      if (me->code == GASPI_SUCCESS) {
        check(me, it, tensor, step, lent);
        MUST(me, gaspi_fusion_release(it->fusion, tensor, lent));
      }
      return;
    case 1:
      do {
        (void)CALL(me, gaspi_fusion_test(it->fusion, tensor, sum, &done));
      } while (me->code == GASPI_SUCCESS && !done);
      break;
    default:
      UNTIL_DONE(me, gaspi_fusion_wait(it->fusion, tensor, sum, timeout));
  }
  if (me->code == GASPI_SUCCESS) {
    check(me, it, tensor, step, sum);
  }
}

static int one_step(worker_t *me, const buffer_t *it, unsigned step, gaspi_timeout_t timeout) {
  gaspi_size_t order[TENSORS_MAX], buckets = 0, bucket = 0;

  for (gaspi_size_t place = 0; place < it->num; place++) {
    const gaspi_size_t other = draw(&me->own, place + 1);

    order[place] = order[other];
    order[other] = place;
  }
  hand_all_over(me, it, order, step);
  if (has_failed(me)) {
    return 0;
  }
  MUST(me, gaspi_fusion_buckets(it->fusion, &buckets));
  for (gaspi_size_t number = 0; number < buckets; number++) {
    UNTIL_DONE(me, gaspi_fusion_next(it->fusion, &bucket, timeout));
    if (has_failed(me)) {
      return 0;
    }
  }
  for (gaspi_size_t place = 0; place < it->num; place++) {
    take_over(me, it, order[place], step, timeout);
    if (has_failed(me)) {
      return 0;
    }
  }
  return 1;
}

/* The life of a fused buffer; 0 if a call has failed, whose error the worker still has. */
static int live(worker_t *me, buffer_t *it, gaspi_group_t group) {
  static const gaspi_timeout_t timeouts[4] = {GASPI_BLOCK, 1, 10, 50};
  const gaspi_timeout_t timeout = timeouts[draw(&me->own, 4)];

  draw_buffer(me, it, group);
  note(me, "%lu tensors in group %d", it->num, (int)group);
  UNTIL_DONE(me, gaspi_fusion_create(it->tensors, it->num, group, &it->options, &it->fusion,
                                     timeout));
  if (has_failed(me)) {
    return 0;
  }
  it->is_made = 1;
  for (unsigned step = 0; step < it->steps; step++) {
    if (!one_step(me, it, step, timeout)) {
      return 0;
    }
  }
  MUST(me, gaspi_fusion_free(it->fusion));
  return 1;
}

/* Until one has died. */
void fuse(void) {
  worker_t *me = &workers[0];
  dice_t dice = dice_of(900);
  gaspi_group_t survivors = 0;
  buffer_t it;

  begin_together(me);
  if (scenario == FUSION_EXIT && my_rank == victim) {
    leave_after(1 + draw(&dice, (uint64_t)1 << (3 + draw(&dice, 7))));
  }
  while (live(me, &it, GASPI_GROUP_ALL)) {
  }
  printf("knows %d %llu\n", (int)my_rank, (unsigned long long)now_us());
  report(me, "knew by an error");
  expect_states(me, victim);
  if (!names_rank(me->detail, victim)) {
    complain(me, "the first error does not name rank %d", (int)victim);
  }
  if (it.is_made) {
    MUST(me, gaspi_fusion_free(it.fusion));
  }
  MUST(me, gaspi_group_create(&survivors));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    if (rank != victim) {
      MUST(me, gaspi_group_add(survivors, rank));
    }
  }
  note(me, "group %d of the survivors", (int)survivors);
  MUST(me, gaspi_group_commit(survivors, GUARD));
  me->common = dice_of(600);
  for (int number = 0; number < 3; number++) {
    if (!live(me, &it, survivors)) {
      give_up(me, "fused buffer %d afterwards fails", number);
    }
  }
  go_on(me, survivors);
  MUST(me, gaspi_proc_term(GUARD));
  if (complaints() == 0) {
    printf("survived %d\n", (int)my_rank);
  }
}

/* While one is stopped now and then: nothing fails. */
void fuse_stopped(const char *file) {
  worker_t *me = &workers[0];
  int over = 0, all_over = 0;
  unsigned rounds = 0;
  buffer_t it;

  MUST(me, gaspi_barrier(GASPI_GROUP_ALL, GUARD));
  printf("ready %d\n", (int)my_rank);
  while (!all_over) {
    if (!live(me, &it, GASPI_GROUP_ALL)) {
      give_up(me, "an error in round %u although nobody died", rounds);
    }
    /* Rank 0 decides; all end with the same round. */
    over = my_rank == 0 && access(file, F_OK) != 0;
    UNTIL_DONE(me, gaspi_allreduce(&over, &all_over, 1, GASPI_OP_MAX, GASPI_TYPE_INT,
                                   GASPI_GROUP_ALL, 1000));
    if (has_failed(me)) {
      give_up(me, "an error after round %u although nobody died", rounds);
    }
    rounds++;
  }
  go_on(me, GASPI_GROUP_ALL);
  MUST(me, gaspi_proc_term(GUARD));
  if (complaints() == 0) {
    printf("finished %d after %u rounds\n", (int)my_rank, rounds);
  }
}
