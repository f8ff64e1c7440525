/* ranks: 1 2 3 */
/*
 * Threads that are cancelled (pthread_cancel) before and in calls: no call is a cancellation point,
 * the thread ends at its next one behind it, and its rank works on. First as the job is, then by
 * TCP.
 */
#define _GNU_SOURCE
#include "check.h"

#include <GASPI_Threads.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { SEGMENT = 0, OTHER = 1, SIZE = 1 << 17, LARGE = 1 << 16, WAITS = 4 };

#define ALL GASPI_GROUP_ALL

/* What a cancelled thread cannot print itself: a message would be its end. */
static const char *failed;
static gaspi_return_t failed_with;

#define DO(call)                                               \
  do {                                                         \
    const gaspi_return_t do_got = (call);                      \
    if (do_got != GASPI_SUCCESS && failed == NULL) {           \
      failed = #call;                                          \
      failed_with = do_got;                                    \
    }                                                          \
  } while (0)

/* An error is expected. */
#define DO_NOT(call) DO((call) == GASPI_SUCCESS ? GASPI_ERROR : GASPI_SUCCESS)

static atomic_int passed;

static void cancel_oneself(void) { CHECK(pthread_cancel(pthread_self()) == 0); }

/* The end of what a cancelled thread does. */
static void *reached_end(void) {
  atomic_fetch_add(&passed, 1);
  pthread_testcancel();
  return NULL;
}

/* The thread has done all that it was to, and ended where it calls pthread_testcancel. */
static void ends_cancelled(pthread_t thread, const char *what) {
  void *result = NULL;

  CHECK(pthread_join(thread, &result) == 0);
  if (failed != NULL) {
    fprintf(stderr, "rank %d: %s gave %d\n", (int)my_rank, failed, (int)failed_with);
  }
  CHECK(failed == NULL);
  if (result != PTHREAD_CANCELED || atomic_load(&passed) != 1) {
    fprintf(stderr, "rank %d: %s: passed %d\n", (int)my_rank, what, atomic_load(&passed));
  }
  CHECK(result == PTHREAD_CANCELED);
  CHECK(atomic_exchange(&passed, 0) == 1);
}

static void run_cancelled(void *(*body)(void *), void *argument, const char *what) {
  pthread_t thread;

  CHECK(pthread_create(&thread, NULL, body, argument) == 0);
  ends_cancelled(thread, what);
}

/* ---- Before calls ---- */

static void *init(void *nothing) {
  gaspi_config_t config;

  cancel_oneself();
  gaspi_printf("a line of a cancelled thread\n");
  DO(gaspi_config_get(&config));
  /* A port of the machine, at which other programs of the tests listen. */
  config.logger = 0;
  DO(gaspi_config_set(config));
  DO(gaspi_proc_init(LIMIT));
  (void)nothing;
  return reached_end();
}

static void *term(void *nothing) {
  cancel_oneself();
  DO(gaspi_barrier(ALL, LIMIT));
  DO(gaspi_proc_term(LIMIT));
  (void)nothing;
  return reached_end();
}

static gaspi_return_t add(gaspi_pointer_t one, gaspi_pointer_t two, gaspi_pointer_t result,
                          gaspi_reduce_state_t state, const gaspi_number_t num,
                          const gaspi_size_t size, const gaspi_timeout_t timeout) {
  (void)state, (void)size, (void)timeout;
  for (gaspi_number_t at = 0; at < num; at++) {
    ((int *)result)[at] = ((int *)one)[at] + ((int *)two)[at];
  }
  return GASPI_SUCCESS;
}

static void *one_sided(void *rank) {
  const gaspi_rank_t to = *(const gaspi_rank_t *)rank;
  gaspi_segment_id_t locals[2] = {SEGMENT, SEGMENT}, remotes[2] = {SEGMENT, SEGMENT};
  gaspi_offset_t from[2] = {0, 64}, at[2] = {256, 320};
  gaspi_size_t sizes[2] = {8, 16};
  gaspi_notification_id_t first;
  gaspi_notification_t value;
  gaspi_atomic_value_t old;

  cancel_oneself();
  for (gaspi_size_t size = 8; size <= LARGE; size *= 8192) {
    DO(gaspi_write(SEGMENT, 0, to, SEGMENT, LARGE, size, 0, LIMIT));
    DO(gaspi_wait(0, LIMIT));
    DO(gaspi_read(SEGMENT, 0, to, SEGMENT, LARGE, size, 0, LIMIT));
    DO(gaspi_wait(0, LIMIT));
  }
  DO(gaspi_write_list(2, locals, from, to, remotes, at, sizes, 0, LIMIT));
  DO(gaspi_read_list(2, locals, from, to, remotes, at, sizes, 1, LIMIT));
  DO(gaspi_wait(1, LIMIT));
  DO(gaspi_write_list_notify(2, locals, from, to, remotes, at, sizes, SEGMENT, 1, 1, 0, LIMIT));
  DO(gaspi_read_list_notify(2, locals, from, to, remotes, at, sizes, SEGMENT, 5, 0, LIMIT));
  DO(gaspi_write_notify(SEGMENT, 0, to, SEGMENT, LARGE, 8, 2, 1, 0, LIMIT));
  DO(gaspi_read_notify(SEGMENT, 0, to, SEGMENT, LARGE, 8, 3, 0, LIMIT));
  DO(gaspi_notify(SEGMENT, to, 4, 1, 0, LIMIT));
  DO(gaspi_wait(0, LIMIT));
  for (gaspi_notification_id_t id = 1; id <= 5; id++) {
    DO(gaspi_notify_waitsome(SEGMENT, id, 1, &first, LIMIT));
    DO(gaspi_notify_reset(SEGMENT, id, &value));
  }
  DO(gaspi_atomic_fetch_add(SEGMENT, 0, to, 1, &old, LIMIT));
  DO(gaspi_atomic_compare_swap(SEGMENT, 8, to, 0, 1, &old, LIMIT));
  return reached_end();
}

