/*
 * Calls each fast path a thousand times, in a function of its own, for a profiler that counts
 * instructions. main.rs runs it as two ranks: rank 0 under callgrind, which counts inside of the
 * functions path_* and writes a profile after each run_*, and rank 1 natively, which waits in a
 * barrier, so that its memory is there and nothing has to be waited for.
 *
 * What a first call does (claim a queue, take a slot for the thread, bind a symbol) is done before
 * anything is counted.
 *
 * With BY_DEVICE defined the peer is reached by an RDMA device, up to whose functions is counted.
 */
#define _GNU_SOURCE
#include "check.h"

#include <gaspi_collectives.h>

#include <linux/membarrier.h>
#include <sys/syscall.h>

#define WARM_UP 20
#define BATCHES 10
#ifdef BY_DEVICE
#define BATCH 60 /* what the device's queue has room for */
#else
#define BATCH 100
#endif
#define ELEMENTS 8

/* The segment, the rank that it is written to, and notifications. */
enum { DATA = 0, PEER = 1, SET = 1, UNSET = 2 };

#ifndef BY_DEVICE
static gaspi_group_t alone;
static gaspi_notification_id_t first;
static gaspi_notification_t value;
static gaspi_number_t fill;
static gaspi_atomic_value_t old;
static double mine = 1.0;
static double sum;
static gaspi_segment_id_t segments[ELEMENTS];
static gaspi_offset_t offsets[ELEMENTS];
static gaspi_size_t sizes[ELEMENTS];
/* One bucket of more tensors than are submitted, and of one tensor that is submitted less often
 * than it may be. */
#define CALLS (WARM_UP + BATCHES * BATCH)
#define TENSORS (CALLS + 1)
/* Fused buffers that are found in another way lie behind so many. */
#define FIRST_FUSIONS 64
static gaspi_fusion_t copied, scaled, narrowed, added, narrowed_added, further, summed;
/* Calls so far of each path that submits other tensors each time. */
static gaspi_size_t copies, scales, narrows, narrowed_adds, further_copies;
static double gradient[8];
#endif

#ifdef BY_DEVICE
/* One request and the wait for it, which count as one call. */
__attribute__((noipa)) static int write_and_wait(void) {
  const int failed = gaspi_write(DATA, 0, PEER, DATA, 64, 8, 0, GASPI_BLOCK);
  return failed | gaspi_wait(0, GASPI_BLOCK);
}

__attribute__((noipa)) static int read_and_wait(void) {
  const int failed = gaspi_read(DATA, 0, PEER, DATA, 64, 8, 0, GASPI_BLOCK);
  return failed | gaspi_wait(0, GASPI_BLOCK);
}
#endif

/* What the figures call it, in words, the call as a user writes it, and what it returns. */
#ifdef BY_DEVICE
#define PATHS(PATH)                                                                       \
  PATH(rdma_write_8, "gaspi_write, 8 bytes, by an RDMA device",                         \
       gaspi_write(DATA, 0, PEER, DATA, 64, 8, 0, GASPI_BLOCK), GASPI_SUCCESS)            \
  PATH(rdma_write_notify_8, "gaspi_write_notify, 8 bytes, by an RDMA device",           \
       gaspi_write_notify(DATA, 0, PEER, DATA, 64, 8, 0, 1, 0, GASPI_BLOCK),              \
       GASPI_SUCCESS)                                                                     \
  PATH(rdma_write_wait_8, "gaspi_write, 8 bytes, and gaspi_wait, by an RDMA device",      \
       write_and_wait(), GASPI_SUCCESS)                                                   \
  PATH(rdma_read_wait_8, "gaspi_read, 8 bytes, and gaspi_wait, by an RDMA device",        \
       read_and_wait(), GASPI_SUCCESS)
