/*
 * mix.c: operations at random, whose results are checked. Pairwise ones are drawn by each rank on
 * its own, collective ones are the same on all ranks.
 */
#include "soak.h"

static uint64_t fixed_word(gaspi_rank_t rank, uint64_t index) {
  return (uint64_t)rank << 48 | index;
}

static uint64_t written_word(gaspi_rank_t source, uint32_t number, uint64_t index) {
  return ((uint64_t)source + 1) << 56 | (uint64_t)(number & 0xffffffu) << 32 | index;
}

void prepare_mix(void) {
  uint64_t *fixed;

  for (unsigned number = 0; number < WORKERS; number++) {
    worker_t *me = &workers[number];

    me->number = number;
    me->queue = (gaspi_queue_id_t)number;
    me->own = dice_of(1000 + 10u * my_rank + number);
    me->common = dice_of(number);
    me->pairs = scenario != THREADS || number == 2;
    me->collectives = scenario != THREADS || number != 2;
    me->input = malloc(BUFFER_BYTES);
    me->output = malloc(BUFFER_BYTES);
    if (me->input == NULL || me->output == NULL) {
      give_up(me, "there is no memory");
    }
    for (gaspi_rank_t rank = 0; rank < RANKS_MAX; rank++) {
      me->may_write[rank] = 1;
    }
  }
  fixed = (uint64_t *)(void *)(segment + FIXED);
  for (uint64_t index = 0; index < FIXED_BYTES / 8; index++) {
    fixed[index] = fixed_word(my_rank, index);
  }
}

/* Whether something other than a call says that the mix is over. */
outcome_t look(worker_t *me) {
  if (scenario == DIE || scenario == EXIT || scenario == THREADS) {
    gaspi_state_t states[RANKS_MAX];
    int corrupt = 0;

    if (gaspi_state_vec_get(states) != GASPI_SUCCESS) {
      give_up(me, "gaspi_state_vec_get failed");
    }
    for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
      corrupt |= states[rank] != GASPI_STATE_HEALTHY;
    }
    if (corrupt) {
      memcpy(me->states, states, sizeof states);
      return STATE_SEEN;
    }
  }
  if (scenario == CUTTING) {
    gaspi_notification_id_t first;

    if (gaspi_notify_waitsome(SEGMENT, STOP, 1, &first, GASPI_TEST) == GASPI_SUCCESS) {
      return TOLD;
    }
  }
  return FINE;
}

static gaspi_rank_t other(worker_t *me) {
  return (gaspi_rank_t)((my_rank + 1 + draw(&me->own, (uint64_t)ranks - 1)) % ranks);
}

/* 8 to `most` bytes, small ones as often as large ones. */
static gaspi_size_t random_bytes(worker_t *me, gaspi_size_t most) {
  const gaspi_size_t limit = (gaspi_size_t)8 << draw(&me->own, 16);
  const gaspi_size_t words = 1 + draw(&me->own, (limit < most ? limit : most) / 8);

  return 8 * words;
}

/* Calls `call` until it has not timed out; for longer than HANG_US is a failure. */
#define REPEAT(me, code, call)                                                        \
  do {                                                                                \
    const uint64_t repeat_began = now_us();                                           \
    while (((code) = CALL(me, call)) == GASPI_TIMEOUT) {                              \
      if (now_us() - repeat_began > HANG_US) {                                        \
        give_up(me, "a call was repeated after timeouts for 10 s");                   \
      }                                                                               \
    }                                                                                 \
  } while (0)

static gaspi_timeout_t patience(worker_t *me) {
  static const gaspi_timeout_t choice[4] = {GASPI_BLOCK, 1, 20, GASPI_BLOCK};

  return choice[draw(&me->own, 4)];
}

static outcome_t outcome_of(gaspi_return_t code) {
  return is_failure(code) ? ERROR_SEEN : FINE;
}

