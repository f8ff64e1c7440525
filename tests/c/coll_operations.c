/* ranks: 1 2 3 5 */
/*
 * Every collective operation, waiting, started and prepared: all types under all operations,
 * lengths from nothing on, at any address, in segments and in other memory, in place and not, every
 * root, in the group of all and in a smaller one.
 */
#include "coll_elements.h"

enum { SEGMENT = 3, COUNT_MAX = 40000, GUARD = 64 };

/* The three forms of each operation. */
static enum { WAITING, STARTED, PREPARED, FORMS } form;

/* The members, and which of them this rank is. */
static gaspi_group_t group;
static gaspi_rank_t members[8];
static unsigned size, me;

/* Where things are sent from and received to, with room for a block of each rank. */
static char *send_base, *receive_base;
static char *from, *to;

/* Ends an operation that was started, by tests or by waiting. */
static void finish(gaspi_coll_request_t request) {
  static unsigned turn;
  int done = 0;

  CHECK(request != GASPI_COLL_REQUEST_NULL);
  if (turn++ % 2 == 0) {
    CHECK_OK(gaspi_coll_wait(request, LIMIT));
    return;
  }
  while (!done) {
    done = 77;
    CHECK_OK(gaspi_coll_test(request, &done));
    CHECK(done == 0 || done == 1);
  }
}

