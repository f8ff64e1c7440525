/* ranks: 1 2 3 5 8 */
/*
 * Collectives: barrier, all-reduce of all types and operations, user operations, timeouts that
 * continue, one collective at a time, mismatches, several groups at once.
 */
#include "check.h"

#include <limits.h>
#include <pthread.h>

enum { LARGE = 100000 };

/* An exact input of each type: operations never round, so any order gives the same. */
#define VALUE_INT(rank, at) ((gaspi_int)(((rank) * 7919 + (at) * 104729) % 2001) - 1000)
#define VALUE_UINT(rank, at) (0x70000000u + (rank) * 7919u + (at))
#define VALUE_LONG(rank, at) ((gaspi_long)VALUE_INT(rank, at) * 4000000000L)
#define VALUE_ULONG(rank, at) (0x7000000000000000ul + (rank) * 7919ul + (at))
#define VALUE_FLOAT(rank, at) ((gaspi_float)VALUE_INT(rank, at) * 0.5f)
#define VALUE_DOUBLE(rank, at) ((gaspi_double)VALUE_INT(rank, at) * 0.25)

static const gaspi_number_t counts[] = {1, 2, 5, 17, 255, 1000, 4097, LARGE};

/* One type under all operations: small and large, from anywhere to anywhere, in place too. */
#define REDUCE_TYPE(name, type, tag, value)                                                    \
  static void reduce_##name(void) {                                                            \
    type *in = (type *)malloc(LARGE * sizeof *in);                                             \
    type *out = (type *)malloc((LARGE + 1) * sizeof *out);                                     \
    CHECK(in != NULL && out != NULL);                                                          \
    for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {                            \
      for (int op = GASPI_OP_MIN; op <= GASPI_OP_SUM; op++) {                                  \
        const gaspi_number_t num = counts[c];                                                  \
        for (gaspi_number_t at = 0; at < num; at++) {                                          \
          in[at] = value(my_rank, at);                                                         \
        }                                                                                      \
        memset(out, 0x55, (num + 1) * sizeof *out);                                            \
        if (c % 2 == 0) {                                                                      \
          CHECK_OK(gaspi_allreduce(in, out, num, (gaspi_operation_t)op, tag, GASPI_GROUP_ALL, \
                                   LIMIT));                                                    \
        } else {                                                                               \
          memcpy(out, in, num * sizeof *out);                                                  \
          CHECK_OK(gaspi_allreduce(out, out, num, (gaspi_operation_t)op, tag, GASPI_GROUP_ALL, \
                                   LIMIT));                                                    \
        }                                                                                      \
        for (gaspi_number_t at = 0; at < num; at++) {                                          \
          type expected = value(0, at);                                                        \
          for (gaspi_rank_t rank = 1; rank < ranks; rank++) {                                  \
            const type other = value(rank, at);                                                \
            if (op == GASPI_OP_SUM) {                                                          \
              expected = (type)(expected + other);                                             \
            } else if ((op == GASPI_OP_MIN) == (other < expected)) {                           \
              expected = other;                                                                \
            }                                                                                  \
          }                                                                                    \
          CHECK(out[at] == expected);                                                          \
          CHECK(in[at] == value(my_rank, at));                                                 \
        }                                                                                      \
        CHECK(((unsigned char *)(out + num))[0] == 0x55);                                      \
      }                                                                                        \
    }                                                                                          \
    free(in);                                                                                  \
    free(out);                                                                                 \
  }

REDUCE_TYPE(int, gaspi_int, GASPI_TYPE_INT, VALUE_INT)
REDUCE_TYPE(uint, gaspi_uint, GASPI_TYPE_UINT, VALUE_UINT)
REDUCE_TYPE(long, gaspi_long, GASPI_TYPE_LONG, VALUE_LONG)
REDUCE_TYPE(ulong, gaspi_ulong, GASPI_TYPE_ULONG, VALUE_ULONG)
REDUCE_TYPE(float, gaspi_float, GASPI_TYPE_FLOAT, VALUE_FLOAT)
REDUCE_TYPE(double, gaspi_double, GASPI_TYPE_DOUBLE, VALUE_DOUBLE)