static outcome_t write_to(worker_t *me, gaspi_rank_t to) {
  uint64_t *out = (uint64_t *)(void *)(segment + OUT);
  const gaspi_size_t bytes = random_bytes(me, WRITE_MAX);
  const gaspi_timeout_t timeout = patience(me);
  const gaspi_offset_t inbox = INBOX + (gaspi_offset_t)my_rank * WRITE_MAX;
  gaspi_return_t code;

  for (uint64_t index = 0; index < bytes / 8; index++) {
    out[index] = written_word(my_rank, me->sent[to], index);
  }
  note(me, "write of %lu bytes to rank %d", bytes, (int)to);
  me->may_write[to] = 0;
  code = CALL(me, gaspi_write_notify(SEGMENT, OUT, to, SEGMENT, inbox, bytes, WRITTEN + my_rank,
                                     (gaspi_notification_t)bytes, me->queue, GASPI_BLOCK));
  if (code == GASPI_SUCCESS) {
    me->sent[to]++;
    REPEAT(me, code, gaspi_wait(me->queue, timeout));
  }
  return outcome_of(code);
}

/* Takes what others have written, and tells them. */
static outcome_t take(worker_t *me) {
  for (gaspi_rank_t source = 0; source < ranks; source++) {
    const uint64_t *in = (const uint64_t *)(const void *)(segment + INBOX + source * WRITE_MAX);
    gaspi_notification_id_t first;
    gaspi_notification_t bytes = 0;
    gaspi_return_t code;

    if (gaspi_notify_waitsome(SEGMENT, TAKEN + source, 1, &first, GASPI_TEST) == GASPI_SUCCESS) {
      gaspi_notify_reset(SEGMENT, first, NULL);
      me->may_write[source] = 1;
    }
    if (gaspi_notify_waitsome(SEGMENT, WRITTEN + source, 1, &first, GASPI_TEST) != GASPI_SUCCESS ||
        gaspi_notify_reset(SEGMENT, first, &bytes) != GASPI_SUCCESS) {
      continue;
    }
    for (uint64_t index = 0; index < bytes / 8; index++) {
      if (in[index] != written_word(source, me->received[source], index)) {
        complain(me, "word %lu of %u bytes that rank %d wrote is %lx", (unsigned long)index, bytes,
                 (int)source, (unsigned long)in[index]);
        break;
      }
    }
    me->received[source]++;
    note(me, "thanks to rank %d", (int)source);
    code = CALL(me, gaspi_notify(SEGMENT, source, TAKEN + my_rank, 1, me->queue, GASPI_BLOCK));
    if (code == GASPI_QUEUE_FULL || code == GASPI_SUCCESS) {
      REPEAT(me, code, gaspi_wait(me->queue, GASPI_BLOCK));
    }
    if (is_failure(code)) {
      return ERROR_SEEN;
    }
  }
  return FINE;
}

static outcome_t read_from(worker_t *me, gaspi_rank_t from) {
  const uint64_t *in = (const uint64_t *)(const void *)(segment + IN);
  const gaspi_size_t bytes = random_bytes(me, FIXED_BYTES);
  const gaspi_offset_t offset = 8 * draw(&me->own, (FIXED_BYTES - bytes) / 8 + 1);
  const gaspi_timeout_t timeout = patience(me);
  gaspi_return_t code;

  note(me, "read of %lu bytes from rank %d", bytes, (int)from);
  code = CALL(me, gaspi_read(SEGMENT, IN, from, SEGMENT, FIXED + offset, bytes, me->queue,
                             GASPI_BLOCK));
  if (code == GASPI_SUCCESS) {
    REPEAT(me, code, gaspi_wait(me->queue, timeout));
  }
  for (uint64_t index = 0; code == GASPI_SUCCESS && index < bytes / 8; index++) {
    if (in[index] != fixed_word(from, offset / 8 + index)) {
      complain(me, "word %lu is %lx", (unsigned long)index, (unsigned long)in[index]);
      break;
    }
  }
  return outcome_of(code);
}