#else
#define PATHS(PATH)                                                                       \
  PATH(write_8, "gaspi_write, 8 bytes",                                                   \
       gaspi_write(DATA, 0, PEER, DATA, 64, 8, 0, GASPI_BLOCK), GASPI_SUCCESS)            \
  PATH(write_64, "gaspi_write, 64 bytes",                                                 \
       gaspi_write(DATA, 0, PEER, DATA, 64, 64, 0, GASPI_BLOCK), GASPI_SUCCESS)           \
  PATH(read_8, "gaspi_read, 8 bytes",                                                     \
       gaspi_read(DATA, 0, PEER, DATA, 64, 8, 0, GASPI_BLOCK), GASPI_SUCCESS)             \
  PATH(write_notify_8, "gaspi_write_notify, 8 bytes",                                     \
       gaspi_write_notify(DATA, 0, PEER, DATA, 64, 8, 0, 1, 0, GASPI_BLOCK),              \
       GASPI_SUCCESS)                                                                     \
  PATH(write_list_8, "gaspi_write_list, 8 elements of 8 bytes",                           \
       gaspi_write_list(ELEMENTS, segments, offsets, PEER, segments, offsets, sizes, 0,   \
                        GASPI_BLOCK), GASPI_SUCCESS)                                      \
  PATH(notify, "gaspi_notify", gaspi_notify(DATA, PEER, 0, 1, 0, GASPI_BLOCK),            \
       GASPI_SUCCESS)                                                                     \
  PATH(waitsome_set, "gaspi_notify_waitsome, GASPI_TEST, 1 id that is set",               \
       gaspi_notify_waitsome(DATA, SET, 1, &first, GASPI_TEST), GASPI_SUCCESS)            \
  PATH(waitsome_unset, "gaspi_notify_waitsome, GASPI_TEST, 1 id that is not set",         \
       gaspi_notify_waitsome(DATA, UNSET, 1, &first, GASPI_TEST), GASPI_TIMEOUT)          \
  PATH(waitsome_64_unset, "gaspi_notify_waitsome, GASPI_TEST, 64 ids, none set",          \
       gaspi_notify_waitsome(DATA, UNSET, 64, &first, GASPI_TEST), GASPI_TIMEOUT)         \
  PATH(notify_reset, "gaspi_notify_reset", gaspi_notify_reset(DATA, UNSET, &value),       \
       GASPI_SUCCESS)                                                                     \
  PATH(wait, "gaspi_wait, nothing under way", gaspi_wait(0, GASPI_BLOCK), GASPI_SUCCESS)  \
  PATH(queue_size, "gaspi_queue_size", gaspi_queue_size(0, &fill), GASPI_SUCCESS)         \
  PATH(fetch_add, "gaspi_atomic_fetch_add",                                               \
       gaspi_atomic_fetch_add(DATA, 128, PEER, 1, &old, GASPI_BLOCK), GASPI_SUCCESS)      \
  PATH(compare_swap, "gaspi_atomic_compare_swap",                                         \
       gaspi_atomic_compare_swap(DATA, 136, PEER, 0, 0, &old, GASPI_BLOCK),               \
       GASPI_SUCCESS)                                                                     \
  PATH(barrier_alone, "gaspi_barrier, a group of this rank only",                         \
       gaspi_barrier(alone, GASPI_BLOCK), GASPI_SUCCESS)                                  \
  PATH(allreduce_alone, "gaspi_allreduce, 1 double, a group of this rank only",           \
       gaspi_allreduce(&mine, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_DOUBLE, alone,            \
                       GASPI_BLOCK), GASPI_SUCCESS)                                       \
  PATH(fusion_submit, "gaspi_fusion_submit, 8 doubles, not the last of its bucket",       \
       gaspi_fusion_submit(copied, copies++, gradient, 1.0), GASPI_SUCCESS)               \
  PATH(fusion_submit_further,                                                             \
       "gaspi_fusion_submit, 8 doubles, to a fused buffer behind 64 others",              \
       gaspi_fusion_submit(further, further_copies++, gradient, 1.0), GASPI_SUCCESS)      \
  PATH(fusion_submit_scale,                                                               \
       "gaspi_fusion_submit, 8 doubles times 0.5, besides the kernel",                    \
       gaspi_fusion_submit(scaled, scales++, gradient, 0.5), GASPI_SUCCESS)               \
  PATH(fusion_submit_add,                                                                 \
       "gaspi_fusion_submit, 8 doubles, a further contribution, besides the kernel",      \
       gaspi_fusion_submit(added, 0, gradient, 1.0), GASPI_SUCCESS)                       \
  PATH(fusion_submit_bf16,                                                                \
       "gaspi_fusion_submit, 8 floats that travel as bf16, besides the kernel",           \
       gaspi_fusion_submit(narrowed, narrows++, gradient, 1.0), GASPI_SUCCESS)            \
  PATH(fusion_submit_bf16_add,                                                            \
       "gaspi_fusion_submit, 8 floats, one of two contributions as bf16, besides the kernel", \
       gaspi_fusion_submit(narrowed_added, narrowed_adds++ / 2, gradient, 1.0),           \
       GASPI_SUCCESS)                                                                     \
  PATH(fusion_wait, "gaspi_fusion_wait, a sum that is there, left in its place",          \
       gaspi_fusion_wait(summed, 0, NULL, GASPI_BLOCK), GASPI_SUCCESS)