/* Sums that round: all ranks have the same bits nevertheless. */
static void same_bits(void) {
  gaspi_double in[200];
  gaspi_double out[200];
  gaspi_ulong bits[200];
  gaspi_ulong lowest[200];
  gaspi_ulong highest[200];

  for (unsigned at = 0; at < 200; at++) {
    in[at] = 1.0 / (gaspi_double)(3 + my_rank * 13 + at * 7);
  }
  CHECK_OK(gaspi_allreduce(in, out, 200, GASPI_OP_SUM, GASPI_TYPE_DOUBLE, GASPI_GROUP_ALL, LIMIT));
  memcpy(bits, out, sizeof bits);
  CHECK_OK(gaspi_allreduce(bits, lowest, 200, GASPI_OP_MIN, GASPI_TYPE_ULONG, GASPI_GROUP_ALL,
                           LIMIT));
  CHECK_OK(gaspi_allreduce(bits, highest, 200, GASPI_OP_MAX, GASPI_TYPE_ULONG, GASPI_GROUP_ALL,
                           LIMIT));
  CHECK(memcmp(bits, lowest, sizeof bits) == 0);
  CHECK(memcmp(bits, highest, sizeof bits) == 0);
}

/* Everything written before a barrier by anybody is there after it. */
static void barrier(void) {
  gaspi_uint *memory = (gaspi_uint *)(void *)segment_on_all(0, 4096 + ranks * 4ul);
  const gaspi_offset_t mine = 4096 + my_rank * 4ul;

  for (gaspi_uint round = 1; round <= 200; round++) {
    memory[0] = round;
    for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
      CHECK_OK(gaspi_write(0, 0, rank, 0, mine, 4, 0, LIMIT));
    }
    CHECK_OK(gaspi_wait(0, LIMIT));
    sync_all();
    for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
      CHECK(memory[1024 + rank] == round);
    }
    sync_all();
  }
  CHECK_OK(gaspi_segment_delete(0));
}

/* 2x2 matrices that commute (rotations with scaling), multiplied modulo 2^32. */
struct complex {
  gaspi_uint re, im;
};

static gaspi_return_t multiply(gaspi_pointer_t one, gaspi_pointer_t two, gaspi_pointer_t result,
                               gaspi_reduce_state_t state, gaspi_number_t num,
                               gaspi_size_t element_size, gaspi_timeout_t timeout) {
  const struct complex *a = (const struct complex *)one;
  const struct complex *b = (const struct complex *)two;
  struct complex *c = (struct complex *)result;

  (void)timeout;
  if (element_size != sizeof(struct complex)) {
    return GASPI_ERROR;
  }
  if (state != NULL) {
    *(unsigned *)state += num;
  }
  for (gaspi_number_t at = 0; at < num; at++) {
    const struct complex product = {a[at].re * b[at].re - a[at].im * b[at].im,
                                    a[at].re * b[at].im + a[at].im * b[at].re};
    c[at] = product;
  }
  return GASPI_SUCCESS;
}

static gaspi_return_t refuse(gaspi_pointer_t one, gaspi_pointer_t two, gaspi_pointer_t result,
                             gaspi_reduce_state_t state, gaspi_number_t num,
                             gaspi_size_t element_size, gaspi_timeout_t timeout) {
  (void)one, (void)two, (void)result, (void)state, (void)num, (void)element_size, (void)timeout;
  return GASPI_ERROR;
}

