/* ranks: 1 2 3 5 */
/*
 * Errors of the collective operations: every wrong argument, requests that are none, ranks that
 * call different things. Each call gets one wrong argument; the code names it, the detail says
 * more, no memory is touched, and the next call works.
 */
#include "check.h"

enum { COUNT = 16, FILLER = 0x5a };

#define ALL GASPI_GROUP_ALL
#define I32 GASPI_COLL_TYPE_I32
#define SUM GASPI_COLL_OP_SUM
#define NULLPTR(call) CHECK_ERR(call, GASPI_ERR_NULLPTR)
#define REJECTED(call) CHECK_ERR(call, GASPI_ERROR)

/* Room for a block of each rank. */
static int32_t from[8 * COUNT], to[8 * COUNT];
static uint64_t counts[8], displacements[8];
static gaspi_coll_request_t request;

/* This thread's last error. */
static const char *detail(void) {
  static char text[1024];
  CHECK_OK(gaspi_error_detail(text, sizeof text));
  return text;
}

/* Nothing has been written since the last time. */
static void untouched(void) {
  const unsigned char *bytes = (const unsigned char *)to;
  for (size_t at = 0; at < sizeof to; at++) {
    CHECK(bytes[at] == FILLER);
  }
}

/* Nothing of another rank has come. */
static void only_own(void) {
  int32_t filler;
  memset(&filler, FILLER, sizeof filler);
  for (size_t at = 0; at < sizeof to / sizeof *to; at++) {
    CHECK(to[at] == filler || to[at] == from[0]);
  }
}

/* A sum of all ranks is as ever. */
static void still_works(gaspi_group_t group) {
  int64_t one = 1, sum = 0;
  gaspi_number_t size = 0;

  CHECK_OK(gaspi_group_size(group, &size));
  CHECK_OK(gaspi_coll_allreduce(&one, &sum, 1, GASPI_COLL_TYPE_I64, SUM, group, NULL, LIMIT));
  CHECK(sum == (int64_t)size);
}

static gaspi_return_t keep(const void *left, const void *right, void *result, uint64_t count,
                           gaspi_size_t element_size, void *state) {
  (void)left, (void)right, (void)result, (void)count, (void)element_size, (void)state;
  return GASPI_SUCCESS;
}