static outcome_t add(worker_t *me, gaspi_rank_t to) {
  gaspi_atomic_value_t old = 0;
  const gaspi_timeout_t timeout = patience(me);

  note(me, "rank %d", (int)to);
  if (CALL(me, gaspi_atomic_fetch_add(SEGMENT, ADDED, to, 1, &old, timeout)) == GASPI_SUCCESS) {
    if (old < me->added[to]) {
      complain(me, "a counter went from %lu to %lu", (unsigned long)me->added[to], old);
    }
    me->added[to] = old + 1;
  }
  return outcome_of(me->code);
}

static outcome_t swap(worker_t *me, gaspi_rank_t to) {
  const gaspi_offset_t offset = SWAPPED + 8u * my_rank;
  const gaspi_timeout_t timeout = patience(me);
  uint64_t *known = &me->swapped[to];
  gaspi_atomic_value_t old = 0;
  gaspi_return_t code;

  note(me, "rank %d", (int)to);
  code = CALL(me, gaspi_atomic_compare_swap(SEGMENT, offset, to, *known, *known + 1, &old,
                                            timeout));
  if (code == GASPI_TIMEOUT) {
    me->swap_unsure[to] = 1;
  } else if (code == GASPI_SUCCESS) {
    if (old != *known && !(me->swap_unsure[to] && old == *known + 1)) {
      complain(me, "%lu was swapped, not %lu", old, (unsigned long)*known);
    }
    *known = old == *known ? old + 1 : old;
    me->swap_unsure[to] = 0;
  }
  return outcome_of(code);
}

static outcome_t send(worker_t *me, gaspi_rank_t to) {
  uint64_t *out = (uint64_t *)(void *)(segment + PASSIVE_OUT);

  if (!me->sending) {
    me->sending = 1;
    me->sending_to = to;
    me->sending_bytes = random_bytes(me, PASSIVE_MAX);
    for (uint64_t index = 0; index < me->sending_bytes / 8; index++) {
      out[index] = written_word(my_rank, (uint32_t)me->sending_bytes, index);
    }
  }
  note(me, "%lu bytes to rank %d", me->sending_bytes, (int)me->sending_to);
  if (CALL(me, gaspi_passive_send(SEGMENT, PASSIVE_OUT, me->sending_to, me->sending_bytes, 5)) !=
      GASPI_TIMEOUT) {
    me->sending = 0;
  }
  return outcome_of(me->code);
}

static outcome_t receive(worker_t *me) {
  const uint64_t *in = (const uint64_t *)(const void *)(segment + PASSIVE_IN);
  const gaspi_timeout_t timeout = draw(&me->own, 2) == 0 ? GASPI_TEST : 1;
  gaspi_rank_t from = 9999;

  note(me, "from any");
  if (CALL(me, gaspi_passive_receive(SEGMENT, PASSIVE_IN, &from, PASSIVE_MAX, timeout)) ==
      GASPI_SUCCESS) {
    const uint32_t bytes = (uint32_t)(in[0] >> 32 & 0xffffffu);

    for (uint64_t index = 0; index == 0 || index < bytes / 8; index++) {
      if (bytes > PASSIVE_MAX || in[index] != written_word(from, bytes, index)) {
        complain(me, "word %lu of a message of rank %d is %lx", (unsigned long)index, (int)from,
                 (unsigned long)in[index]);
        break;
      }
    }
  }
  return outcome_of(me->code);
}

/* One pairwise operation with a random rank. */
outcome_t pairwise(worker_t *me) {
  const gaspi_rank_t rank = other(me);
  outcome_t outcome = take(me);

  if (outcome != FINE) {
    return outcome;
  }
  switch (draw(&me->own, 8)) {
    case 0:
    case 1:
      if (me->may_write[rank]) {
        return write_to(me, rank);
      }
      return read_from(me, rank);
    case 2:
      return read_from(me, rank);
    case 3:
      return add(me, rank);
    case 4:
      return swap(me, rank);
    case 5:
      return send(me, rank);
    case 6:
      return receive(me);
    default: {
      const gaspi_timeout_t timeout = patience(me);
      note(me, "rank %d", (int)rank);
      (void)CALL(me, gaspi_proc_ping(rank, timeout));
      return outcome_of(me->code);
    }
  }
}

