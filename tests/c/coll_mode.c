/* ranks: 1 2 5 */
/*
 * Modes: what GASPI_COLL_MODE says holds for operations that name no mode; a name that does not
 * exist is an error of every operation; ranks with different modes are told so. In the stable mode
 * sums have equal bits wherever memory lies and however they are called.
 */
#define _GNU_SOURCE
#include "check.h"

enum { COUNT = 40000 };
#define TYPE GASPI_COLL_TYPE_F32
#define SUM GASPI_COLL_OP_SUM
#define ALL GASPI_GROUP_ALL

static float from[COUNT], first[COUNT], next[COUNT];

static void fill(float *data) {
  for (unsigned i = 0; i < COUNT; i++) {
    data[i] = 1.0f / (float)(1 + i % 997 + 3 * my_rank);
  }
}

static const char *detail(void) {
  static char text[1024];
  CHECK_OK(gaspi_error_detail(text, sizeof text));
  return text;
}

/* Equal bits: private, in a segment in place, started, and fused. */
static void alike(const gaspi_coll_options_t *options) {
  const gaspi_fusion_tensor_t tensor = {COUNT, TYPE, 0};
  gaspi_fusion_options_t fused = GASPI_FUSION_OPTIONS_INIT;
  gaspi_coll_request_t request;
  gaspi_fusion_t fusion;
  gaspi_pointer_t segment;

  fill(from);
  CHECK_OK(gaspi_coll_allreduce(from, first, COUNT, TYPE, SUM, ALL, options, LIMIT));
  CHECK_OK(gaspi_segment_create(0, sizeof from, ALL, LIMIT, GASPI_MEM_INITIALIZED));
  CHECK_OK(gaspi_segment_ptr(0, &segment));
  fill(segment);
  CHECK_OK(gaspi_coll_allreduce_start(GASPI_COLL_IN_PLACE, segment, COUNT, TYPE, SUM, ALL, options,
                                      &request, LIMIT));
  CHECK_OK(gaspi_coll_wait(request, LIMIT));
  CHECK(memcmp(first, segment, sizeof first) == 0);
  fused.mode = options == NULL ? GASPI_COLL_MODE_DEFAULT : options->mode;
  CHECK_OK(gaspi_fusion_create(&tensor, 1, ALL, &fused, &fusion, LIMIT));
  CHECK_OK(gaspi_fusion_submit(fusion, 0, from, 1.0));
  CHECK_OK(gaspi_fusion_wait(fusion, 0, next, LIMIT));
  CHECK(memcmp(first, next, sizeof first) == 0);
  CHECK_OK(gaspi_fusion_free(fusion));
  CHECK_OK(gaspi_segment_delete(0));
}

/* The mode that the environment names is that of an operation that names none. */
static void is_the_default(gaspi_uint mode) {
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;
  const gaspi_coll_options_t *given = my_rank == 0 ? &options : NULL;

  options.mode = mode;
  CHECK_OK(gaspi_coll_allreduce(from, first, COUNT, TYPE, SUM, ALL, given, LIMIT));
}

static void differ(void) {
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;

  options.mode = my_rank == 0 ? GASPI_COLL_MODE_FAST : GASPI_COLL_MODE_STABLE;
  CHECK_ERR(gaspi_coll_allreduce(from, first, COUNT, TYPE, SUM, ALL, &options, LIMIT),
            GASPI_ERROR);
  CHECK(strstr(detail(), "rank 0") != NULL);
  CHECK(strstr(detail(), "fast") != NULL && strstr(detail(), "stable") != NULL);
}

int main(void) {
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;

  options.mode = GASPI_COLL_MODE_STABLE;
  CHECK(unsetenv("GASPI_COLL_MODE") == 0);
  job_start();
  alike(&options);
  is_the_default(GASPI_COLL_MODE_FAST);
  if (ranks > 1) {
    differ();
  }
  job_end();

  CHECK(setenv("GASPI_COLL_MODE", "stable", 1) == 0);
  job_start();
  alike(NULL);
  is_the_default(GASPI_COLL_MODE_STABLE);
  job_end();

  CHECK(setenv("GASPI_COLL_MODE", "steady", 1) == 0);
  CHECK_ERR(gaspi_proc_init(LIMIT), GASPI_ERR_ENV);
  CHECK(strstr(detail(), "GASPI_COLL_MODE") != NULL && strstr(detail(), "\"steady\"") != NULL);
  CHECK(strstr(detail(), "fast, stable") != NULL);
  CHECK(setenv("GASPI_COLL_MODE", "", 1) == 0);
  CHECK_ERR(gaspi_proc_init(LIMIT), GASPI_ERR_ENV);
  CHECK(strstr(detail(), "GASPI_COLL_MODE") != NULL && strstr(detail(), "fast, stable") != NULL);
  return 0;
}