#endif

/*
 * path_NAME is what is counted, a batch at a time: the queue is emptied in between. After run_NAME
 * the profile is written.
 */
#define DEFINE(name, words, call, result)                                \
  __attribute__((noipa)) static int path_##name(void) {             \
    int failed = 0;                                                 \
    for (int i = 0; i < BATCH; i++) {                               \
      failed |= (call) ^ (result);                                  \
    }                                                               \
    return failed;                                                  \
  }                                                                 \
  __attribute__((noipa)) static void run_##name(void) {             \
    for (int i = 0; i < WARM_UP; i++) {                             \
      CHECK_RC(call, result);                                       \
    }                                                               \
    for (int batch = 0; batch < BATCHES; batch++) {                 \
      CHECK_OK(gaspi_wait(0, LIMIT));                               \
      CHECK(path_##name() == 0);                                    \
    }                                                               \
  }
PATHS(DEFINE)

/* Whether the kernel fences for the library, which otherwise does it itself on other paths. */
static int kernel_fences(void) {
  const long offered = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  const long needed = MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_PRIVATE_EXPEDITED;
  return offered >= 0 && (offered & needed) == needed;
}

#ifndef BY_DEVICE
static void make_fused_buffer(gaspi_fusion_t *made, gaspi_size_t num, gaspi_coll_datatype_t type,
                              gaspi_uint contributions, gaspi_coll_datatype_t wire) {
  static gaspi_fusion_tensor_t tensors[TENSORS];
  for (gaspi_size_t i = 0; i < num; i++) {
    tensors[i] = (gaspi_fusion_tensor_t){8, type, 0};
  }
  gaspi_fusion_options_t options = GASPI_FUSION_OPTIONS_INIT;
  options.threshold = sizeof gradient * TENSORS;
  options.contributions = contributions;
  options.wire = wire;
  CHECK_OK(gaspi_fusion_create(tensors, num, alone, &options, made, LIMIT));
}

static void make_fused_buffers(void) {
  make_fused_buffer(&summed, 1, GASPI_COLL_TYPE_F64, 1, 0);
  CHECK_OK(gaspi_fusion_submit(summed, 0, gradient, 1.0));
  CHECK_OK(gaspi_fusion_wait(summed, 0, NULL, LIMIT));
  make_fused_buffer(&copied, TENSORS, GASPI_COLL_TYPE_F64, 1, 0);
  make_fused_buffer(&scaled, TENSORS, GASPI_COLL_TYPE_F64, 1, 0);
  make_fused_buffer(&added, 2, GASPI_COLL_TYPE_F64, TENSORS, 0);
  make_fused_buffer(&narrowed, TENSORS, GASPI_COLL_TYPE_F32, 1, GASPI_COLL_TYPE_BF16);
  make_fused_buffer(&narrowed_added, TENSORS, GASPI_COLL_TYPE_F32, 2, GASPI_COLL_TYPE_BF16);
  for (int i = 0; i < FIRST_FUSIONS; i++) {
    make_fused_buffer(&further, 2, GASPI_COLL_TYPE_F64, 1, 0);
  }
  make_fused_buffer(&further, TENSORS, GASPI_COLL_TYPE_F64, 1, 0);
}
#endif

static void count_all(void) {
#ifndef BY_DEVICE
  CHECK_OK(gaspi_group_create(&alone));
  CHECK_OK(gaspi_group_add(alone, my_rank));
  CHECK_OK(gaspi_group_commit(alone, LIMIT));
  make_fused_buffers();
  CHECK_OK(gaspi_notify(DATA, my_rank, SET, 1, 0, LIMIT));
  for (int i = 0; i < ELEMENTS; i++) {
    segments[i] = DATA;
    offsets[i] = 256 + 8 * (gaspi_offset_t)i;
    sizes[i] = 8;
  }
#endif
#define RUN(name, words, call, result) \
  printf("path %s %s\n", #name, words); \
  run_##name();
  PATHS(RUN)
#ifndef BY_DEVICE
  CHECK(sum == mine);
#endif
}

int main(void) {
  if (!kernel_fences()) {
    fprintf(stderr, "membarrier is refused here, so the paths are not those of the figures\n");
    return 1;
  }
  job_start();
  CHECK(ranks == 2);
  (void)segment_on_all(DATA, 4096);
  if (my_rank == 0) {
    count_all();
  }
  job_end();
  return 0;
}