static void null_buffers(void) {
  NULLPTR(gaspi_coll_allreduce(NULL, to, COUNT, I32, SUM, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allreduce(from, NULL, COUNT, I32, SUM, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allreduce(GASPI_COLL_IN_PLACE, NULL, COUNT, I32, SUM, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_reduce(NULL, to, COUNT, I32, SUM, 0, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_broadcast(from, NULL, COUNT, I32, 0, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_reduce_scatter(NULL, to, COUNT, I32, SUM, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_reduce_scatter(from, NULL, COUNT, I32, SUM, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allgather(NULL, to, COUNT, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allgather(from, NULL, COUNT, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allgather(GASPI_COLL_IN_PLACE, NULL, COUNT, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allgatherv(from, to, NULL, displacements, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allgatherv(NULL, to, counts, NULL, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allgatherv(from, NULL, counts, NULL, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_gather(NULL, to, COUNT, I32, 0, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_scatter(from, NULL, COUNT, I32, 0, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_alltoall(NULL, to, COUNT, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_alltoall(from, NULL, COUNT, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_alltoallv(from, NULL, NULL, to, counts, NULL, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_alltoallv(from, counts, NULL, to, NULL, NULL, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_alltoallv(NULL, counts, NULL, to, counts, NULL, I32, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_alltoallv(from, counts, NULL, NULL, counts, NULL, I32, ALL, NULL, LIMIT));
  if (my_rank == 0) {
    NULLPTR(gaspi_coll_reduce(from, NULL, COUNT, I32, SUM, 0, ALL, NULL, LIMIT));
    NULLPTR(gaspi_coll_broadcast(NULL, to, COUNT, I32, 0, ALL, NULL, LIMIT));
    NULLPTR(gaspi_coll_gather(from, NULL, COUNT, I32, 0, ALL, NULL, LIMIT));
    NULLPTR(gaspi_coll_scatter(NULL, to, COUNT, I32, 0, ALL, NULL, LIMIT));
  }
}

static void null_requests(void) {
  char names[256];

  NULLPTR(gaspi_coll_allreduce_start(from, to, COUNT, I32, SUM, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allreduce_init(from, to, COUNT, I32, SUM, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_reduce_start(from, to, COUNT, I32, SUM, 0, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_reduce_init(from, to, COUNT, I32, SUM, 0, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_broadcast_start(from, to, COUNT, I32, 0, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_broadcast_init(from, to, COUNT, I32, 0, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_reduce_scatter_start(from, to, COUNT, I32, SUM, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_reduce_scatter_init(from, to, COUNT, I32, SUM, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allgather_start(from, to, COUNT, I32, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allgather_init(from, to, COUNT, I32, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allgatherv_start(from, to, counts, NULL, I32, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_allgatherv_init(from, to, counts, NULL, I32, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_gather_start(from, to, COUNT, I32, 0, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_gather_init(from, to, COUNT, I32, 0, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_scatter_start(from, to, COUNT, I32, 0, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_scatter_init(from, to, COUNT, I32, 0, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_alltoall_start(from, to, COUNT, I32, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_alltoall_init(from, to, COUNT, I32, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_alltoallv_start(from, counts, NULL, to, counts, NULL, I32, ALL, NULL, NULL,
                                     LIMIT));
  NULLPTR(gaspi_coll_alltoallv_init(from, counts, NULL, to, counts, NULL, I32, ALL, NULL, NULL,
                                    LIMIT));
  NULLPTR(gaspi_coll_barrier_start(ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_barrier_init(ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_coll_test(1, NULL));
  NULLPTR(gaspi_coll_wait_all(1, NULL, LIMIT));
  NULLPTR(gaspi_coll_algorithms(NULL, names, sizeof names));
  NULLPTR(gaspi_coll_algorithms("allreduce", NULL, 10));
}

static void strange_types_and_operations(void) {
  static const unsigned types[] = {0, 2, 5, 15, 24, 31, 36, 64, 65, 0xffffffffu};
  static const gaspi_coll_op_t ops[] = {0, 2, 15, 24, 0xffffffffu, 1ull << 32, ~0ull};
  static const gaspi_coll_op_t bitwise[] = {GASPI_COLL_OP_AND, GASPI_COLL_OP_OR,
                                            GASPI_COLL_OP_XOR};

  for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
    const gaspi_coll_datatype_t type = (gaspi_coll_datatype_t)types[i];
    REJECTED(gaspi_coll_allreduce(from, to, COUNT, type, SUM, ALL, NULL, LIMIT));
    CHECK(strstr(detail(), "GASPI_COLL_TYPE_") != NULL);
    REJECTED(gaspi_coll_broadcast(from, to, COUNT, type, 0, ALL, NULL, LIMIT));
    REJECTED(gaspi_coll_allgatherv(from, to, counts, NULL, type, ALL, NULL, LIMIT));
    REJECTED(gaspi_coll_alltoall_start(from, to, COUNT, type, ALL, NULL, &request, LIMIT));
    REJECTED(gaspi_coll_reduce_scatter_init(from, to, COUNT, type, SUM, ALL, NULL, &request,
                                            LIMIT));
  }
  for (unsigned i = 0; i < sizeof ops / sizeof *ops; i++) {
    REJECTED(gaspi_coll_allreduce(from, to, COUNT, I32, ops[i], ALL, NULL, LIMIT));
    CHECK(strstr(detail(), "operation") != NULL);
    REJECTED(gaspi_coll_reduce(from, to, COUNT, I32, ops[i], 0, ALL, NULL, LIMIT));
    REJECTED(gaspi_coll_reduce_scatter(from, to, COUNT, I32, ops[i], ALL, NULL, LIMIT));
    REJECTED(gaspi_coll_op_free(ops[i]));
  }
  for (unsigned i = 0; i < 3; i++) {
    REJECTED(gaspi_coll_allreduce(from, to, 2, GASPI_COLL_TYPE_F32, bitwise[i], ALL, NULL, LIMIT));
    REJECTED(gaspi_coll_reduce(from, to, 2, GASPI_COLL_TYPE_BF16, bitwise[i], 0, ALL, NULL,
                               LIMIT));
  }
}

static void operations_of_the_program(void) {
  gaspi_coll_op_t op = 77;

  NULLPTR(gaspi_coll_op_create(NULL, NULL, 4, 0, &op));
  NULLPTR(gaspi_coll_op_create(keep, NULL, 4, 0, NULL));
  CHECK_ERR(gaspi_coll_op_create(keep, NULL, 0, 0, &op), GASPI_ERR_INV_SIZE);
  CHECK_ERR(gaspi_coll_op_create(keep, NULL, 1ul << 32, 0, &op), GASPI_ERR_INV_SIZE);
  REJECTED(gaspi_coll_op_create(keep, NULL, 4, 4, &op));
  CHECK(op == 77);
  CHECK_OK(gaspi_coll_op_create(keep, NULL, 4, 0, &op));
  REJECTED(gaspi_coll_allreduce(from, to, COUNT, I32, op, ALL, NULL, LIMIT));
  CHECK_OK(gaspi_coll_op_free(op));
  REJECTED(gaspi_coll_op_free(op));
  REJECTED(gaspi_coll_allreduce(from, to, COUNT, GASPI_COLL_TYPE_USER, op, ALL, NULL, LIMIT));
  CHECK(strstr(detail(), "freed") != NULL);
}

static void counts_that_overflow(void) {
  uint64_t many[8];

  for (unsigned i = 0; i < 8; i++) {
    many[i] = 1ull << 60;
  }
  many[0] = 1ull << 62;
#define INV_NUM(call) CHECK_ERR(call, GASPI_ERR_INV_NUM)
  INV_NUM(gaspi_coll_allreduce(from, to, 1ull << 61, I32, SUM, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_allreduce(from, to, ~0ull, GASPI_COLL_TYPE_U8, SUM, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_reduce(from, to, 1ull << 62, I32, SUM, 0, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_broadcast(from, to, 1ull << 63, I32, 0, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_reduce_scatter(from, to, ~0ull / 3, I32, SUM, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_allgather(from, to, (1ull << 63) / ranks + 1, GASPI_COLL_TYPE_U8, ALL, NULL,
                               LIMIT));
  INV_NUM(gaspi_coll_allgatherv(from, to, many, NULL, I32, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_gather(from, to, 1ull << 61, I32, 0, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_scatter(from, to, 1ull << 61, I32, 0, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_alltoall(from, to, 1ull << 61, I32, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_alltoallv(from, many, NULL, to, counts, NULL, I32, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_alltoallv(from, counts, NULL, to, many, NULL, I32, ALL, NULL, LIMIT));
  INV_NUM(gaspi_coll_allreduce_start(from, to, 1ull << 61, I32, SUM, ALL, NULL, &request, LIMIT));
  INV_NUM(gaspi_coll_allreduce_init(from, to, 1ull << 61, I32, SUM, ALL, NULL, &request, LIMIT));
}

/* Buffers that share memory in another way than "in place". */
static void overlaps(void) {
#define INV_SIZE(call) CHECK_ERR(call, GASPI_ERR_INV_SIZE)
  const void *const in_place = GASPI_COLL_IN_PLACE;
  const uint64_t same[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  const uint64_t beyond[8] = {~0ull};

  INV_SIZE(gaspi_coll_allreduce(to, to + 1, COUNT, I32, SUM, ALL, NULL, LIMIT));
  INV_SIZE(gaspi_coll_allreduce(to + COUNT - 1, to, COUNT, I32, SUM, ALL, NULL, LIMIT));
  INV_SIZE(gaspi_coll_allreduce((char *)to + 1, to, COUNT, I32, SUM, ALL, NULL, LIMIT));
  INV_SIZE(gaspi_coll_alltoall(to, to + 1, COUNT, I32, ALL, NULL, LIMIT));
  INV_SIZE(gaspi_coll_allgather(to + my_rank * COUNT + 1, to, COUNT, I32, ALL, NULL, LIMIT));
  INV_SIZE(gaspi_coll_reduce_scatter(to, to + my_rank * COUNT + 1, COUNT, I32, SUM, ALL, NULL,
                                     LIMIT));
  INV_SIZE(gaspi_coll_allreduce_start(to, to + 1, COUNT, I32, SUM, ALL, NULL, &request, LIMIT));
  INV_SIZE(gaspi_coll_allreduce_init(to, to + 1, COUNT, I32, SUM, ALL, NULL, &request, LIMIT));
  /* Received blocks that share memory, or would lie beyond it. */
  if (ranks > 1) {
    INV_SIZE(gaspi_coll_allgatherv(from, to, counts, same, I32, ALL, NULL, LIMIT));
    INV_SIZE(gaspi_coll_alltoallv(from, counts, NULL, to, counts, same, I32, ALL, NULL, LIMIT));
  }
  CHECK_ERR(gaspi_coll_allgatherv(from, to, counts, beyond, I32, ALL, NULL, LIMIT),
            GASPI_ERR_INV_NUM);
  CHECK_ERR(gaspi_coll_alltoallv(from, counts, beyond, to, counts, NULL, I32, ALL, NULL, LIMIT),
            GASPI_ERR_INV_NUM);

  REJECTED(gaspi_coll_allreduce(from, GASPI_COLL_IN_PLACE, COUNT, I32, SUM, ALL, NULL, LIMIT));
  REJECTED(gaspi_coll_allreduce(in_place, GASPI_COLL_IN_PLACE, COUNT, I32, SUM, ALL, NULL, LIMIT));
  REJECTED(gaspi_coll_reduce_scatter(in_place, to, COUNT, I32, SUM, ALL, NULL, LIMIT));
  REJECTED(gaspi_coll_allgather(from, GASPI_COLL_IN_PLACE, COUNT, I32, ALL, NULL, LIMIT));
  REJECTED(gaspi_coll_broadcast(from, GASPI_COLL_IN_PLACE, COUNT, I32, 0, ALL, NULL, LIMIT));
  if (my_rank != 0) {
    REJECTED(gaspi_coll_reduce(in_place, to, COUNT, I32, SUM, 0, ALL, NULL, LIMIT));
    REJECTED(gaspi_coll_gather(in_place, to, COUNT, I32, 0, ALL, NULL, LIMIT));
    REJECTED(gaspi_coll_scatter(from, GASPI_COLL_IN_PLACE, COUNT, I32, 0, ALL, NULL, LIMIT));
  }
}

/* Options as a later version of the header may have them. */
struct later_options {
  gaspi_coll_options_t known;
  uint64_t later;
};

static gaspi_return_t with(const void *options) {
  return gaspi_coll_barrier(ALL, (const gaspi_coll_options_t *)options, LIMIT);
}

static void options(void) {
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;
  struct later_options later = {GASPI_COLL_OPTIONS_INIT, 0};

  CHECK_OK(with(&options));
  options.size = 0;
  INV_SIZE(with(&options));
  options.size = sizeof options - 1;
  INV_SIZE(with(&options));
  options.size = 1ul << 40;
  INV_SIZE(with(&options));
  options.size = sizeof options;
  options.reserved = 1;
  REJECTED(with(&options));
  options.reserved = 0;
  options.background = 2;
  REJECTED(with(&options));
  options.background = 1;
  CHECK_OK(with(&options));
  options.reserved2 = 1;
  REJECTED(with(&options));
  options.reserved2 = 0;
  options.mode = GASPI_COLL_MODE_STABLE;
  CHECK_OK(with(&options));
  options.mode = GASPI_COLL_MODE_STABLE + 1;
  REJECTED(with(&options));
  CHECK(strstr(detail(), "mode 3") != NULL);
  /* A program that was built before there were modes: what lies behind its options is unknown. */
  options.size = offsetof(gaspi_coll_options_t, mode);
  CHECK_OK(with(&options));
  options.size = sizeof options;
  options.mode = GASPI_COLL_MODE_DEFAULT;
  options.background = 0;
  options.algorithm = "no such thing";
  REJECTED(with(&options));
  CHECK(strstr(detail(), "no such thing") != NULL);
  CHECK(strstr(detail(), "dissemination") != NULL);
  options.algorithm = "";
  REJECTED(with(&options));
  /* Fields that this version does not know may only be as they begin. */
  later.known.size = sizeof later;
  CHECK_OK(with(&later));
  later.later = 1ull << 63;
  INV_SIZE(with(&later));
}

/* Every name works, or says that it does not serve this; the same on all ranks. */
static void algorithms(void) {
  char names[256];
  const char *name;
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;
  unsigned worked = 0;

  REJECTED(gaspi_coll_algorithms("allreduce_start", names, sizeof names));
  REJECTED(gaspi_coll_algorithms("", names, sizeof names));
  INV_SIZE(gaspi_coll_algorithms("allreduce", names, 3));
  INV_SIZE(gaspi_coll_algorithms("allreduce", names, 0));
  CHECK_OK(gaspi_coll_algorithms("allgatherv", names, sizeof names));
  CHECK_OK(gaspi_coll_algorithms("barrier", names, sizeof names));
  CHECK_OK(gaspi_coll_algorithms("allreduce", names, sizeof names));
  INV_SIZE(gaspi_coll_algorithms("allreduce", names, strlen(names)));
  CHECK_OK(gaspi_coll_algorithms("allreduce", names, strlen(names) + 1));
  for (name = strtok(names, ","); name != NULL; name = strtok(NULL, ",")) {
    gaspi_return_t code;
    int32_t sum = 0;
    const int32_t mine = my_rank + 1;
    options.algorithm = name;
    code = gaspi_coll_allreduce(&mine, &sum, 1, I32, SUM, ALL, &options, LIMIT);
    if (code == GASPI_SUCCESS) {
      CHECK(sum == ranks * (ranks + 1) / 2);
      worked++;
    } else {
      CHECK_RC(code, GASPI_ERROR);
    }
  }
  CHECK(worked >= 2);
}

/* Buffers of one element, which is 1 on each rank. */
static gaspi_return_t sum_in(gaspi_group_t group) {
  int32_t one = 1, sum = 0;
  return gaspi_coll_allreduce(&one, &sum, 1, I32, SUM, group, NULL, LIMIT);
}

static void groups_and_roots(void) {
  gaspi_group_t group = 0;

#define INV_GROUP(call) CHECK_ERR(call, GASPI_ERR_INV_GROUP)
#define INV_RANK(call) CHECK_ERR(call, GASPI_ERR_INV_RANK)
  INV_GROUP(sum_in(31));
  INV_GROUP(sum_in(255));
  INV_GROUP(gaspi_coll_barrier_start(31, NULL, &request, LIMIT));
  INV_GROUP(gaspi_coll_alltoall(from, to, 1, I32, 31, NULL, LIMIT));
  INV_GROUP(gaspi_coll_barrier_init(31, NULL, &request, LIMIT));
  CHECK_OK(gaspi_group_create(&group));
  INV_GROUP(sum_in(group));
  CHECK_OK(gaspi_group_add(group, rank_after(1)));
  INV_GROUP(sum_in(group));
  INV_GROUP(gaspi_coll_allgather(from, to, 1, I32, group, NULL, LIMIT));
  CHECK_OK(gaspi_group_delete(group));
  INV_GROUP(sum_in(group));

  INV_RANK(gaspi_coll_reduce(from, to, 1, I32, SUM, ranks, ALL, NULL, LIMIT));
  INV_RANK(gaspi_coll_broadcast(from, to, 1, I32, 0xffff, ALL, NULL, LIMIT));
  INV_RANK(gaspi_coll_gather(from, to, 1, I32, ranks, ALL, NULL, LIMIT));
  INV_RANK(gaspi_coll_scatter(from, to, 1, I32, ranks, ALL, NULL, LIMIT));
  /* A rank of the job that is not in the group. */
  if (ranks > 1) {
    CHECK_OK(gaspi_group_create(&group));
    for (gaspi_rank_t rank = 0; rank + 1 < ranks; rank++) {
      CHECK_OK(gaspi_group_add(group, rank));
    }
    if (my_rank + 1 < ranks) {
      CHECK_OK(gaspi_group_commit(group, LIMIT));
      INV_RANK(gaspi_coll_broadcast(from, to, 1, I32, (gaspi_rank_t)(ranks - 1), group, NULL,
                                    LIMIT));
      still_works(group);
    }
    sync_all();
    CHECK_OK(gaspi_group_delete(group));
  }
}

/* Requests that never were. */
static void no_requests(void) {
  static const gaspi_coll_request_t strange[] = {0, 1, 77, 1ull << 32, (1ull << 32) + 7, ~0ull,
                                                 1ull << 63};
  gaspi_coll_request_t list[2] = {GASPI_COLL_REQUEST_NULL, 12345};
  int done = 77;

  for (unsigned i = 0; i < sizeof strange / sizeof *strange; i++) {
    REJECTED(gaspi_coll_start(strange[i]));
    REJECTED(gaspi_coll_test(strange[i], &done));
    REJECTED(gaspi_coll_wait(strange[i], LIMIT));
    REJECTED(gaspi_coll_free(strange[i]));
  }
  CHECK(done == 77);
  REJECTED(gaspi_coll_wait_all(2, list, LIMIT));
}

/* What rank 0 calls differently. */
enum difference { KIND, LENGTH, TYPE, OPERATION, ROOT, ALGORITHM, DIFFERENCES };

static gaspi_return_t differing(enum difference difference, gaspi_group_t group) {
  const int is_first = my_rank == 0;
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;

  switch (difference) {
    case KIND:
      return is_first ? gaspi_coll_alltoall(from, to, 4, I32, group, NULL, LIMIT)
                      : gaspi_coll_allreduce(from, to, 4, I32, SUM, group, NULL, LIMIT);
    case LENGTH:
      return gaspi_coll_allreduce(from, to, is_first ? 4 : 5, I32, SUM, group, NULL, LIMIT);
    case TYPE:
      return gaspi_coll_allreduce(from, to, 4, is_first ? I32 : GASPI_COLL_TYPE_F32, SUM, group,
                                  NULL, LIMIT);
    case OPERATION:
      return gaspi_coll_allreduce(from, to, 4, I32, is_first ? SUM : GASPI_COLL_OP_MAX, group,
                                  NULL, LIMIT);
    case ROOT:
      return gaspi_coll_broadcast(from, to, 4, I32, is_first ? 0 : 1, group, NULL, LIMIT);
    default:
      options.algorithm = is_first ? "recursive_doubling" : "ring";
      return gaspi_coll_allreduce(from, to, 4, I32, SUM, group, &options, LIMIT);
  }
}

/* Ranks that call different things: told on all, with the difference; other groups go on. */
static void mismatches(void) {
  for (int difference = 0; difference < DIFFERENCES && ranks > 1; difference++) {
    gaspi_group_t group = 0;
    CHECK_OK(gaspi_group_create(&group));
    for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
      CHECK_OK(gaspi_group_add(group, rank));
    }
    CHECK_OK(gaspi_group_commit(group, LIMIT));
    REJECTED(differing((enum difference)difference, group));
    CHECK(strstr(detail(), "rank 0") != NULL);
    /* Ranks that agree may have combined messages before they hear of the one that does not. */
    if (difference != ALGORITHM) {
      only_own();
    }
    memset(to, FILLER, sizeof to);
    still_works(ALL);
    sync_all();
    CHECK_OK(gaspi_group_delete(group));
  }
}

int main(void) {
  job_start();
  memset(to, FILLER, sizeof to);
  for (size_t at = 0; at < sizeof from / sizeof *from; at++) {
    from[at] = 1000003 * (my_rank + 1);
  }
  for (unsigned i = 0; i < 8; i++) {
    counts[i] = 2;
    displacements[i] = 2 * i;
  }
  null_buffers();
  null_requests();
  strange_types_and_operations();
  operations_of_the_program();
  counts_that_overflow();
  overlaps();
  untouched();
  options();
  algorithms();
  still_works(ALL);
  groups_and_roots();
  no_requests();
  untouched();
  mismatches();
  still_works(ALL);
  job_end();
  return 0;
}
