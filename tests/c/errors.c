/* ranks: 1 2 5 */
/*
 * Errors: every procedure with every wrong argument, before a job, in it and after it. Each call
 * gets one wrong argument; the code names it, the detail says more, and nothing else happens.
 */
#include "noinit.h"

enum { SEGMENT = 0, SIZE = 4096, NO_SEGMENT = 77, NO_QUEUE = 99, NO_GROUP = 31, NO_ID = 65536 };

#define NULLPTR(call) CHECK_ERR(call, GASPI_ERR_NULLPTR)

/* The arguments of a list call, all sound. */
struct list {
  gaspi_segment_id_t local[2];
  gaspi_offset_t local_offset[2];
  gaspi_segment_id_t remote[2];
  gaspi_offset_t remote_offset[2];
  gaspi_size_t size[2];
};

static struct list sound_list(void) {
  const struct list list = {{SEGMENT, SEGMENT}, {0, 64}, {SEGMENT, SEGMENT}, {128, 256}, {8, 16}};
  return list;
}

/* What tells about the process, not about a job: works without one. */
static void without_job(void) {
  gaspi_config_t config;
  float number = 0;
  gaspi_string_t text = NULL;
  gaspi_number_t count = 0;

  CHECK_OK(gaspi_config_get(&config));
  CHECK_OK(gaspi_version(&number));
  CHECK_OK(gaspi_print_error(GASPI_TIMEOUT, &text));
  free(text);
  CHECK_OK(gaspi_initialized(&count));
  CHECK(count == 0);
  CHECK_OK(gaspi_pcontrol(NULL));
}

static void null_in_getters(void) {
  NULLPTR(gaspi_config_get(NULL));
  NULLPTR(gaspi_version(NULL));
  NULLPTR(gaspi_initialized(NULL));
  NULLPTR(gaspi_proc_rank(NULL));
  NULLPTR(gaspi_proc_num(NULL));
  NULLPTR(gaspi_proc_local_rank(NULL));
  NULLPTR(gaspi_proc_local_num(NULL));
  NULLPTR(gaspi_state_vec_get(NULL));
  NULLPTR(gaspi_build_infrastructure(NULL));
  NULLPTR(gaspi_group_create(NULL));
  NULLPTR(gaspi_group_num(NULL));
  NULLPTR(gaspi_group_size(GASPI_GROUP_ALL, NULL));
  NULLPTR(gaspi_group_ranks(GASPI_GROUP_ALL, NULL));
  NULLPTR(gaspi_group_max(NULL));
  NULLPTR(gaspi_segment_num(NULL));
  NULLPTR(gaspi_segment_list(1, NULL));
  NULLPTR(gaspi_segment_ptr(SEGMENT, NULL));
  NULLPTR(gaspi_segment_max(NULL));
  NULLPTR(gaspi_segment_avail_local(NULL));
  NULLPTR(gaspi_segment_size(SEGMENT, 0, NULL));
  NULLPTR(gaspi_queue_create(NULL, LIMIT));
  NULLPTR(gaspi_queue_size(0, NULL));
  NULLPTR(gaspi_queue_num(NULL));
  NULLPTR(gaspi_queue_size_max(NULL));
  NULLPTR(gaspi_queue_max(NULL));
  NULLPTR(gaspi_atomic_max(NULL));
  NULLPTR(gaspi_transfer_size_min(NULL));
  NULLPTR(gaspi_transfer_size_max(NULL));
  NULLPTR(gaspi_notification_num(NULL));
  NULLPTR(gaspi_notifications_space_size(NULL));
  NULLPTR(gaspi_passive_transfer_size_min(NULL));
  NULLPTR(gaspi_passive_transfer_size_max(NULL));
  NULLPTR(gaspi_allreduce_buf_size(NULL));
  NULLPTR(gaspi_allreduce_elem_max(NULL));
  NULLPTR(gaspi_rw_list_elem_max(NULL));
  NULLPTR(gaspi_network_type(NULL));
  NULLPTR(gaspi_time_ticks(NULL));
  NULLPTR(gaspi_time_get(NULL));
  NULLPTR(gaspi_cpu_frequency(NULL));
  NULLPTR(gaspi_numa_socket(NULL));
  NULLPTR(gaspi_print_error(GASPI_ERROR, NULL));
  NULLPTR(gaspi_threads_init(NULL));
  NULLPTR(gaspi_threads_register(NULL));
  NULLPTR(gaspi_threads_get_tid(NULL));
  NULLPTR(gaspi_threads_get_total(NULL));
  NULLPTR(gaspi_threads_get_num_cores(NULL));
  CHECK_RC(gaspi_error_detail(NULL, 1), GASPI_ERR_NULLPTR);
}