/* An operation in the form that is due. */
#define RUN(name, ...)                                                                  \
  do {                                                                                  \
    gaspi_coll_request_t run_request = GASPI_COLL_REQUEST_NULL;                         \
    if (form == WAITING) {                                                              \
      CHECK_OK(gaspi_coll_##name(__VA_ARGS__, NULL, LIMIT));                            \
    } else if (form == STARTED) {                                                       \
      CHECK_OK(gaspi_coll_##name##_start(__VA_ARGS__, NULL, &run_request, LIMIT));      \
      finish(run_request);                                                              \
    } else {                                                                            \
      CHECK_OK(gaspi_coll_##name##_init(__VA_ARGS__, NULL, &run_request, LIMIT));       \
      CHECK_OK(gaspi_coll_start(run_request));                                          \
      finish(run_request);                                                              \
      CHECK_OK(gaspi_coll_free(run_request));                                           \
    }                                                                                   \
  } while (0)

/* Fills blocks of this rank, element by element as if they were one block. */
static void fill(char *at, gaspi_coll_datatype_t type, gaspi_coll_op_t op, uint64_t elements) {
  for (uint64_t i = 0; i < elements; i++) {
    put(at, i, type, value_of(op, me, size, i));
  }
}

/* Sets `elements` of the result, and what lies behind, to what no result is. */
static void spoil(gaspi_coll_datatype_t type, uint64_t elements) {
  memset(to, 0xa5, elements * size_of(type) + GUARD);
}

/* What lies behind the result was left alone. */
static void check_guard(gaspi_coll_datatype_t type, uint64_t elements) {
  for (unsigned i = 0; i < GUARD; i++) {
    CHECK((unsigned char)to[elements * size_of(type) + i] == 0xa5);
  }
}

static void check_all(const char *at, gaspi_coll_datatype_t type, gaspi_coll_op_t op,
                      uint64_t first, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    CHECK(holds(at, i, type, combined_value(op, size, first + i)));
  }
}

/* A block of another member, which begins at its element `first`. */
static void check_block(const char *at, gaspi_coll_datatype_t type, unsigned member,
                        uint64_t first, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    CHECK(holds(at, i, type, value_of(GASPI_COLL_OP_MAX, member, size, first + i)));
  }
}

static void allreduce(gaspi_coll_datatype_t type, gaspi_coll_op_t op, uint64_t count) {
  fill(from, type, op, count);
  spoil(type, count);
  RUN(allreduce, from, to, count, type, op, group);
  check_all(to, type, op, 0, count);
  check_guard(type, count);
  for (uint64_t i = 0; i < count; i++) {
    CHECK(holds(from, i, type, value_of(op, me, size, i)));
  }
  fill(to, type, op, count);
  RUN(allreduce, GASPI_COLL_IN_PLACE, to, count, type, op, group);
  check_all(to, type, op, 0, count);
  fill(to, type, op, count);
  RUN(allreduce, to, to, count, type, op, group);
  check_all(to, type, op, 0, count);
  check_guard(type, count);
}

static void reduce(gaspi_coll_datatype_t type, gaspi_coll_op_t op, uint64_t count,
                   unsigned root) {
  fill(from, type, op, count);
  spoil(type, count);
  RUN(reduce, from, me == root ? to : NULL, count, type, op, members[root], group);
  if (me == root) {
    check_all(to, type, op, 0, count);
    check_guard(type, count);
    fill(to, type, op, count);
    RUN(reduce, GASPI_COLL_IN_PLACE, to, count, type, op, members[root], group);
    check_all(to, type, op, 0, count);
    check_guard(type, count);
  } else {
    RUN(reduce, from, NULL, count, type, op, members[root], group);
    check_guard(type, 0);
  }
}

static void broadcast(gaspi_coll_datatype_t type, uint64_t count, unsigned root) {
  fill(from, type, GASPI_COLL_OP_MAX, count);
  spoil(type, count);
  RUN(broadcast, me == root ? from : NULL, to, count, type, members[root], group);
  check_block(to, type, root, 0, count);
  check_guard(type, count);
  if (me != root) {
    spoil(type, count);
  }
  RUN(broadcast, me == root ? GASPI_COLL_IN_PLACE : NULL, to, count, type, members[root], group);
  check_block(to, type, root, 0, count);
  check_guard(type, count);
}

static void reduce_scatter(gaspi_coll_datatype_t type, gaspi_coll_op_t op, uint64_t count) {
  fill(from, type, op, size * count);
  spoil(type, count);
  RUN(reduce_scatter, from, to, count, type, op, group);
  check_all(to, type, op, me * count, count);
  check_guard(type, count);
  RUN(reduce_scatter, from, GASPI_COLL_IN_PLACE, count, type, op, group);
  check_all(from + me * count * size_of(type), type, op, me * count, count);
}

static void allgather(gaspi_coll_datatype_t type, uint64_t count) {
  fill(from, type, GASPI_COLL_OP_MAX, count);
  spoil(type, size * count);
  RUN(allgather, from, to, count, type, group);
  for (unsigned member = 0; member < size; member++) {
    check_block(to + member * count * size_of(type), type, member, 0, count);
  }
  check_guard(type, size * count);
  spoil(type, size * count);
  fill(to + me * count * size_of(type), type, GASPI_COLL_OP_MAX, count);
  RUN(allgather, GASPI_COLL_IN_PLACE, to, count, type, group);
  for (unsigned member = 0; member < size; member++) {
    check_block(to + member * count * size_of(type), type, member, 0, count);
  }
  check_guard(type, size * count);
}

/* Blocks without elements may be anywhere: here behind all others. */
static void move_empty(const uint64_t *counts, uint64_t *displacements, uint64_t end) {
  for (unsigned member = 0; member < size; member++) {
    if (counts[member] == 0) displacements[member] = end + 1 + member;
  }
}

/* Lengths from nothing to `count`, once one behind the other, once in reverse with gaps. */
static void allgatherv(gaspi_coll_datatype_t type, uint64_t count, int with_displacements) {
  uint64_t counts[8], displacements[8];
  uint64_t end = 0;
  const size_t bytes = size_of(type);

  for (unsigned member = 0; member < size; member++) {
    counts[member] = (member * 5 + 3) % 4 * count / 4;
  }
  for (unsigned i = 0; i < size; i++) {
    const unsigned member = with_displacements ? size - 1 - i : i;
    displacements[member] = end;
    end += counts[member] + (with_displacements ? i % 2 : 0);
  }
  if (with_displacements) move_empty(counts, displacements, end);
  for (int in_place = 0; in_place < 2; in_place++) {
    spoil(type, end);
    fill(in_place ? to + displacements[me] * bytes : from, type, GASPI_COLL_OP_MAX, counts[me]);
    RUN(allgatherv, in_place ? GASPI_COLL_IN_PLACE : from, to, counts,
        with_displacements ? displacements : NULL, type, group);
    for (unsigned member = 0; member < size; member++) {
      check_block(to + displacements[member] * bytes, type, member, 0, counts[member]);
      if (with_displacements && (size - 1 - member) % 2 == 1 && counts[member] > 0) {
        CHECK((unsigned char)to[(displacements[member] + counts[member]) * bytes] == 0xa5);
      }
    }
    check_guard(type, end);
  }
}

static void gather(gaspi_coll_datatype_t type, uint64_t count, unsigned root) {
  for (int in_place = 0; in_place < 2; in_place++) {
    const int is_in_place = in_place && me == root;
    spoil(type, size * count);
    fill(is_in_place ? to + me * count * size_of(type) : from, type, GASPI_COLL_OP_MAX, count);
    RUN(gather, is_in_place ? GASPI_COLL_IN_PLACE : from, me == root ? to : NULL, count, type,
        members[root], group);
    for (unsigned member = 0; member < size && me == root; member++) {
      check_block(to + member * count * size_of(type), type, member, 0, count);
    }
    check_guard(type, me == root ? size * count : 0);
  }
}

static void scatter(gaspi_coll_datatype_t type, uint64_t count, unsigned root) {
  for (int in_place = 0; in_place < 2; in_place++) {
    const int is_in_place = in_place && me == root;
    fill(from, type, GASPI_COLL_OP_MAX, size * count);
    spoil(type, count);
    RUN(scatter, me == root ? from : NULL, is_in_place ? GASPI_COLL_IN_PLACE : to, count, type,
        members[root], group);
    check_block(is_in_place ? from + me * count * size_of(type) : to, type, root, me * count,
                count);
    check_guard(type, is_in_place ? 0 : count);
  }
}

static void alltoall(gaspi_coll_datatype_t type, uint64_t count) {
  for (int in_place = 0; in_place < 2; in_place++) {
    spoil(type, size * count);
    fill(in_place ? to : from, type, GASPI_COLL_OP_MAX, size * count);
    RUN(alltoall, in_place ? GASPI_COLL_IN_PLACE : from, to, count, type, group);
    for (unsigned member = 0; member < size; member++) {
      check_block(to + member * count * size_of(type), type, member, me * count, count);
    }
    check_guard(type, size * count);
  }
}

/* Elements from `sender` to `receiver`; the same both ways where it has to be in place. */
static uint64_t sent(unsigned sender, unsigned receiver, uint64_t count, int in_place) {
  return in_place ? (sender + receiver) % 3 * count / 2 : (2 * sender + receiver) % 3 * count / 2;
}

static void alltoallv(gaspi_coll_datatype_t type, uint64_t count, int with_displacements) {
  uint64_t send_counts[8], receive_counts[8], send_at[8], receive_at[8];
  const size_t bytes = size_of(type);

  for (int in_place = 0; in_place < 2; in_place++) {
    uint64_t send_end = 0, receive_end = 0;
    for (unsigned i = 0; i < size; i++) {
      const unsigned member = with_displacements ? size - 1 - i : i;
      send_counts[member] = sent(me, member, count, in_place);
      receive_counts[member] = sent(member, me, count, in_place);
      send_at[member] = send_end;
      receive_at[member] = receive_end;
      send_end += send_counts[member];
      receive_end += receive_counts[member];
    }
    if (with_displacements) {
      move_empty(send_counts, send_at, send_end);
      move_empty(receive_counts, receive_at, receive_end);
    }
    spoil(type, receive_end);
    for (unsigned member = 0; member < size; member++) {
      char *block = (in_place ? to : from) + send_at[member] * bytes;
      for (uint64_t i = 0; i < send_counts[member]; i++) {
        put(block, i, type, value_of(GASPI_COLL_OP_MAX, me, size, member * count + i));
      }
    }
    RUN(alltoallv, in_place ? GASPI_COLL_IN_PLACE : from, send_counts,
        with_displacements ? send_at : NULL, to, receive_counts,
        with_displacements ? receive_at : NULL, type, group);
    for (unsigned member = 0; member < size; member++) {
      check_block(to + receive_at[member] * bytes, type, member, me * count,
                  receive_counts[member]);
    }
    check_guard(type, receive_end);
  }
}

/* What another rank wrote before a barrier is there behind it. */
static void barrier(void) {
  gaspi_notification_t *there = (gaspi_notification_t *)(void *)segment_at(SEGMENT);
  const gaspi_rank_t next = members[(me + 1) % size];
  static gaspi_notification_t round;

  round++;
  there[0] = round;
  CHECK_OK(gaspi_write(SEGMENT, 0, next, SEGMENT, 64, sizeof *there, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
  RUN(barrier, group);
  CHECK(there[16] == round);
  RUN(barrier, group);
}

/* All of it once in this group, form and memory. */
static void everything(void) {
  static const uint64_t counts[] = {0, 1, 3, 10, 127, 1031};
  const gaspi_coll_op_t sum = GASPI_COLL_OP_SUM;

  for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
    const gaspi_coll_datatype_t type = all_types[(c * 5 + (unsigned)form) % TYPES];
    const uint64_t count = counts[c];
    const unsigned root = c % size;
    allreduce(type, sum, count);
    reduce(type, sum, count, root);
    broadcast(type, count, root);
    reduce_scatter(type, sum, count);
    allgather(type, count);
    allgatherv(type, count, (int)(c % 2));
    gather(type, count, root);
    scatter(type, count, root);
    alltoall(type, count);
    alltoallv(type, count, (int)(c % 2));
    barrier();
  }
}

/* Each type under each operation; and a long one. */
static void types_and_operations(void) {
  for (unsigned t = 0; t < TYPES; t++) {
    for (gaspi_coll_op_t op = GASPI_COLL_OP_SUM; op <= GASPI_COLL_OP_AVERAGE; op++) {
      const int is_bitwise =
          op == GASPI_COLL_OP_AND || op == GASPI_COLL_OP_OR || op == GASPI_COLL_OP_XOR;
      if (!is_bitwise || !is_float(all_types[t])) {
        allreduce(all_types[t], op, 37);
      }
    }
  }
  allreduce(GASPI_COLL_TYPE_F32, GASPI_COLL_OP_SUM, COUNT_MAX);
  broadcast(GASPI_COLL_TYPE_F32, COUNT_MAX, size - 1);
}

/* Every root, with few elements. */
static void roots(void) {
  for (unsigned root = 0; root < size; root++) {
    reduce(GASPI_COLL_TYPE_I32, GASPI_COLL_OP_MAX, 5, root);
    broadcast(GASPI_COLL_TYPE_I32, 5, root);
    gather(GASPI_COLL_TYPE_I32, 5, root);
    scatter(GASPI_COLL_TYPE_I32, 5, root);
  }
}

/* Makes a group the one that takes part; 0 where this rank is not in it. */
static int enter(gaspi_group_t entered) {
  gaspi_number_t number = 0;

  group = entered;
  CHECK_OK(gaspi_group_size(group, &number));
  CHECK(number <= 8);
  CHECK_OK(gaspi_group_ranks(group, members));
  size = number;
  for (me = 0; me < size; me++) {
    if (members[me] == my_rank) {
      return 1;
    }
  }
  return 0;
}

static void all_forms(void) {
  for (form = WAITING; form < FORMS; form++) {
    everything();
    roots();
  }
  form = WAITING;
}

int main(void) {
  const size_t bytes = 8 * 8 * (size_t)COUNT_MAX + 2 * GUARD;
  gaspi_group_t some = 0;
  char *segment;

  job_start();
  segment = segment_on_all(SEGMENT, 4096 + 2 * bytes);
  send_base = (char *)malloc(bytes);
  receive_base = (char *)malloc(bytes);
  CHECK(send_base != NULL && receive_base != NULL);

  CHECK(enter(GASPI_GROUP_ALL));
  /* Odd addresses. */
  from = send_base + 1;
  to = receive_base + 3;
  all_forms();
  types_and_operations();
  /* In a segment that all have. */
  from = segment + 4096;
  to = segment + 4096 + bytes;
  all_forms();
  types_and_operations();

  /* All but the last rank, from memory to segment. */
  if (ranks > 2) {
    CHECK_OK(gaspi_group_create(&some));
    for (gaspi_rank_t rank = 0; rank + 1 < ranks; rank++) {
      CHECK_OK(gaspi_group_add(some, rank));
    }
    if (enter(some)) {
      CHECK_OK(gaspi_group_commit(some, LIMIT));
      from = send_base;
      all_forms();
    }
    CHECK_OK(gaspi_group_delete(some));
  }
  sync_all();
  CHECK_OK(gaspi_segment_delete(SEGMENT));
  free(send_base);
  free(receive_base);
  job_end();
  return 0;
}
