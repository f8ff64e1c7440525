/* ranks: 1 2 3 5 */
/*
 * Fused buffers: tensors in orders that differ by rank, copied, in place and lent; ends one after
 * the other; many of them at a time; every wrong argument; declarations that differ; what a
 * function that is told of ends may not do; calls after the end.
 */
#include "check.h"

#include <GASPI_Threads.h>
#include <sched.h>

enum { TENSORS = 6, STEPS = 8, MOST = 5000 };

#define ALL GASPI_GROUP_ALL
#define F32 GASPI_COLL_TYPE_F32
#define NULLPTR(call) CHECK_ERR(call, GASPI_ERR_NULLPTR)
#define NUMBER(call) CHECK_ERR(call, GASPI_ERR_INV_NUM)

static const uint64_t counts[TENSORS] = {94, 17, 0, MOST, 2, 81};
static float data[MOST], sum[MOST];

/* This thread's last error. */
static const char *detail(void) {
  static char text[1024];
  CHECK_OK(gaspi_error_detail(text, sizeof text));
  return text;
}

static void declare(gaspi_fusion_tensor_t tensors[TENSORS]) {
  for (unsigned at = 0; at < TENSORS; at++) {
    tensors[at].count = counts[at];
    tensors[at].datatype = F32;
    tensors[at].reserved = 0;
  }
}

/* What a rank contributes: small integers, whose sums are exact. */
static float value(unsigned rank, unsigned tensor, unsigned step, uint64_t at) {
  return (float)((rank * 5 + tensor * 3 + step + at) % 17);
}

static void fill(float *to, unsigned tensor, unsigned step) {
  for (uint64_t at = 0; at < counts[tensor]; at++) {
    to[at] = value(my_rank, tensor, step, at);
  }
}

static void check(const float *found, unsigned tensor, unsigned step) {
  for (uint64_t at = 0; at < counts[tensor]; at++) {
    float expected = 0;
    for (unsigned rank = 0; rank < ranks; rank++) {
      expected += value(rank, tensor, step, at);
    }
    CHECK(found[at] == expected);
  }
}

/* The tensor that a rank comes to in its turn. */
static unsigned turn(unsigned at, unsigned step) {
  return (at * 5 + my_rank * 7 + step) % TENSORS;
}

static void steps(gaspi_fusion_t fusion) {
  gaspi_size_t buckets = 0, bucket = 0, told = 0;
  int done = 0, fd = -1;

  CHECK_OK(gaspi_fusion_buckets(fusion, &buckets));
  CHECK_OK(gaspi_fusion_fd(fusion, &fd));
  CHECK(fd >= 0);
  for (unsigned step = 0; step < STEPS; step++) {
    for (unsigned at = 0; at < TENSORS; at++) {
      const unsigned tensor = turn(at, step);
      void *place = NULL;
      CHECK_OK(gaspi_fusion_tensor_ptr(fusion, tensor, &place));
      CHECK((uintptr_t)place % 64 == 0);
      if (step % 2 == 0) {
        fill(data, tensor, step);
        CHECK_OK(gaspi_fusion_submit(fusion, tensor, data, 1.0));
      } else {
        fill((float *)place, tensor, step);
        CHECK_OK(gaspi_fusion_submit(fusion, tensor, place, 1.0));
      }
    }
    for (told = 0; told < buckets; told++) {
      CHECK_OK(gaspi_fusion_next(fusion, &bucket, LIMIT));
      CHECK(bucket < buckets);
    }
    CHECK_RC(gaspi_fusion_next(fusion, &bucket, GASPI_TEST), GASPI_TIMEOUT);
    for (unsigned tensor = 0; tensor < TENSORS; tensor++) {
      const void *lent = NULL;
      CHECK_OK(gaspi_fusion_test(fusion, tensor, sum, &done));
      CHECK(done == 1);
      check(sum, tensor, step);
      CHECK_OK(gaspi_fusion_wait(fusion, tensor, NULL, LIMIT));
      CHECK_OK(gaspi_fusion_result(fusion, tensor, &lent, LIMIT));
      check((const float *)lent, tensor, step);
      CHECK_OK(gaspi_fusion_release(fusion, tensor, lent));
    }
  }
}