static void null_in_statistics(void) {
  gaspi_statistic_argument_t argument;
  gaspi_string_t name = NULL;
  gaspi_string_t description = NULL;
  gaspi_number_t level = 0;

  NULLPTR(gaspi_statistic_counter_max(NULL));
  NULLPTR(gaspi_statistic_counter_info(0, NULL, &name, &description, &level));
  NULLPTR(gaspi_statistic_counter_info(0, &argument, NULL, &description, &level));
  NULLPTR(gaspi_statistic_counter_info(0, &argument, &name, NULL, &level));
  NULLPTR(gaspi_statistic_counter_info(0, &argument, &name, &description, NULL));
  NULLPTR(gaspi_statistic_counter_get(0, 0, NULL));
  NULLPTR(gaspi_statistic_counter_get_f(0, 0, NULL));
}

static void null_in_communication(void) {
  struct list l = sound_list();
  int in = 1;
  int out = 0;

  NULLPTR(gaspi_segment_bind(1, NULL, 64, 0));
  NULLPTR(gaspi_segment_use(1, NULL, 64, GASPI_GROUP_ALL, LIMIT, 0));
  NULLPTR(gaspi_write_list(2, NULL, l.local_offset, 0, l.remote, l.remote_offset, l.size, 0,
                           LIMIT));
  NULLPTR(gaspi_write_list(2, l.local, NULL, 0, l.remote, l.remote_offset, l.size, 0, LIMIT));
  NULLPTR(gaspi_write_list(2, l.local, l.local_offset, 0, NULL, l.remote_offset, l.size, 0, LIMIT));
  NULLPTR(gaspi_write_list(2, l.local, l.local_offset, 0, l.remote, NULL, l.size, 0, LIMIT));
  NULLPTR(
      gaspi_write_list(2, l.local, l.local_offset, 0, l.remote, l.remote_offset, NULL, 0, LIMIT));
  NULLPTR(gaspi_read_list(2, NULL, l.local_offset, 0, l.remote, l.remote_offset, l.size, 0, LIMIT));
  NULLPTR(gaspi_read_list(2, l.local, NULL, 0, l.remote, l.remote_offset, l.size, 0, LIMIT));
  NULLPTR(gaspi_read_list(2, l.local, l.local_offset, 0, NULL, l.remote_offset, l.size, 0, LIMIT));
  NULLPTR(gaspi_read_list(2, l.local, l.local_offset, 0, l.remote, NULL, l.size, 0, LIMIT));
  NULLPTR(
      gaspi_read_list(2, l.local, l.local_offset, 0, l.remote, l.remote_offset, NULL, 0, LIMIT));
  NULLPTR(gaspi_write_list_notify(2, NULL, l.local_offset, 0, l.remote, l.remote_offset, l.size,
                                  SEGMENT, 0, 1, 0, LIMIT));
  NULLPTR(gaspi_write_list_notify(2, l.local, NULL, 0, l.remote, l.remote_offset, l.size, SEGMENT,
                                  0, 1, 0, LIMIT));
  NULLPTR(gaspi_write_list_notify(2, l.local, l.local_offset, 0, NULL, l.remote_offset, l.size,
                                  SEGMENT, 0, 1, 0, LIMIT));
  NULLPTR(gaspi_write_list_notify(2, l.local, l.local_offset, 0, l.remote, NULL, l.size, SEGMENT,
                                  0, 1, 0, LIMIT));
  NULLPTR(gaspi_write_list_notify(2, l.local, l.local_offset, 0, l.remote, l.remote_offset, NULL,
                                  SEGMENT, 0, 1, 0, LIMIT));
  NULLPTR(gaspi_read_list_notify(2, NULL, l.local_offset, 0, l.remote, l.remote_offset, l.size,
                                 SEGMENT, 0, 0, LIMIT));
  NULLPTR(gaspi_read_list_notify(2, l.local, l.local_offset, 0, l.remote, l.remote_offset, NULL,
                                 SEGMENT, 0, 0, LIMIT));
  NULLPTR(gaspi_notify_waitsome(SEGMENT, 0, 1, NULL, LIMIT));
  NULLPTR(gaspi_passive_receive(SEGMENT, 0, NULL, 8, LIMIT));
  NULLPTR(gaspi_atomic_fetch_add(SEGMENT, 0, 0, 1, NULL, LIMIT));
  NULLPTR(gaspi_atomic_compare_swap(SEGMENT, 0, 0, 1, 1, NULL, LIMIT));
  NULLPTR(gaspi_allreduce(NULL, &out, 1, GASPI_OP_SUM, GASPI_TYPE_INT, GASPI_GROUP_ALL, LIMIT));
  NULLPTR(gaspi_allreduce(&in, NULL, 1, GASPI_OP_SUM, GASPI_TYPE_INT, GASPI_GROUP_ALL, LIMIT));
  NULLPTR(gaspi_allreduce_user(NULL, &out, 1, 4, noinit_reduce, NULL, GASPI_GROUP_ALL, LIMIT));
  NULLPTR(gaspi_allreduce_user(&in, NULL, 1, 4, noinit_reduce, NULL, GASPI_GROUP_ALL, LIMIT));
  NULLPTR(gaspi_allreduce_user(&in, &out, 1, 4, NULL, NULL, GASPI_GROUP_ALL, LIMIT));
}