static void user_operation(void) {
  enum { NUM = 31 };
  struct complex in[NUM];
  struct complex out[NUM];
  unsigned applied = 0;
  gaspi_group_t group = 0;
  gaspi_size_t buffer = 0;

  for (unsigned at = 0; at < NUM; at++) {
    in[at].re = my_rank * 3u + at + 1;
    in[at].im = my_rank + at * 5u;
  }
  CHECK_OK(gaspi_allreduce_user(in, out, NUM, sizeof *in, multiply, &applied, GASPI_GROUP_ALL,
                                LIMIT));
  for (unsigned at = 0; at < NUM; at++) {
    struct complex expected = {at + 1, at * 5u};
    for (gaspi_rank_t rank = 1; rank < ranks; rank++) {
      struct complex other = {rank * 3u + at + 1, rank + at * 5u};
      (void)multiply(&expected, &other, &expected, NULL, 1, sizeof other, LIMIT);
    }
    CHECK(out[at].re == expected.re && out[at].im == expected.im);
  }
  CHECK_OK(gaspi_allreduce_user(in, out, 1, sizeof *in, multiply, NULL, GASPI_GROUP_ALL, LIMIT));
  CHECK_OK(gaspi_allreduce_buf_size(&buffer));
  CHECK_ERR(gaspi_allreduce_user(in, out, 2, buffer / 2 + 1, multiply, NULL, GASPI_GROUP_ALL,
                                 LIMIT),
            GASPI_ERR_INV_SIZE);

  /* A callback that fails fails the call everywhere. */
  CHECK_OK(gaspi_group_create(&group));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_group_add(group, rank));
  }
  CHECK_OK(gaspi_group_commit(group, LIMIT));
  if (ranks > 1) {
    CHECK_ERR(gaspi_allreduce_user(in, out, NUM, sizeof *in, refuse, NULL, group, LIMIT),
              GASPI_ERROR);
  }
  CHECK_OK(gaspi_group_delete(group));
  sync_all();
}

