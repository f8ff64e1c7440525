/*
 * Every procedure with every pointer NULL: before init, in a job of one rank, in a forked child,
 * and after term. Nothing may crash; the code tells which check came first.
 */
#include <GASPI.h>
#include <GASPI_Threads.h>
#include <PGASPI.h>
#include <gaspi_collectives.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *when = "";
static int failures = 0;

static void check(int line, const char *call, gaspi_return_t got, gaspi_return_t wanted) {
  if (got != wanted) {
    char detail[512] = "";
    gaspi_error_detail(detail, sizeof detail);
    printf("line %d, %s: %s gave %d, not %d (%s)\n", line, when, call, got, wanted, detail);
    failures++;
  }
}

#define CHECK(call, wanted) check(__LINE__, #call, (call), (wanted))

#define TRUE(condition) \
  check(__LINE__, #condition, (condition) ? GASPI_SUCCESS : GASPI_ERROR, GASPI_SUCCESS)

/* Both names of a procedure. */
#define BOTH(name, arguments, wanted)      \
  do {                                     \
    CHECK(gaspi_##name arguments, wanted); \
    CHECK(pgaspi_##name arguments, wanted); \
  } while (0)

#define B GASPI_BLOCK
#define T GASPI_TEST

/* What needs a job: `null` where a pointer is NULL. */
static void need_job(gaspi_return_t null) {
  gaspi_offset_t o[1] = {0};
  gaspi_segment_id_t s[1] = {0};
  gaspi_size_t z[1] = {0};
  char buffer[8] = {0};
  gaspi_pointer_t p = buffer;

  BOTH(proc_rank, (NULL), null);
  BOTH(proc_num, (NULL), null);
  BOTH(proc_local_rank, (NULL), null);
  BOTH(proc_local_num, (NULL), null);
  BOTH(state_vec_get, (NULL), null);
  BOTH(build_infrastructure, (NULL), null);
  BOTH(group_create, (NULL), null);
  BOTH(group_num, (NULL), null);
  BOTH(group_size, (GASPI_GROUP_ALL, NULL), null);
  BOTH(group_ranks, (GASPI_GROUP_ALL, NULL), null);
  BOTH(group_max, (NULL), null);
  BOTH(segment_bind, (1, NULL, 8, 0), null);
  BOTH(segment_use, (1, NULL, 8, GASPI_GROUP_ALL, B, 0), null);
  BOTH(segment_num, (NULL), null);
  BOTH(segment_list, (0, NULL), null);
  BOTH(segment_ptr, (0, NULL), null);
  BOTH(segment_max, (NULL), null);
  BOTH(segment_avail_local, (NULL), null);
  BOTH(segment_size, (0, 0, NULL), null);
  BOTH(write_list, (1, NULL, o, 0, s, o, z, 0, B), null);
  BOTH(write_list, (1, s, NULL, 0, s, o, z, 0, B), null);
  BOTH(write_list, (1, s, o, 0, NULL, o, z, 0, B), null);
  BOTH(write_list, (1, s, o, 0, s, NULL, z, 0, B), null);
  BOTH(write_list, (1, s, o, 0, s, o, NULL, 0, B), null);
  BOTH(read_list, (1, NULL, o, 0, s, o, z, 0, B), null);
  BOTH(read_list, (1, s, o, 0, s, o, NULL, 0, B), null);
  BOTH(write_list_notify, (1, s, NULL, 0, s, o, z, 0, 0, 1, 0, B), null);
  BOTH(read_list_notify, (1, s, o, 0, NULL, o, z, 0, 0, 0, B), null);
  BOTH(notify_waitsome, (0, 0, 1, NULL, T), null);
  BOTH(queue_create, (NULL, B), null);
  BOTH(queue_size, (0, NULL), null);
  BOTH(queue_num, (NULL), null);
  BOTH(queue_size_max, (NULL), null);
  BOTH(queue_max, (NULL), null);
  BOTH(passive_receive, (0, 0, NULL, 8, T), null);
  BOTH(atomic_fetch_add, (0, 0, 0, 1, NULL, B), null);
  BOTH(atomic_compare_swap, (0, 0, 0, 1, 2, NULL, B), null);
  BOTH(atomic_max, (NULL), null);
  BOTH(allreduce, (NULL, p, 1, GASPI_OP_SUM, GASPI_TYPE_INT, GASPI_GROUP_ALL, B), null);
  BOTH(allreduce, (p, NULL, 1, GASPI_OP_SUM, GASPI_TYPE_INT, GASPI_GROUP_ALL, B), null);
  BOTH(allreduce_user, (p, p, 1, 4, NULL, NULL, GASPI_GROUP_ALL, B), null);
  BOTH(transfer_size_min, (NULL), null);
  BOTH(transfer_size_max, (NULL), null);
  BOTH(notification_num, (NULL), null);
  BOTH(notifications_space_size, (NULL), null);
  BOTH(passive_transfer_size_min, (NULL), null);
  BOTH(passive_transfer_size_max, (NULL), null);
  BOTH(allreduce_buf_size, (NULL), null);
  BOTH(allreduce_elem_max, (NULL), null);
  BOTH(rw_list_elem_max, (NULL), null);
  BOTH(network_type, (NULL), null);
  BOTH(statistic_counter_get, (0, 0, NULL), null);
  BOTH(statistic_counter_get_f, (0, 0, NULL), null);
  BOTH(threads_get_tid, (NULL), null);
  BOTH(threads_get_total, (NULL), null);
  BOTH(threads_get_num_cores, (NULL), null);
  BOTH(threads_init, (NULL), null);
  BOTH(threads_register, (NULL), null);
  BOTH(threads_run, (NULL, NULL), null);
}

/* What has no pointer, and so no other way to fail for want of a job. */
static void need_job_without_pointers(void) {
  const gaspi_return_t none = GASPI_ERR_NOINIT;
  BOTH(proc_term, (B), none);
  BOTH(proc_kill, (0, B), none);
  BOTH(proc_ping, (0, B), none);
  BOTH(connect, (0, B), none);
  BOTH(disconnect, (0, B), none);
  BOTH(group_delete, (1), none);
  BOTH(group_add, (1, 0), none);
  BOTH(group_commit, (1, B), none);
  BOTH(segment_alloc, (0, 8, GASPI_ALLOC_DEFAULT), none);
  BOTH(segment_delete, (0), none);
  BOTH(segment_register, (0, 0, B), none);
  BOTH(segment_create, (0, 8, GASPI_GROUP_ALL, B, GASPI_ALLOC_DEFAULT), none);
  BOTH(write, (0, 0, 0, 0, 0, 8, 0, B), none);
  BOTH(read, (0, 0, 0, 0, 0, 8, 0, B), none);
  BOTH(write_notify, (0, 0, 0, 0, 0, 8, 0, 1, 0, B), none);
  BOTH(read_notify, (0, 0, 0, 0, 0, 8, 0, 0, B), none);
  BOTH(notify, (0, 0, 0, 1, 0, B), none);
  BOTH(notify_reset, (0, 0, NULL), none);
  BOTH(wait, (0, B), none);
  BOTH(queue_delete, (0), none);
  BOTH(queue_purge, (0, B), none);
  BOTH(passive_send, (0, 0, 0, 8, B), none);
  BOTH(passive_queue_purge, (B), none);
  BOTH(barrier, (GASPI_GROUP_ALL, B), none);
  BOTH(statistic_counter_reset, (0), none);
  BOTH(threads_init_user, (2), none);
  BOTH(threads_term, (), none);
  BOTH(threads_sync_all, (GASPI_GROUP_ALL, B), none);
}

/* What works at any time. */
static void need_nothing(int initialised) {
  gaspi_config_t config;
  gaspi_float version = 0, milliseconds = -1, megahertz = 0;
  gaspi_cycles_t ticks = 0;
  gaspi_number_t number = 9, level = 0;
  gaspi_string_t text = NULL, description = NULL;
  gaspi_statistic_argument_t argument;
  char detail[8];

  BOTH(config_get, (NULL), GASPI_ERR_NULLPTR);
  BOTH(version, (NULL), GASPI_ERR_NULLPTR);
  BOTH(time_get, (NULL), GASPI_ERR_NULLPTR);
  BOTH(time_ticks, (NULL), GASPI_ERR_NULLPTR);
  BOTH(print_error, (GASPI_ERROR, NULL), GASPI_ERR_NULLPTR);
  BOTH(initialized, (NULL), GASPI_ERR_NULLPTR);
  BOTH(cpu_frequency, (NULL), GASPI_ERR_NULLPTR);
  BOTH(numa_socket, (NULL), GASPI_ERR_NULLPTR);
  BOTH(statistic_counter_max, (NULL), GASPI_ERR_NULLPTR);
  BOTH(statistic_counter_info, (0, NULL, &text, &description, &level), GASPI_ERR_NULLPTR);
  BOTH(statistic_counter_info, (0, &argument, NULL, &description, &level), GASPI_ERR_NULLPTR);
  BOTH(statistic_counter_info, (0, &argument, &text, NULL, &level), GASPI_ERR_NULLPTR);
  BOTH(statistic_counter_info, (0, &argument, &text, &description, NULL), GASPI_ERR_NULLPTR);
  BOTH(statistic_counter_info, (9999, &argument, &text, &description, &level), GASPI_ERROR);
  BOTH(error_detail, (NULL, 8), GASPI_ERR_NULLPTR);
  BOTH(error_detail, (detail, 0), GASPI_ERR_INV_SIZE);
  BOTH(set_socket_affinity, (255), GASPI_ERROR);

  BOTH(config_get, (&config), GASPI_SUCCESS);
  BOTH(version, (&version), GASPI_SUCCESS);
  BOTH(time_get, (&milliseconds), GASPI_SUCCESS);
  BOTH(time_ticks, (&ticks), GASPI_SUCCESS);
  BOTH(cpu_frequency, (&megahertz), GASPI_SUCCESS);
  BOTH(initialized, (&number), GASPI_SUCCESS);
  TRUE(number == (gaspi_number_t)initialised);
  BOTH(statistic_counter_max, (&number), GASPI_SUCCESS);
  BOTH(statistic_counter_info, (0, &argument, &text, &description, &level), GASPI_SUCCESS);
  TRUE(strcmp(text, "BytesWritten") == 0);
  TRUE(number >= 18 && level >= 1);
  TRUE(version == 1.6f && milliseconds >= 0 && ticks > 0 && megahertz > 0);
  CHECK(gaspi_print_error(GASPI_QUEUE_FULL, &text), GASPI_SUCCESS);
  TRUE(strcmp(text, "Queue is full") == 0);
  free(text);
  TRUE(strcmp(gaspi_error_str((gaspi_return_t)77), "unknown") == 0);
  BOTH(pcontrol, (NULL), GASPI_SUCCESS);
  BOTH(statistic_verbosity_level, (1), GASPI_SUCCESS);
  gaspi_delay();
  gaspi_printf(NULL);
  gaspi_printf_to(0, NULL);
}

static void without_job(void) {
  need_job(GASPI_ERR_NOINIT);
  need_job_without_pointers();
  gaspi_threads_sync();
  gaspi_statistic_print_counters();
}

static void forked(void) {
  gaspi_config_t config;
  gaspi_number_t number = 9;
  pid_t child;
  fflush(stdout);
  child = fork();
  if (child == 0) {
    when = "in a forked child";
    need_job(GASPI_ERR_NOINIT);
    need_job_without_pointers();
    BOTH(proc_init, (B), GASPI_ERR_NOINIT);
    BOTH(config_get, (&config), GASPI_ERR_NOINIT);
    BOTH(initialized, (&number), GASPI_SUCCESS);
    TRUE(number == 0);
    gaspi_printf("never seen\n");
    fflush(stdout);
    _exit(failures == 0 ? 0 : 1);
  }
  {
    int status = 0;
    waitpid(child, &status, 0);
    TRUE(status == 0);
  }
}

static void numbers_that_do_not_exist(void) {
  int one = 1, sum = 0;
  gaspi_segment_id_t s[1] = {0};
  gaspi_offset_t o[1] = {0};
  gaspi_size_t z[1] = {0};
  BOTH(allreduce, (&one, &sum, 1, (gaspi_operation_t)3, GASPI_TYPE_INT, GASPI_GROUP_ALL, B),
       GASPI_ERROR);
  BOTH(allreduce, (&one, &sum, 1, GASPI_OP_SUM, (gaspi_datatype_t)6, GASPI_GROUP_ALL, B),
       GASPI_ERROR);
  BOTH(segment_alloc, (3, 8, (gaspi_alloc_t)2), GASPI_ERROR);
  BOTH(write_list, (0, s, o, 0, s, o, z, 0, B), GASPI_ERR_INV_NUM);
  BOTH(write_list, (0xffffffffu, s, o, 0, s, o, z, 0, B), GASPI_ERR_INV_NUM);
  BOTH(segment_list, (7, s), GASPI_ERROR);
  BOTH(threads_init_user, (0), GASPI_ERROR);
  CHECK(gaspi_allreduce(&one, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_INT, GASPI_GROUP_ALL, B),
        GASPI_SUCCESS);
  TRUE(sum == 1);
}

int main(void) {
  gaspi_config_t config;
  int round;

  when = "before init";
  without_job();
  need_nothing(0);
  gaspi_config_get(&config);
  config.queue_num = 17;
  BOTH(config_set, (config), GASPI_ERR_CONFIG);
  config.queue_num = 3;
  config.user_defined = &round;
  BOTH(config_set, (config), GASPI_SUCCESS);

  for (round = 0; round < 3; round++) {
    gaspi_number_t queues = 0;
    when = "in a job";
    CHECK(gaspi_proc_init(B), GASPI_SUCCESS);
    CHECK(gaspi_proc_init(B), GASPI_ERR_INITED);
    CHECK(gaspi_config_set(config), GASPI_ERR_INITED);
    CHECK(gaspi_queue_num(&queues), GASPI_SUCCESS);
    TRUE(queues == 3);
    memset(&config, 0, sizeof config);
    CHECK(gaspi_config_get(&config), GASPI_SUCCESS);
    TRUE(config.user_defined == &round);
    need_job(GASPI_ERR_NULLPTR);
    need_nothing(1);
    numbers_that_do_not_exist();
    forked();
    when = "after term";
    CHECK(gaspi_proc_term(B), GASPI_SUCCESS);
    without_job();
    need_nothing(0);
  }
  return failures == 0 ? 0 : 1;
}