/* An all-reduce that all members of a group draw alike. */
typedef struct {
  int coll; /* by gaspi_coll_allreduce */
  uint64_t count;
  gaspi_operation_t operation;
  double *input, *output;
  unsigned background;
} sum_t;

static double contribution(gaspi_rank_t rank, uint64_t index) {
  return (double)((rank + 1) * (1 + index % 7));
}

static sum_t draw_sum(worker_t *me, int coll) {
  static const gaspi_operation_t operations[4] = {GASPI_OP_SUM, GASPI_OP_SUM, GASPI_OP_MIN,
                                                  GASPI_OP_MAX};
  const uint64_t limit = coll ? (uint64_t)1 << draw(&me->common, 18) : 255;
  char *own = segment + BUFFERS + 2 * me->number * BUFFER_BYTES;
  sum_t sum;

  sum.coll = coll;
  sum.count = 1 + draw(&me->common, limit);
  sum.count = sum.count > BUFFER_BYTES / 8 ? BUFFER_BYTES / 8 : sum.count;
  sum.operation = operations[draw(&me->common, 4)];
  sum.background = draw(&me->own, 4) == 0;
  sum.input = draw(&me->own, 2) == 0 ? me->input : (double *)(void *)own;
  sum.output = draw(&me->own, 2) == 0 ? me->output : (double *)(void *)(own + BUFFER_BYTES);
  for (uint64_t index = 0; index < sum.count; index++) {
    sum.input[index] = contribution(my_rank, index);
    sum.output[index] = -1;
  }
  return sum;
}

static gaspi_return_t call_sum(worker_t *me, const sum_t *sum, gaspi_group_t group,
                               gaspi_timeout_t timeout) {
  static const gaspi_coll_op_t operations[3] = {GASPI_COLL_OP_MIN, GASPI_COLL_OP_MAX,
                                                GASPI_COLL_OP_SUM};
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;

  if (!sum->coll) {
    return CALL(me, gaspi_allreduce(sum->input, sum->output, (gaspi_number_t)sum->count,
                                    sum->operation, GASPI_TYPE_DOUBLE, group, timeout));
  }
  options.background = sum->background;
  return CALL(me, gaspi_coll_allreduce(sum->input, sum->output, sum->count, GASPI_COLL_TYPE_F64,
                                       operations[sum->operation], group, &options, timeout));
}

static void check_sum(worker_t *me, const sum_t *sum, gaspi_group_t group) {
  gaspi_rank_t members[RANKS_MAX];
  gaspi_number_t size = 0;
  double result;

  if (gaspi_group_size(group, &size) != GASPI_SUCCESS || size == 0 || size > RANKS_MAX ||
      gaspi_group_ranks(group, members) != GASPI_SUCCESS) {
    give_up(me, "group %d has no members", (int)group);
  }
  for (uint64_t index = 0; index < sum->count; index++) {
    result = sum->operation == GASPI_OP_MIN ? contribution(members[0], index)
                                            : contribution(members[size - 1], index);
    for (gaspi_number_t member = 0; sum->operation == GASPI_OP_SUM && member + 1 < size; member++) {
      result += contribution(members[member], index);
    }
    if (sum->output[index] != result) {
      complain(me, "element %lu is %g, not %g", (unsigned long)index, sum->output[index], result);
      return;
    }
  }
}

/* One collective operation of the worker's group, which all ranks draw alike. */
outcome_t collective(worker_t *me, gaspi_timeout_t timeout) {
  const uint64_t kind = draw(&me->common, 3);
  const uint64_t began = now_us();
  sum_t sum = {0};
  gaspi_return_t code;

  if (kind > 0) {
    sum = draw_sum(me, kind == 2);
  }
  note(me, "group %d, %lu elements, operation %d", (int)me->group, (unsigned long)sum.count,
       (int)sum.operation);
  for (;;) {
    code = kind == 0 ? CALL(me, gaspi_barrier(me->group, timeout))
                     : call_sum(me, &sum, me->group, timeout);
    if (code != GASPI_TIMEOUT) {
      break;
    }
    if (now_us() - began > HANG_US) {
      give_up(me, "a collective was repeated after timeouts for 10 s");
    }
    if (scenario == CUTTING && look(me) == TOLD) {
      me->active = 1;
      return TOLD;
    }
  }
  if (code == GASPI_SUCCESS && kind > 0) {
    check_sum(me, &sum, me->group);
  }
  return outcome_of(code);
}