/* One request with one wrong argument after the other; no slot is taken. */
#define REQUEST_ERRORS(call)                                                              \
  do {                                                                                    \
    CHECK_ERR(call(NO_SEGMENT, 0, right, SEGMENT, 0, 8, 0), GASPI_ERR_INV_SEG);           \
    CHECK_ERR(call(255, 0, right, SEGMENT, 0, 8, 0), GASPI_ERR_INV_SEG);                  \
    CHECK_ERR(call(SEGMENT, 0, right, NO_SEGMENT, 0, 8, 0), GASPI_ERR_INV_SEG);           \
    CHECK_ERR(call(SEGMENT, 0, ranks, SEGMENT, 0, 8, 0), GASPI_ERR_INV_RANK);             \
    CHECK_ERR(call(SEGMENT, 0, 65535, SEGMENT, 0, 8, 0), GASPI_ERR_INV_RANK);             \
    CHECK_ERR(call(SEGMENT, SIZE, right, SEGMENT, 0, 8, 0), GASPI_ERR_INV_LOC_OFF);       \
    CHECK_ERR(call(SEGMENT, 0, right, SEGMENT, SIZE, 8, 0), GASPI_ERR_INV_REM_OFF);       \
    CHECK_ERR(call(SEGMENT, SIZE - 7, right, SEGMENT, 0, 8, 0), GASPI_ERR_INV_COMMSIZE);  \
    CHECK_ERR(call(SEGMENT, 0, right, SEGMENT, SIZE - 7, 8, 0), GASPI_ERR_INV_COMMSIZE);  \
    CHECK_ERR(call(SEGMENT, 0, right, SEGMENT, 0, (gaspi_size_t)-1, 0),                   \
              GASPI_ERR_INV_COMMSIZE);                                                    \
    CHECK_ERR(call(SEGMENT, 0, right, SEGMENT, 0, (1ul << 30) + 1, 0),                    \
              GASPI_ERR_INV_COMMSIZE);                                                    \
    CHECK_ERR(call(SEGMENT, 0, right, SEGMENT, 0, 8, NO_QUEUE), GASPI_ERR_INV_QUEUE);     \
    CHECK(queue_fill(0) == 0);                                                            \
  } while (0)

#define WRITE(ls, lo, r, rs, ro, n, q) gaspi_write(ls, lo, r, rs, ro, n, q, LIMIT)
#define READ(ls, lo, r, rs, ro, n, q) gaspi_read(ls, lo, r, rs, ro, n, q, LIMIT)
#define WRITE_NOTIFY(ls, lo, r, rs, ro, n, q) \
  gaspi_write_notify(ls, lo, r, rs, ro, n, 0, 1, q, LIMIT)