static void wrong_declarations(const gaspi_fusion_tensor_t tensors[TENSORS]) {
  gaspi_fusion_tensor_t others[TENSORS];
  gaspi_fusion_options_t options = GASPI_FUSION_OPTIONS_INIT;
  gaspi_fusion_t fusion = 0;

  NULLPTR(gaspi_fusion_create(tensors, TENSORS, ALL, NULL, NULL, LIMIT));
  NULLPTR(gaspi_fusion_create(NULL, TENSORS, ALL, NULL, &fusion, LIMIT));
  NUMBER(gaspi_fusion_create(tensors, 0, ALL, NULL, &fusion, LIMIT));
  memcpy(others, tensors, sizeof others);
  others[1].datatype = GASPI_COLL_TYPE_USER;
  CHECK_ERR(gaspi_fusion_create(others, TENSORS, ALL, NULL, &fusion, LIMIT), GASPI_ERROR);
  others[1] = tensors[1];
  others[3].count = UINT64_MAX / 2;
  NUMBER(gaspi_fusion_create(others, TENSORS, ALL, NULL, &fusion, LIMIT));
  CHECK_ERR(gaspi_fusion_create(tensors, TENSORS, 77, NULL, &fusion, LIMIT), GASPI_ERR_INV_GROUP);
  options.op = GASPI_COLL_OP_XOR;
  CHECK_ERR(gaspi_fusion_create(tensors, TENSORS, ALL, &options, &fusion, LIMIT), GASPI_ERROR);
  options.op = GASPI_COLL_OP_SUM;
  options.wire = GASPI_COLL_TYPE_F64;
  CHECK_ERR(gaspi_fusion_create(tensors, TENSORS, ALL, &options, &fusion, LIMIT), GASPI_ERROR);
  options.wire = 0;
  options.contributions = 0;
  NUMBER(gaspi_fusion_create(tensors, TENSORS, ALL, &options, &fusion, LIMIT));
  options.contributions = 1;
  options.algorithm = "fastest";
  CHECK_ERR(gaspi_fusion_create(tensors, TENSORS, ALL, &options, &fusion, LIMIT), GASPI_ERROR);
  options.algorithm = NULL;
  options.size = 8;
  CHECK_ERR(gaspi_fusion_create(tensors, TENSORS, ALL, &options, &fusion, LIMIT),
            GASPI_ERR_INV_SIZE);
  if (ranks > 1) {
    memcpy(others, tensors, sizeof others);
    others[3].count += my_rank == 1;
    CHECK_ERR(gaspi_fusion_create(others, TENSORS, ALL, NULL, &fusion, LIMIT), GASPI_ERROR);
    CHECK(strstr(detail(), "tensor 3 of a fused buffer is 5000 x f32 on rank 0") != NULL);
  }
}

static void wrong_calls(gaspi_fusion_t fusion) {
  gaspi_size_t bucket = 0;
  void *place = NULL;
  int done = 0;

  NULLPTR(gaspi_fusion_submit(fusion, 0, NULL, 1.0));
  NUMBER(gaspi_fusion_submit(fusion, TENSORS, data, 1.0));
  NULLPTR(gaspi_fusion_test(fusion, 0, NULL, NULL));
  NUMBER(gaspi_fusion_test(fusion, TENSORS, NULL, &done));
  NUMBER(gaspi_fusion_wait(fusion, TENSORS, NULL, LIMIT));
  NULLPTR(gaspi_fusion_result(fusion, 0, NULL, LIMIT));
  NUMBER(gaspi_fusion_release(fusion, 0, data));
  NULLPTR(gaspi_fusion_tensor_ptr(fusion, 0, NULL));
  NULLPTR(gaspi_fusion_next(fusion, NULL, LIMIT));
  NULLPTR(gaspi_fusion_fd(fusion, NULL));
  NULLPTR(gaspi_fusion_buckets(fusion, NULL));
  NULLPTR(gaspi_fusion_bucket(fusion, 0, NULL));
  NUMBER(gaspi_fusion_bucket(fusion, 2, &bucket));
  CHECK_OK(gaspi_fusion_tensor_ptr(fusion, 3, &place));
  CHECK_ERR(gaspi_fusion_submit(fusion, 3, (char *)place + 4, 1.0), GASPI_ERR_INV_SIZE);
  CHECK_OK(gaspi_fusion_submit(fusion, 4, data, 1.0));
  NUMBER(gaspi_fusion_submit(fusion, 4, data, 1.0));
  CHECK(strstr(detail(), "tensor 4") != NULL);
  CHECK_RC(gaspi_fusion_wait(fusion, 4, NULL, 1), GASPI_TIMEOUT);
  CHECK_OK(gaspi_fusion_tensor_ptr(fusion, 4, &place));
  *(float *)place = 0.5f;
  CHECK_ERR(gaspi_fusion_wait(fusion, 3, place, LIMIT), GASPI_ERR_INV_SIZE);
  CHECK(strstr(detail(), "the result of tensor 3 overlaps") != NULL);
  CHECK_ERR(gaspi_fusion_test(fusion, 3, place, &done), GASPI_ERR_INV_SIZE);
  CHECK(*(float *)place == 0.5f);
  CHECK_OK(gaspi_fusion_on_end(fusion, NULL, NULL));
}