static gaspi_return_t combine(const void *left, const void *right, void *result, uint64_t count,
                              gaspi_size_t element_size, void *state) {
  (void)left, (void)right, (void)result, (void)count, (void)element_size, (void)state;
  return GASPI_SUCCESS;
}

static int in[LARGE], out[LARGE];

static void *standard_ones(void *nothing) {
  (void)nothing;
  cancel_oneself();
  DO(gaspi_allreduce(in, out, 4, GASPI_OP_SUM, GASPI_TYPE_INT, ALL, LIMIT));
  DO(gaspi_allreduce(in, out, 255, GASPI_OP_SUM, GASPI_TYPE_INT, ALL, LIMIT));
  return reached_end();
}

static void *collectives(void *nothing) {
  gaspi_fusion_tensor_t tensor = {8, GASPI_COLL_TYPE_I32, 0};
  gaspi_coll_request_t request;
  gaspi_coll_op_t op;
  gaspi_fusion_t fusion;

  (void)nothing;
  cancel_oneself();
  DO(gaspi_coll_op_create(combine, NULL, 4, 0, &op));
  DO(gaspi_coll_op_free(op));
  DO(gaspi_allreduce_user(in, out, 4, sizeof(int), add, NULL, ALL, LIMIT));
  for (uint64_t count = 4; count <= LARGE; count *= 128) {
    DO(gaspi_coll_allreduce(in, out, count, GASPI_COLL_TYPE_I32, GASPI_COLL_OP_SUM, ALL, NULL,
                            LIMIT));
    DO(gaspi_coll_broadcast(in, out, count, GASPI_COLL_TYPE_I32, 0, ALL, NULL, LIMIT));
  }
  DO(gaspi_coll_barrier(ALL, NULL, LIMIT));
  DO(gaspi_coll_barrier_start(ALL, NULL, &request, LIMIT));
  DO(gaspi_coll_wait(request, LIMIT));
  DO(gaspi_fusion_create(&tensor, 1, ALL, NULL, &fusion, LIMIT));
  DO(gaspi_fusion_submit(fusion, 0, in, 1.0));
  DO(gaspi_fusion_wait(fusion, 0, out, LIMIT));
  DO(gaspi_fusion_free(fusion));
  return reached_end();
}

static void *local_ones(void *nothing) {
  gaspi_state_vector_t states = (gaspi_state_vector_t)malloc(ranks * sizeof *states);
  gaspi_statistic_counter_t counted = 0;
  gaspi_queue_id_t queue;
  gaspi_size_t size;
  gaspi_int cores;
  float mhz;

  (void)nothing;
  cancel_oneself();
  DO(gaspi_state_vec_get(states));
  free(states);
  DO(gaspi_queue_create(&queue, LIMIT));
  DO(gaspi_queue_purge(queue, LIMIT));
  DO(gaspi_queue_delete(queue));
  DO(gaspi_segment_size(SEGMENT, my_rank, &size));
  DO(gaspi_cpu_frequency(&mhz));
  DO(gaspi_threads_get_num_cores(&cores));
  DO(gaspi_statistic_counter_reset(counted));
  /* Errors, which are logged. */
  DO_NOT(gaspi_write(77, 0, 0, SEGMENT, 0, 8, 0, LIMIT));
  DO_NOT(gaspi_segment_create(77, 0, ALL, LIMIT, GASPI_MEM_INITIALIZED));
  DO_NOT(gaspi_proc_ping(ranks, LIMIT));
  return reached_end();
}

static void *first_ones(void *nothing) {
  const gaspi_rank_t to = rank_after(1);

  (void)nothing;
  cancel_oneself();
  DO(gaspi_connect(to, LIMIT));
  DO(gaspi_segment_create(SEGMENT, SIZE, ALL, LIMIT, GASPI_MEM_INITIALIZED));
  DO(gaspi_segment_alloc(OTHER, SIZE, GASPI_MEM_INITIALIZED));
  DO(gaspi_segment_register(OTHER, to, LIMIT));
  DO(gaspi_barrier(ALL, LIMIT));
  return reached_end();
}