#define READ_NOTIFY(ls, lo, r, rs, ro, n, q) gaspi_read_notify(ls, lo, r, rs, ro, n, 0, q, LIMIT)

enum list_kind { LIST_WRITE, LIST_READ, LIST_WRITE_NOTIFY, LIST_READ_NOTIFY };

/* A list of two of which the second is wrong. */
static gaspi_return_t list_call(enum list_kind kind, gaspi_number_t num, gaspi_segment_id_t local,
                                gaspi_offset_t local_offset, gaspi_rank_t rank,
                                gaspi_segment_id_t remote, gaspi_offset_t remote_offset,
                                gaspi_size_t size, gaspi_queue_id_t queue) {
  struct list l = sound_list();

  l.local[1] = local;
  l.local_offset[1] = local_offset;
  l.remote[1] = remote;
  l.remote_offset[1] = remote_offset;
  l.size[1] = size;
  switch (kind) {
    case LIST_WRITE:
      return gaspi_write_list(num, l.local, l.local_offset, rank, l.remote, l.remote_offset, l.size,
                              queue, LIMIT);
    case LIST_READ:
      return gaspi_read_list(num, l.local, l.local_offset, rank, l.remote, l.remote_offset, l.size,
                             queue, LIMIT);
    case LIST_WRITE_NOTIFY:
      return gaspi_write_list_notify(num, l.local, l.local_offset, rank, l.remote, l.remote_offset,
                                     l.size, SEGMENT, 0, 1, queue, LIMIT);
    default:
      return gaspi_read_list_notify(num, l.local, l.local_offset, rank, l.remote, l.remote_offset,
                                    l.size, SEGMENT, 0, queue, LIMIT);
  }
}

static void requests(void) {
  const gaspi_rank_t right = rank_after(1);

  REQUEST_ERRORS(WRITE);
  REQUEST_ERRORS(READ);
  REQUEST_ERRORS(WRITE_NOTIFY);
  REQUEST_ERRORS(READ_NOTIFY);
  for (int kind = LIST_WRITE; kind <= LIST_READ_NOTIFY; kind++) {
#define LIST(ls, lo, r, rs, ro, n, q) list_call((enum list_kind)kind, 2, ls, lo, r, rs, ro, n, q)
    REQUEST_ERRORS(LIST);
#undef LIST
    CHECK_ERR(list_call((enum list_kind)kind, 0, SEGMENT, 0, right, SEGMENT, 0, 8, 0),
              GASPI_ERR_INV_NUM);
    CHECK_ERR(list_call((enum list_kind)kind, 256, SEGMENT, 0, right, SEGMENT, 0, 8, 0),
              GASPI_ERR_INV_NUM);
  }
  CHECK(queue_fill(0) == 0);
}