/* Calls that wait, in a function that is told of ends: each is refused at once. */
static void waits(gaspi_fusion_t fusion, gaspi_size_t ended, gaspi_return_t outcome, void *told) {
  const gaspi_fusion_tensor_t tensor = {1, F32, 0};
  uint64_t word = 1, words = 0;
  gaspi_size_t bucket = 0;
  gaspi_fusion_t other = 0;
  const void *lent = NULL;

  CHECK(outcome == GASPI_SUCCESS && ended == 0);
  while (gaspi_fusion_next(fusion, &bucket, GASPI_TEST) == GASPI_SUCCESS) continue;
  CHECK_ERR(gaspi_fusion_next(fusion, &bucket, GASPI_BLOCK), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_wait(fusion, 1, NULL, GASPI_BLOCK), GASPI_ERROR);
  CHECK(strstr(detail(), "a function that the library calls may not wait") != NULL);
  CHECK_ERR(gaspi_fusion_result(fusion, 1, &lent, GASPI_BLOCK), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_create(&tensor, 1, ALL, NULL, &other, GASPI_BLOCK), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_free(fusion), GASPI_ERROR);
  CHECK_ERR(gaspi_coll_allreduce(&word, &words, 1, GASPI_COLL_TYPE_U64, GASPI_COLL_OP_SUM, ALL,
                                 NULL, GASPI_BLOCK),
            GASPI_ERROR);
  CHECK_ERR(gaspi_allreduce(&word, &words, 1, GASPI_OP_SUM, GASPI_TYPE_ULONG, ALL, GASPI_BLOCK),
            GASPI_ERROR);
  CHECK_ERR(gaspi_barrier(ALL, GASPI_BLOCK), GASPI_ERROR);
  CHECK_ERR(gaspi_threads_sync_all(ALL, GASPI_BLOCK), GASPI_ERROR);
  CHECK(strstr(detail(), "may not wait") != NULL);
  CHECK_ERR(gaspi_proc_term(GASPI_BLOCK), GASPI_ERROR);
  __atomic_store_n((int *)told, 1, __ATOMIC_RELEASE);
}

static void nobody_waits_in_a_function(void) {
  const gaspi_fusion_tensor_t pair[2] = {{10, F32, 0}, {10, F32, 0}};
  gaspi_fusion_options_t options = GASPI_FUSION_OPTIONS_INIT;
  gaspi_fusion_t fusion = 0;
  int told = 0;

  options.threshold = 0;
  CHECK_OK(gaspi_fusion_create(pair, 2, ALL, &options, &fusion, LIMIT));
  /* So that another barrier could pass at once. */
  sync_all();
  CHECK_OK(gaspi_fusion_on_end(fusion, waits, &told));
  CHECK_OK(gaspi_fusion_submit(fusion, 0, data, 1.0));
  while (__atomic_load_n(&told, __ATOMIC_ACQUIRE) == 0) sched_yield();
  CHECK_OK(gaspi_fusion_on_end(fusion, NULL, NULL));
  CHECK_OK(gaspi_fusion_submit(fusion, 1, data, 1.0));
  CHECK_OK(gaspi_fusion_wait(fusion, 1, NULL, LIMIT));
  sync_all();
  CHECK_OK(gaspi_fusion_free(fusion));
}

static void no_tensor_has_elements(void) {
  const gaspi_fusion_tensor_t none = {0, F32, 0};
  gaspi_fusion_t fusion = 0;
  gaspi_size_t number = 1;

  CHECK_OK(gaspi_fusion_create(&none, 1, ALL, NULL, &fusion, LIMIT));
  CHECK_OK(gaspi_fusion_buckets(fusion, &number));
  CHECK(number == 0);
  CHECK_OK(gaspi_fusion_wait(fusion, 0, NULL, GASPI_BLOCK));
  CHECK_ERR(gaspi_fusion_next(fusion, &number, GASPI_BLOCK), GASPI_ERROR);
  CHECK(strstr(detail(), "no tensor has elements") != NULL);
  CHECK_OK(gaspi_fusion_free(fusion));
}