/* Some pairwise operations, and a collective one. */
outcome_t mix(worker_t *me) {
  static const gaspi_timeout_t timeouts[4] = {GASPI_BLOCK, 1, 10, 50};
  const gaspi_timeout_t timeout = scenario == CUTTING ? 50 : timeouts[seed % 4];
  const uint64_t most = scenario == CUTTING ? 40 : 5;
  const uint64_t count = me->pairs ? draw(&me->own, most) : 0;
  outcome_t outcome = look(me);

  for (uint64_t number = 0; outcome == FINE && number < count; number++) {
    outcome = pairwise(me);
    if (outcome == FINE) {
      outcome = look(me);
    }
  }
  if (outcome == FINE && me->collectives) {
    outcome = collective(me, timeout);
  }
  return outcome;
}

/* Has a queue work again after requests of it failed: half of the programs wait until that
 * succeeds, the others purge it. */
void recover(worker_t *me, gaspi_queue_id_t queue) {
  if (seed % 2 == 0) {
    for (int number = 0; number < 100; number++) {
      if (CALL(me, gaspi_wait(queue, 1000)) == GASPI_SUCCESS) {
        return;
      }
    }
    complain(me, "queue %d is not recovered by 100 waits", (int)queue);
  }
  if (CALL(me, gaspi_queue_purge(queue, GUARD)) != GASPI_SUCCESS) {
    complain(me, "queue %d cannot be purged", (int)queue);
  }
  if (CALL(me, gaspi_wait(queue, GUARD)) != GASPI_SUCCESS) {
    complain(me, "queue %d is not recovered by gaspi_queue_purge", (int)queue);
  }
}

/* Work that has to succeed in a group of which this rank is a member. */
void go_on(worker_t *me, gaspi_group_t group) {
  gaspi_rank_t members[RANKS_MAX], next;
  gaspi_number_t size = 0, place = 0;
  gaspi_atomic_value_t old;

  me->common = dice_of(500);
  for (int number = 0; number < 20; number++) {
    sum_t sum = draw_sum(me, number % 2);

    note(me, "group %d, %lu elements", (int)group, (unsigned long)sum.count);
    if (call_sum(me, &sum, group, GUARD) != GASPI_SUCCESS) {
      give_up(me, "all-reduce %d afterwards is not done", number);
    }
    check_sum(me, &sum, group);
  }
  MUST(me, gaspi_group_size(group, &size));
  MUST(me, gaspi_group_ranks(group, members));
  while (place < size && members[place] != my_rank) {
    place++;
  }
  next = members[(place + 1) % size];
  note(me, "rank %d afterwards", (int)next);
  MUST(me, gaspi_write(SEGMENT, OUT, next, SEGMENT, INBOX + (gaspi_offset_t)my_rank * WRITE_MAX,
                       WRITE_MAX, me->queue, GUARD));
  MUST(me, gaspi_wait(me->queue, GUARD));
  MUST(me, gaspi_read(SEGMENT, IN, next, SEGMENT, FIXED, 4096, me->queue, GUARD));
  MUST(me, gaspi_wait(me->queue, GUARD));
  /* Another value than in the mix: the same call would continue one that timed out before, which
   * may have been lost. */
  MUST(me, gaspi_atomic_fetch_add(SEGMENT, ADDED, next, 3, &old, GUARD));
  MUST(me, gaspi_proc_ping(next, GUARD));
  MUST(me, gaspi_barrier(group, GUARD));
}
