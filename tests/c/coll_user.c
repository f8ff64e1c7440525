/* ranks: 1 2 3 6 */
/*
 * Reductions of the program: by a function, with state, in the order of the ranks where it does not
 * commute, failing on all ranks where it fails on one, and used after its number was freed.
 */
#include "check.h"

enum { COUNT = 3000 };

#define USER GASPI_COLL_TYPE_USER
#define ALL GASPI_GROUP_ALL

/* An element of three bytes: numbers that are added, each modulo 251. */
struct triple {
  unsigned char of[3];
};

/* Adds, and counts elements in its state. */
static gaspi_return_t add(const void *left, const void *right, void *result, uint64_t count,
                          gaspi_size_t element_size, void *state) {
  const struct triple *one = (const struct triple *)left;
  const struct triple *two = (const struct triple *)right;
  struct triple *to = (struct triple *)result;

  if (element_size != sizeof *to ||
      ((uintptr_t)left | (uintptr_t)right | (uintptr_t)to) % 16 != 0) {
    return GASPI_ERROR;
  }
  for (uint64_t at = 0; at < count; at++) {
    for (unsigned i = 0; i < 3; i++) {
      to[at].of[i] = (unsigned char)((one[at].of[i] + two[at].of[i]) % 251);
    }
  }
  *(uint64_t *)state += count;
  return GASPI_SUCCESS;
}

/* Maps x -> a * x + b modulo 2^64, one after the other: associative, not commutative. */
struct map {
  uint64_t a, b;
};

static gaspi_return_t compose(const void *left, const void *right, void *result, uint64_t count,
                              gaspi_size_t element_size, void *state) {
  const struct map *first = (const struct map *)left;
  const struct map *then = (const struct map *)right;
  struct map *both = (struct map *)result;

  (void)element_size, (void)state;
  for (uint64_t at = 0; at < count; at++) {
    both[at].a = then[at].a * first[at].a;
    both[at].b = then[at].a * first[at].b + then[at].b;
  }
  return GASPI_SUCCESS;
}

/* A contribution that cannot be combined with anything. */
enum { POISON = 4 };

static gaspi_return_t fail(const void *left, const void *right, void *result, uint64_t count,
                           gaspi_size_t element_size, void *state) {
  const struct map *one = (const struct map *)left;
  const struct map *two = (const struct map *)right;

  for (uint64_t at = 0; at < count; at++) {
    if (one[at].a == POISON || two[at].a == POISON) {
      return GASPI_ERROR;
    }
  }
  return compose(left, right, result, count, element_size, state);
}

static struct map map_of(gaspi_rank_t rank, uint64_t at) {
  const struct map map = {3 + 2 * (rank + at), 1000003 * (rank + 1) + at};
  return map;
}

static int holds_composition(const struct map *result, uint64_t at) {
  struct map expected = map_of(0, at);
  for (gaspi_rank_t rank = 1; rank < ranks; rank++) {
    const struct map then = map_of(rank, at);
    expected.b = then.a * expected.b + then.b;
    expected.a *= then.a;
  }
  return result->a == expected.a && result->b == expected.b;
}

static void commutative(void) {
  static struct triple in[COUNT], out[COUNT];
  uint64_t combined = 0;
  gaspi_coll_op_t op = 0, other = 0;
  static const uint64_t counts[] = {0, 1, 7, COUNT};

  CHECK_OK(gaspi_coll_op_create(add, &combined, sizeof *in, 0, &op));
  CHECK_OK(gaspi_coll_op_create(add, &combined, sizeof *in, 0, &other));
  CHECK(op != other);
  CHECK_OK(gaspi_coll_op_free(other));
  for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
    const uint64_t count = counts[c];
    for (uint64_t at = 0; at < count; at++) {
      for (unsigned i = 0; i < 3; i++) {
        in[at].of[i] = (unsigned char)((my_rank * 31 + at * 7 + i) % 251);
      }
    }
    CHECK_OK(gaspi_coll_allreduce(in, out, count, USER, op, ALL, NULL, LIMIT));
    for (uint64_t at = 0; at < count; at++) {
      for (unsigned i = 0; i < 3; i++) {
        uint64_t sum = 0;
        for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
          sum += (rank * 31 + at * 7 + i) % 251;
        }
        CHECK(out[at].of[i] == sum % 251);
      }
    }
  }
  CHECK(ranks > 1 || combined == 0);
  CHECK_OK(gaspi_coll_op_free(op));
}