static void *last_ones(void *nothing) {
  const gaspi_rank_t to = rank_after(1);
  gaspi_group_t group;
  gaspi_return_t sent;
  gaspi_rank_t from;

  (void)nothing;
  cancel_oneself();
  DO(gaspi_group_create(&group));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    DO(gaspi_group_add(group, rank));
  }
  DO(gaspi_group_commit(group, LIMIT));
  DO(gaspi_barrier(group, LIMIT));
  DO(gaspi_group_delete(group));
  /* Most often its end comes behind the receive. */
  sent = gaspi_passive_send(SEGMENT, 0, to, 8, GASPI_TEST);
  DO(gaspi_passive_receive(SEGMENT, 64, &from, 8, LIMIT));
  if (sent != GASPI_SUCCESS) {
    DO(gaspi_passive_send(SEGMENT, 0, to, 8, LIMIT));
  }
  DO(gaspi_proc_ping(to, LIMIT));
  DO(gaspi_segment_delete(OTHER));
  DO(gaspi_barrier(ALL, LIMIT));
  return reached_end();
}

/* What a rank may call, also for the first time in a job or a thread: connections, imports. */
static void everything(void) {
  gaspi_rank_t to = rank_after(1);

  run_cancelled(first_ones, NULL, "the first calls");
  run_cancelled(one_sided, &to, "one-sided calls");
  run_cancelled(one_sided, &my_rank, "one-sided calls to oneself");
  run_cancelled(standard_ones, NULL, "all-reduces");
  run_cancelled(collectives, NULL, "collectives");
  run_cancelled(local_ones, NULL, "local calls");
  run_cancelled(last_ones, NULL, "the last calls");
}

/* ---- While they wait ---- */

static _Atomic pid_t waiting;

static void *wait_for(void *argument) {
  const unsigned what = *(const unsigned *)argument;
  gaspi_notification_id_t first;
  gaspi_rank_t from;
  int one = 1, sum;

  atomic_store(&waiting, (pid_t)syscall(SYS_gettid));
  switch (what) {
    case 0:
      DO(gaspi_notify_waitsome(SEGMENT, 7, 1, &first, LIMIT));
      break;
    case 1:
      DO(gaspi_barrier(ALL, LIMIT));
      break;
    case 2:
      DO(gaspi_passive_receive(SEGMENT, 0, &from, 8, LIMIT));
      break;
    default:
      DO(gaspi_allreduce(&one, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_INT, ALL, LIMIT));
  }
  return reached_end();
}

/* Whether a thread of this process sleeps. */
static int sleeps(pid_t thread) {
  char path[64], text[256] = "";
  const char *behind;
  FILE *file;

  snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
  file = fopen(path, "r");
  CHECK(file != NULL);
  CHECK(fgets(text, sizeof text, file) != NULL);
  CHECK(fclose(file) == 0);
  behind = strrchr(text, ')');
  CHECK(behind != NULL);
  return behind[2] == 'S';
}

/* Rank 0 waits in a thread that is cancelled there; then the others bring what it waits for. */
static void while_waiting(unsigned what) {
  if (my_rank == 0) {
    pthread_t thread;

    atomic_store(&waiting, 0);
    CHECK(pthread_create(&thread, NULL, wait_for, &what) == 0);
    while (atomic_load(&waiting) == 0 || !sleeps(atomic_load(&waiting))) {
      (void)sched_yield();
    }
    CHECK(pthread_cancel(thread) == 0);
    CHECK_OK(gaspi_notify(SEGMENT, 1, 8, 1, 0, LIMIT));
    CHECK_OK(gaspi_wait(0, LIMIT));
    ends_cancelled(thread, "a wait");
    if (what == 0) {
      CHECK(take(SEGMENT, 7) == 1);
    }
  } else {
    int one = 1, sum = 0;

    if (my_rank == 1) {
      CHECK(take(SEGMENT, 8) == 1);
    }
    if (what == 0 && my_rank == 1) {
      CHECK_OK(gaspi_notify(SEGMENT, 0, 7, 1, 0, LIMIT));
      CHECK_OK(gaspi_wait(0, LIMIT));
    } else if (what == 1) {
      CHECK_OK(gaspi_barrier(ALL, LIMIT));
    } else if (what == 2 && my_rank == 1) {
      CHECK_OK(gaspi_passive_send(SEGMENT, 0, 0, 8, LIMIT));
    } else if (what == 3) {
      CHECK_OK(gaspi_allreduce(&one, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_INT, ALL, LIMIT));
      CHECK(sum == (int)ranks);
    }
  }
  sync_all();
}

static void job(void) {
  run_cancelled(init, NULL, "init");
  CHECK_OK(gaspi_proc_rank(&my_rank));
  CHECK_OK(gaspi_proc_num(&ranks));
  everything();
  sync_all();
  for (unsigned what = 0; ranks > 1 && what < WAITS; what++) {
    while_waiting(what);
  }
  run_cancelled(term, NULL, "term");
}

int main(void) {
  alarm(WATCHDOG_S);
  job();
  CHECK(setenv("GASPI_TRANSPORT", "tcp", 1) == 0);
  job();
  return 0;
}