/* More than are found in the same way, each told apart from the others and from those before it. */
static void many_at_a_time(void) {
  enum { MANY = 200, FREED = 100 };
  const gaspi_fusion_tensor_t tensor = {1, F32, 0};
  gaspi_fusion_t fusions[MANY], former[MANY];
  float mine;

  for (unsigned at = 0; at < MANY; at++) {
    CHECK_OK(gaspi_fusion_create(&tensor, 1, ALL, NULL, &fusions[at], LIMIT));
  }
  for (unsigned round = 0; round < 2; round++) {
    for (unsigned at = MANY; at-- > 0;) {
      mine = (float)(at + round);
      CHECK_OK(gaspi_fusion_submit(fusions[at], 0, &mine, at % 2 == 0 ? 1.0 : 0.5));
    }
    for (unsigned at = 0; at < MANY; at++) {
      CHECK_OK(gaspi_fusion_wait(fusions[at], 0, sum, LIMIT));
      CHECK(sum[0] == (float)ranks * (float)(at + round) * (at % 2 == 0 ? 1.0F : 0.5F));
    }
    memcpy(former, fusions, sizeof former);
    for (unsigned at = 0; round == 0 && at < FREED; at++) {
      CHECK_OK(gaspi_fusion_free(former[at]));
    }
    for (unsigned at = 0; round == 0 && at < FREED; at++) {
      CHECK_OK(gaspi_fusion_create(&tensor, 1, ALL, NULL, &fusions[at], LIMIT));
      CHECK_ERR(gaspi_fusion_submit(former[at], 0, data, 1.0), GASPI_ERROR);
    }
  }
  for (unsigned at = 0; at < MANY; at++) {
    CHECK_OK(gaspi_fusion_free(fusions[at]));
    CHECK_ERR(gaspi_fusion_submit(fusions[at], 0, data, 1.0), GASPI_ERROR);
  }
}

static void calls_after_free(gaspi_fusion_t freed) {
  gaspi_size_t number = 0;
  const void *lent = NULL;
  void *place = NULL;
  int done = 0, fd = -1;

  CHECK_ERR(gaspi_fusion_free(freed), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_submit(freed, 0, data, 1.0), GASPI_ERROR);
  CHECK(strstr(detail(), "no such fused buffer") != NULL);
  CHECK_ERR(gaspi_fusion_wait(freed, 0, sum, LIMIT), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_test(freed, 0, sum, &done), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_result(freed, 0, &lent, LIMIT), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_release(freed, 0, data), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_next(freed, &number, LIMIT), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_tensor_ptr(freed, 0, &place), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_bucket(freed, 0, &number), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_buckets(freed, &number), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_on_end(freed, NULL, NULL), GASPI_ERROR);
  CHECK_ERR(gaspi_fusion_fd(freed, &fd), GASPI_ERROR);
  CHECK(lent == NULL && place == NULL && fd == -1);
}

int main(void) {
  gaspi_fusion_tensor_t tensors[TENSORS];
  gaspi_fusion_options_t options = GASPI_FUSION_OPTIONS_INIT;
  gaspi_fusion_t fusion = 0, other = 0;

  declare(tensors);
  job_start();
  wrong_declarations(tensors);
  for (unsigned round = 0; round < 3; round++) {
    options.threshold = (gaspi_size_t[]){0, 400, 1 << 20}[round];
    options.order = round == 1 ? GASPI_FUSION_REVERSE : GASPI_FUSION_DECLARED;
    options.background = round != 2;
    CHECK_OK(gaspi_fusion_create(tensors, TENSORS, ALL, &options, &fusion, LIMIT));
    steps(fusion);
    CHECK_OK(gaspi_fusion_free(fusion));
    calls_after_free(fusion);
  }
  nobody_waits_in_a_function();
  no_tensor_has_elements();
  many_at_a_time();
  CHECK_OK(gaspi_fusion_create(tensors, TENSORS, ALL, NULL, &other, LIMIT));
  CHECK(other != fusion);
  wrong_calls(other);
  sync_all();
  CHECK_OK(gaspi_fusion_free(other));
  job_end();
  return 0;
}