static void ordered(void) {
  static struct map in[COUNT], out[COUNT];
  gaspi_coll_op_t op = 0;

  CHECK_OK(gaspi_coll_op_create(compose, NULL, sizeof *in, GASPI_COLL_OP_ORDERED, &op));
  for (uint64_t at = 0; at < COUNT; at++) {
    in[at] = map_of(my_rank, at);
  }
  CHECK_OK(gaspi_coll_allreduce(in, out, COUNT, USER, op, ALL, NULL, LIMIT));
  for (uint64_t at = 0; at < COUNT; at++) {
    CHECK(holds_composition(&out[at], at));
  }
  for (gaspi_rank_t root = 0; root < ranks; root++) {
    memset(out, 0, sizeof out);
    CHECK_OK(gaspi_coll_reduce(in, out, COUNT, USER, op, root, ALL, NULL, LIMIT));
    for (uint64_t at = 0; at < COUNT && my_rank == root; at++) {
      CHECK(holds_composition(&out[at], at));
    }
  }
  CHECK_OK(gaspi_coll_op_free(op));
}

/* Prepared with an operation whose number is freed before it is started. */
static void freed(void) {
  static struct map in[COUNT], out[COUNT];
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;
  gaspi_coll_request_t request = 0;
  gaspi_coll_op_t op = 0;

  CHECK_OK(gaspi_coll_op_create(compose, NULL, sizeof *in,
                                GASPI_COLL_OP_ORDERED | GASPI_COLL_OP_BACKGROUND, &op));
  options.background = 1;
  CHECK_OK(gaspi_coll_allreduce_init(in, out, COUNT, USER, op, ALL, &options, &request, LIMIT));
  CHECK_OK(gaspi_coll_op_free(op));
  for (unsigned round = 0; round < 5; round++) {
    for (uint64_t at = 0; at < COUNT; at++) {
      in[at] = map_of(my_rank, at);
    }
    CHECK_OK(gaspi_coll_start(request));
    CHECK_OK(gaspi_coll_wait(request, LIMIT));
    for (uint64_t at = 0; at < COUNT; at++) {
      CHECK(holds_composition(&out[at], at));
    }
  }
  CHECK_OK(gaspi_coll_free(request));
}

/* Fails because of what one rank contributes: every rank is told, whichever it is and wherever. */
static void failing(void) {
  static struct map in[COUNT], out[COUNT];
  gaspi_coll_op_t op = 0;

  CHECK_OK(gaspi_coll_op_create(fail, NULL, sizeof *in, 0, &op));
  for (gaspi_rank_t poisoner = 0; poisoner < ranks && ranks > 1; poisoner++) {
    gaspi_group_t group = 0;
    char text[256];
    CHECK_OK(gaspi_group_create(&group));
    for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
      CHECK_OK(gaspi_group_add(group, rank));
    }
    CHECK_OK(gaspi_group_commit(group, LIMIT));
    for (uint64_t at = 0; at < COUNT; at++) {
      in[at] = map_of(my_rank, at);
    }
    if (my_rank == poisoner) {
      in[COUNT - 1].a = POISON;
    }
    CHECK_ERR(gaspi_coll_allreduce(in, out, COUNT, USER, op, group, NULL, LIMIT), GASPI_ERROR);
    CHECK_OK(gaspi_error_detail(text, sizeof text));
    CHECK(strstr(text, "reduction") != NULL);
    sync_all();
    CHECK_OK(gaspi_group_delete(group));
  }
  CHECK_OK(gaspi_coll_op_free(op));
}

int main(void) {
  job_start();
  commutative();
  ordered();
  freed();
  failing();
  job_end();
  return 0;
}