static void notifications(void) {
  const gaspi_rank_t right = rank_after(1);
  struct list l = sound_list();
  gaspi_notification_id_t first = 4711;
  gaspi_notification_t old = 4711;

  CHECK_ERR(gaspi_notify(NO_SEGMENT, right, 0, 1, 0, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_notify(SEGMENT, ranks, 0, 1, 0, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_notify(SEGMENT, right, NO_ID, 1, 0, LIMIT), GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_notify(SEGMENT, right, 0, 0, 0, LIMIT), GASPI_ERR_INV_NOTIF_VAL);
  CHECK_ERR(gaspi_notify(SEGMENT, right, 0, 1, NO_QUEUE, LIMIT), GASPI_ERR_INV_QUEUE);
  CHECK_ERR(gaspi_write_notify(SEGMENT, 0, right, SEGMENT, 0, 8, NO_ID, 1, 0, LIMIT),
            GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_write_notify(SEGMENT, 0, right, SEGMENT, 0, 8, 0, 0, 0, LIMIT),
            GASPI_ERR_INV_NOTIF_VAL);
  CHECK_ERR(gaspi_read_notify(SEGMENT, 0, right, SEGMENT, 0, 8, NO_ID, 0, LIMIT),
            GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_write_list_notify(2, l.local, l.local_offset, right, l.remote, l.remote_offset,
                                    l.size, NO_SEGMENT, 0, 1, 0, LIMIT),
            GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_write_list_notify(2, l.local, l.local_offset, right, l.remote, l.remote_offset,
                                    l.size, SEGMENT, NO_ID, 1, 0, LIMIT),
            GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_write_list_notify(2, l.local, l.local_offset, right, l.remote, l.remote_offset,
                                    l.size, SEGMENT, 0, 0, 0, LIMIT),
            GASPI_ERR_INV_NOTIF_VAL);
  CHECK_ERR(gaspi_read_list_notify(2, l.local, l.local_offset, right, l.remote, l.remote_offset,
                                   l.size, NO_SEGMENT, 0, 0, LIMIT),
            GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_read_list_notify(2, l.local, l.local_offset, right, l.remote, l.remote_offset,
                                   l.size, SEGMENT, NO_ID, 0, LIMIT),
            GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_notify_waitsome(NO_SEGMENT, 0, 1, &first, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_notify_waitsome(SEGMENT, NO_ID, 1, &first, LIMIT), GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_notify_waitsome(SEGMENT, 1, NO_ID, &first, LIMIT), GASPI_ERR_INV_NOTIF_ID);
  CHECK_ERR(gaspi_notify_reset(NO_SEGMENT, 0, &old), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_notify_reset(SEGMENT, NO_ID, &old), GASPI_ERR_INV_NOTIF_ID);
  CHECK(first == 4711 && old == 4711);
  CHECK(queue_fill(0) == 0);
  CHECK_RC(gaspi_notify_waitsome(SEGMENT, 0, NO_ID, &first, GASPI_TEST), GASPI_TIMEOUT);
}

static void collectives(void) {
  int in[2] = {1, 1};
  int out[2] = {4711, 4711};

  CHECK_ERR(gaspi_barrier(NO_GROUP, LIMIT), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_barrier(255, LIMIT), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_allreduce(in, out, 2, GASPI_OP_SUM, GASPI_TYPE_INT, NO_GROUP, LIMIT),
            GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_allreduce(in, out, 256, GASPI_OP_SUM, GASPI_TYPE_INT, GASPI_GROUP_ALL, LIMIT),
            GASPI_ERR_INV_NUM);
  CHECK(gaspi_allreduce(in, out, 2, (gaspi_operation_t)3, GASPI_TYPE_INT, GASPI_GROUP_ALL, LIMIT) !=
        GASPI_SUCCESS);
  CHECK(gaspi_allreduce(in, out, 2, GASPI_OP_SUM, (gaspi_datatype_t)6, GASPI_GROUP_ALL, LIMIT) !=
        GASPI_SUCCESS);
  CHECK_ERR(gaspi_allreduce_user(in, out, 2, 4, noinit_reduce, NULL, NO_GROUP, LIMIT),
            GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_allreduce_user(in, out, 2, 1021, noinit_reduce, NULL, GASPI_GROUP_ALL, LIMIT),
            GASPI_ERR_INV_SIZE);
  CHECK(out[0] == 4711 && out[1] == 4711);
  sync_all();
}

/* A segment that its own rank does not have is not one that it forgot to register. */
static void own_segment(void) {
  gaspi_atomic_value_t old = 0;
  char text[256] = "";

  CHECK_ERR(gaspi_atomic_fetch_add(NO_SEGMENT, 0, my_rank, 1, &old, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_OK(gaspi_error_detail(text, sizeof text));
  CHECK(strstr(text, "has no such segment") != NULL);
}

static void other(void) {
  gaspi_atomic_value_t old = 0;
  gaspi_size_t size = 0;
  gaspi_pointer_t pointer = NULL;
  gaspi_rank_t rank = 0;

  CHECK_ERR(gaspi_segment_ptr(NO_SEGMENT, &pointer), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_segment_delete(NO_SEGMENT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_segment_register(NO_SEGMENT, 0, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_segment_register(SEGMENT, ranks, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_segment_size(NO_SEGMENT, my_rank, &size), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_segment_size(SEGMENT, ranks, &size), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_segment_alloc(SEGMENT, 8, GASPI_MEM_INITIALIZED), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_segment_create(SEGMENT, 8, GASPI_GROUP_ALL, LIMIT, GASPI_MEM_INITIALIZED),
            GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_segment_create(1, 8, NO_GROUP, LIMIT, GASPI_MEM_INITIALIZED),
            GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_segment_use(1, &size, 8, NO_GROUP, LIMIT, 0), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_segment_alloc(1, 0, GASPI_MEM_INITIALIZED), GASPI_ERR_INV_SEGSIZE);
  CHECK_ERR(gaspi_group_add(NO_GROUP, 0), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_group_delete(NO_GROUP), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_group_commit(NO_GROUP, LIMIT), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_queue_delete(NO_QUEUE), GASPI_ERR_INV_QUEUE);
  CHECK_ERR(gaspi_queue_purge(NO_QUEUE, LIMIT), GASPI_ERR_INV_QUEUE);
  CHECK_ERR(gaspi_wait(NO_QUEUE, LIMIT), GASPI_ERR_INV_QUEUE);
  CHECK_ERR(gaspi_passive_send(NO_SEGMENT, 0, 0, 8, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_passive_send(SEGMENT, SIZE, 0, 8, LIMIT), GASPI_ERR_INV_LOC_OFF);
  CHECK_ERR(gaspi_passive_send(SEGMENT, 0, ranks, 8, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_passive_send(SEGMENT, 0, 0, 65536, LIMIT), GASPI_ERR_INV_COMMSIZE);
  CHECK_ERR(gaspi_passive_receive(NO_SEGMENT, 0, &rank, 8, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_passive_receive(SEGMENT, SIZE, &rank, 8, LIMIT), GASPI_ERR_INV_LOC_OFF);
  CHECK_ERR(gaspi_passive_receive(SEGMENT, 8, &rank, SIZE, LIMIT), GASPI_ERR_INV_COMMSIZE);
  CHECK_ERR(gaspi_atomic_fetch_add(NO_SEGMENT, 0, 0, 1, &old, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_atomic_fetch_add(SEGMENT, 4, 0, 1, &old, LIMIT), GASPI_ERR_UNALIGN_OFF);
  CHECK_ERR(gaspi_atomic_fetch_add(SEGMENT, SIZE, 0, 1, &old, LIMIT), GASPI_ERR_INV_REM_OFF);
  CHECK_ERR(gaspi_atomic_fetch_add(SEGMENT, 0, ranks, 1, &old, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_atomic_compare_swap(NO_SEGMENT, 0, 0, 1, 1, &old, LIMIT), GASPI_ERR_INV_SEG);
  CHECK_ERR(gaspi_atomic_compare_swap(SEGMENT, 0, ranks, 1, 1, &old, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_connect(ranks, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_disconnect(ranks, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_proc_kill(ranks, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_proc_kill(my_rank, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_proc_ping(ranks, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_threads_term(), GASPI_ERROR);
  CHECK_ERR(gaspi_threads_sync_all(GASPI_GROUP_ALL, LIMIT), GASPI_ERROR);
  /* A rank that does not exist is named by nothing: printing to it is ignored. */
  gaspi_printf_to(ranks, "nobody reads this\n");
}

/* After all of that the job is in order: nothing was posted, stored or broken. */
static void unharmed(const char *memory) {
  gaspi_number_t number = 0;
  gaspi_state_t *states = (gaspi_state_t *)calloc(ranks, sizeof *states);

  CHECK(states != NULL);
  for (int at = 0; at < SIZE; at++) {
    CHECK(memory[at] == 0);
  }
  CHECK_OK(gaspi_segment_num(&number));
  CHECK(number == 1);
  CHECK_OK(gaspi_group_num(&number));
  CHECK(number == 1);
  CHECK_OK(gaspi_state_vec_get(states));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK(states[rank] == GASPI_STATE_HEALTHY);
  }
  free(states);
  CHECK_OK(gaspi_write_notify(SEGMENT, 0, rank_after(1), SEGMENT, 8, 8, 0, 1, 0, LIMIT));
  CHECK(take(SEGMENT, 0) == 1);
  CHECK_OK(gaspi_wait(0, LIMIT));
}

int main(void) {
  const char *memory;

  without_job();
  all_noinit();
  job_start();
  memory = segment_on_all(SEGMENT, SIZE);
  null_in_getters();
  null_in_statistics();
  null_in_communication();
  requests();
  notifications();
  collectives();
  own_segment();
  other();
  sync_all();
  unharmed(memory);
  job_end();
  all_noinit();
  without_job();
  return 0;
}