/* Lets the last rank come in, as far as this rank is concerned. */
static void let_in(gaspi_rank_t last) {
  CHECK_OK(gaspi_notify(0, last, my_rank, 1, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
}

/* Waits until all others have seen that this rank is missing. */
static void wait_outside(void) {
  for (gaspi_rank_t rank = 0; rank < my_rank; rank++) {
    (void)take(0, rank);
  }
}

/* A barrier that timed out continues, and keeps other collectives out of its group. */
static void resumed(void) {
  const gaspi_rank_t last = (gaspi_rank_t)(ranks - 1);
  gaspi_uint one = 1;
  gaspi_uint two = 2;
  gaspi_uint sum = 0;
  gaspi_return_t done;

  (void)segment_on_all(0, 64);
  if (ranks > 1 && my_rank == last) {
    wait_outside();
    sync_all();
    wait_outside();
  } else if (ranks > 1) {
    CHECK_RC(gaspi_barrier(GASPI_GROUP_ALL, GASPI_TEST), GASPI_TIMEOUT);
    CHECK_RC(gaspi_barrier(GASPI_GROUP_ALL, 10), GASPI_TIMEOUT);
    CHECK_ERR(gaspi_allreduce(&one, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_UINT, GASPI_GROUP_ALL,
                              LIMIT),
              GASPI_ERR_ACTIVE_COLL);
    let_in(last);
    while ((done = gaspi_barrier(GASPI_GROUP_ALL, 1)) == GASPI_TIMEOUT) {
    }
    CHECK_OK(done);
    CHECK_RC(gaspi_allreduce(&one, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_UINT, GASPI_GROUP_ALL,
                             GASPI_TEST),
             GASPI_TIMEOUT);
    CHECK_ERR(gaspi_allreduce(&two, &sum, 1, GASPI_OP_MAX, GASPI_TYPE_UINT, GASPI_GROUP_ALL,
                              LIMIT),
              GASPI_ERR_ACTIVE_COLL);
    CHECK_ERR(gaspi_barrier(GASPI_GROUP_ALL, LIMIT), GASPI_ERR_ACTIVE_COLL);
    let_in(last);
  }
  while ((done = gaspi_allreduce(&one, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_UINT, GASPI_GROUP_ALL,
                                 GASPI_TEST)) == GASPI_TIMEOUT) {
  }
  CHECK_OK(done);
  CHECK(sum == ranks);
  sync_all();
  CHECK_OK(gaspi_segment_delete(0));
}

/* Calls that do not fit together are an error for all, and say what differs. */
static void mismatch(void) {
  gaspi_group_t group = 0;
  gaspi_uint in[2] = {1, 1};
  gaspi_uint out[2];

  if (ranks == 1) {
    return;
  }
  for (int kind = 0; kind < 3; kind++) {
    gaspi_return_t got;

    CHECK_OK(gaspi_group_create(&group));
    for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
      CHECK_OK(gaspi_group_add(group, rank));
    }
    CHECK_OK(gaspi_group_commit(group, LIMIT));
    if (my_rank == 0 && kind == 0) {
      got = gaspi_allreduce(in, out, 1, GASPI_OP_SUM, GASPI_TYPE_UINT, group, LIMIT);
    } else if (my_rank == 0 && kind == 1) {
      got = gaspi_allreduce(in, out, 2, GASPI_OP_MAX, GASPI_TYPE_UINT, group, LIMIT);
    } else if (my_rank == 0) {
      got = gaspi_barrier(group, LIMIT);
    } else {
      got = gaspi_allreduce(in, out, 1, GASPI_OP_MAX, GASPI_TYPE_UINT, group, LIMIT);
    }
    CHECK_ERR(got, GASPI_ERROR);
    CHECK_OK(gaspi_group_delete(group));
    sync_all();
  }
}

struct lane {
  gaspi_group_t group;
  gaspi_uint factor;
};

static void *lane_work(void *argument) {
  const struct lane *lane = (const struct lane *)argument;

  for (gaspi_uint round = 0; round < 300; round++) {
    gaspi_uint mine = (my_rank + round) * lane->factor;
    gaspi_uint largest = 0;
    CHECK_OK(gaspi_allreduce(&mine, &largest, 1, GASPI_OP_MAX, GASPI_TYPE_UINT, lane->group,
                             LIMIT));
    CHECK(largest == (ranks - 1u + round) * lane->factor);
  }
  return NULL;
}

/* Threads use different groups at once. */
static void groups_at_once(void) {
  enum { LANES = 3 };
  struct lane lanes[LANES];
  pthread_t thread[LANES];

  for (gaspi_uint at = 0; at < LANES; at++) {
    lanes[at].factor = at + 1;
    CHECK_OK(gaspi_group_create(&lanes[at].group));
    for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
      CHECK_OK(gaspi_group_add(lanes[at].group, rank));
    }
    CHECK_OK(gaspi_group_commit(lanes[at].group, LIMIT));
  }
  for (int at = 0; at < LANES; at++) {
    CHECK(pthread_create(&thread[at], NULL, lane_work, &lanes[at]) == 0);
  }
  for (int at = 0; at < LANES; at++) {
    CHECK(pthread_join(thread[at], NULL) == 0);
    CHECK_OK(gaspi_group_delete(lanes[at].group));
  }
  sync_all();
}

int main(void) {
  gaspi_config_t config;
  gaspi_number_t max = 0;
  gaspi_uint in = 0;
  gaspi_uint out = 0;

  CHECK_OK(gaspi_config_get(&config));
  config.allreduce_elem_max = LARGE;
  CHECK_OK(gaspi_config_set(config));
  job_start();
  CHECK_OK(gaspi_allreduce_elem_max(&max));
  CHECK(max == LARGE);
  CHECK_ERR(gaspi_allreduce(&in, &out, LARGE + 1, GASPI_OP_SUM, GASPI_TYPE_UINT, GASPI_GROUP_ALL,
                            LIMIT),
            GASPI_ERR_INV_NUM);
  barrier();
  reduce_int();
  reduce_uint();
  reduce_long();
  reduce_ulong();
  reduce_float();
  reduce_double();
  same_bits();
  user_operation();
  resumed();
  mismatch();
  groups_at_once();
  job_end();
  return 0;
}
