/*
 * busy.c: rank 0 notifies and writes to all others without end, while they make and delete segments
 * that they register with it, and groups. Each call of rank 0 ends soon.
 *
 * In come-and-go rank 0 also writes to and reads from those segments; such requests may fail.
 */
#include "soak.h"

enum { BUSY_NOTE = 50, IDS = 20, OWN_BYTES = 64 << 10, COMMON = 100 };

/* A request that may be to a segment that is gone: the codes for it. */
static int is_gone(gaspi_return_t code) {
  return code == GASPI_ERROR || code == GASPI_ERR_INV_SEG || code == GASPI_ERR_INV_REM_OFF ||
         code == GASPI_ERR_INV_COMMSIZE;
}

/* Waits for all that was posted; half of the programs purge a queue that failed. */
static void drain(worker_t *me) {
  note(me, "queue %d is drained", (int)me->queue);
  if (CALL(me, gaspi_wait(me->queue, GASPI_BLOCK)) == GASPI_SUCCESS) {
    return;
  }
  if (scenario == BUSY) {
    give_up(me, "gaspi_wait fails although nobody does anything wrong");
  }
  recover(me, me->queue);
}

/* A call whose queue may be full. */
#define POST(me, call)                            \
  do {                                            \
    while (CALL(me, call) == GASPI_QUEUE_FULL) {  \
      drain(me);                                  \
    }                                             \
  } while (0)

static void use_what_goes(worker_t *me, gaspi_rank_t to) {
  const gaspi_segment_id_t id = (gaspi_segment_id_t)(1 + draw(&me->own, IDS));
  const gaspi_size_t bytes = 8 * (1 + draw(&me->own, 1024));
  const gaspi_offset_t offset = 8 * draw(&me->own, OWN_BYTES / 8);

  note(me, "%lu bytes at %lu of segment %d of rank %d", bytes, offset, (int)id, (int)to);
  if (draw(&me->own, 2) == 0) {
    POST(me, gaspi_write(SEGMENT, OUT, to, id, offset, bytes, me->queue, GASPI_BLOCK));
  } else {
    POST(me, gaspi_read(SEGMENT, IN, to, id, offset, bytes, me->queue, GASPI_BLOCK));
  }
  if (me->code != GASPI_SUCCESS && !is_gone(me->code)) {
    complain(me, "a request to a segment that comes and goes");
  }
}

static void write_without_end(worker_t *me, uint64_t seconds) {
  const uint64_t stop_at = now_us() + seconds * 1000000;
  uint64_t count = 0;

  while (now_us() < stop_at) {
    const gaspi_rank_t to = (gaspi_rank_t)(1 + count % (ranks - 1u));
    const gaspi_size_t bytes = (gaspi_size_t)8 << draw(&me->own, 14);

    count++;
    note(me, "notification %lu to rank %d", (unsigned long)count, (int)to);
    POST(me, gaspi_notify(SEGMENT, to, BUSY_NOTE, (gaspi_notification_t)(1 + count % 1000),
                          me->queue, GASPI_BLOCK));
    if (me->code != GASPI_SUCCESS) {
      give_up(me, "gaspi_notify fails although nobody does anything wrong");
    }
    note(me, "write %lu of %lu bytes to rank %d", (unsigned long)count, bytes, (int)to);
    POST(me, gaspi_write(SEGMENT, OUT, to, SEGMENT, INBOX, bytes, me->queue, GASPI_BLOCK));
    if (me->code != GASPI_SUCCESS) {
      give_up(me, "gaspi_write fails although nobody does anything wrong");
    }
    if (scenario == COME_AND_GO) {
      use_what_goes(me, to);
    }
  }
  drain(me);
  for (gaspi_rank_t rank = 1; rank < ranks; rank++) {
    MUST(me, gaspi_notify(SEGMENT, rank, STOP, 1, me->queue, GUARD));
  }
  MUST(me, gaspi_wait(me->queue, GUARD));
  printf("rank 0 did %lu rounds\n", (unsigned long)count);
}

/* Makes a segment that rank 0 learns of, or deletes the one of that id. */
static void make_or_delete(worker_t *me) {
  static int exists[1 + IDS];
  const gaspi_segment_id_t id = (gaspi_segment_id_t)(1 + draw(&me->own, IDS));
  const gaspi_size_t bytes = 8 + draw(&me->own, OWN_BYTES);

  note(me, "segment %d of %lu bytes", (int)id, bytes);
  exists[id] = !exists[id];
  if (!exists[id]) {
    MUST(me, gaspi_segment_delete(id));
    return;
  }
  MUST(me, gaspi_segment_alloc(id, bytes, GASPI_MEM_INITIALIZED));
  MUST(me, gaspi_segment_register(id, 0, GASPI_BLOCK));
}

/* A group of all but rank 0, with a segment: whether all of it were told to stop. */
static int meet(worker_t *me, unsigned round) {
  const gaspi_segment_id_t id = (gaspi_segment_id_t)(COMMON + draw(&me->common, IDS));
  gaspi_notification_id_t first = 0;
  gaspi_group_t group = 0;
  int told, all_told = 0;

  note(me, "meeting %u", round);
  MUST(me, gaspi_group_create(&group));
  for (gaspi_rank_t rank = 1; rank < ranks; rank++) {
    MUST(me, gaspi_group_add(group, rank));
  }
  MUST(me, gaspi_group_commit(group, GASPI_BLOCK));
  MUST(me, gaspi_segment_create(id, 8 + draw(&me->common, OWN_BYTES), group, GASPI_BLOCK,
                                GASPI_MEM_INITIALIZED));
  MUST(me, gaspi_segment_delete(id));
  told = gaspi_notify_waitsome(SEGMENT, STOP, 1, &first, GASPI_TEST) == GASPI_SUCCESS;
  MUST(me, gaspi_allreduce(&told, &all_told, 1, GASPI_OP_MIN, GASPI_TYPE_INT, group, GASPI_BLOCK));
  MUST(me, gaspi_group_delete(group));
  return all_told;
}

void busy(uint64_t seconds) {
  worker_t *me = &workers[0];
  gaspi_state_t states[RANKS_MAX];
  unsigned rounds = 0;

  victim = RANKS_MAX;
  MUST(me, gaspi_barrier(GASPI_GROUP_ALL, GUARD));
  printf("ready %d\n", (int)my_rank);
  if (my_rank == 0) {
    write_without_end(me, seconds);
  } else {
    do {
      for (uint64_t number = draw(&me->own, 20); number > 0; number--) {
        make_or_delete(me);
      }
    } while (!meet(me, ++rounds));
  }
  MUST(me, gaspi_barrier(GASPI_GROUP_ALL, GUARD));
  if (scenario == BUSY) {
    MUST(me, gaspi_state_vec_get(states));
    memcpy(me->states, states, sizeof states);
    expect_states(me, RANKS_MAX);
  }
  MUST(me, gaspi_proc_term(GUARD));
  if (complaints() == 0) {
    printf("finished %d after %u rounds\n", (int)my_rank, rounds);
  }
}
