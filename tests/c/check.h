/*
 * check.h: what every test program here shares: a check that says which rank failed, where and
 * why, and ends the process with status 1; and start and end of a job.
 *
 * A program ends with status 0 only if all its checks held. Waiting calls get LIMIT, not
 * GASPI_BLOCK, so that a hang becomes an error with a place.
 */
#ifndef CHECK_H
#define CHECK_H

#include <GASPI.h>
#include <GASPI_Ext.h>
#include <gaspi_collectives.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Milliseconds after which something that has to happen counts as hanging. */
#define LIMIT ((gaspi_timeout_t)60000)

/* Seconds after which a program that does not even keep its own limits is ended. */
#define WATCHDOG_S 300

static gaspi_rank_t my_rank;
static gaspi_rank_t ranks;

static inline void check_failed(const char *file, int line, const char *what, int show_codes,
                                int got, int expected) {
  char detail[1024] = "";
  (void)gaspi_error_detail(detail, sizeof detail);
  fflush(stdout);
  if (show_codes) {
    fprintf(stderr, "%s:%d: rank %d of %d: %s: got %d (%s), expected %d (%s); last error: %s\n",
            file, line, (int)my_rank, (int)ranks, what, got, gaspi_error_str((gaspi_return_t)got),
            expected, gaspi_error_str((gaspi_return_t)expected), detail);
  } else {
    fprintf(stderr, "%s:%d: rank %d of %d: not true: %s; last error: %s\n", file, line,
            (int)my_rank, (int)ranks, what, detail);
  }
  fflush(stderr);
  _exit(1);
}

/* The condition holds. */
#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) {                                            \
      check_failed(__FILE__, __LINE__, #condition, 0, 0, 0);       \
    }                                                              \
  } while (0)

/* The call returns that code. */
#define CHECK_RC(call, code)                                             \
  do {                                                                   \
    const int check_got = (int)(call);                                   \
    const int check_expected = (int)(code);                              \
    if (check_got != check_expected) {                                   \
      check_failed(__FILE__, __LINE__, #call, 1, check_got, check_expected); \
    }                                                                    \
  } while (0)

/* The call succeeds. */
#define CHECK_OK(call) CHECK_RC(call, GASPI_SUCCESS)

/* The call fails with that code, and the library can say why. */
#define CHECK_ERR(call, code)                                              \
  do {                                                                     \
    char check_text[256] = "";                                             \
    CHECK_RC(call, code);                                                  \
    CHECK_OK(gaspi_error_detail(check_text, sizeof check_text));           \
    if (check_text[0] == '\0') {                                           \
      check_failed(__FILE__, __LINE__, "error detail of " #call, 0, 0, 0); \
    }                                                                      \
  } while (0)

/* Joins the job, with whatever configuration is set. */
static inline void job_start(void) {
  alarm(WATCHDOG_S);
  CHECK_OK(gaspi_proc_init(LIMIT));
  CHECK_OK(gaspi_proc_rank(&my_rank));
  CHECK_OK(gaspi_proc_num(&ranks));
  CHECK(ranks >= 1);
  CHECK(my_rank < ranks);
}

/* Barrier of all ranks. */
static inline void sync_all(void) { CHECK_OK(gaspi_barrier(GASPI_GROUP_ALL, LIMIT)); }

/* Leaves the job after all ranks got here. */
static inline void job_end(void) {
  sync_all();
  CHECK_OK(gaspi_proc_term(LIMIT));
}

/* The rank `distance` further, in a ring. */
static inline gaspi_rank_t rank_after(unsigned distance) {
  return (gaspi_rank_t)((my_rank + distance) % ranks);
}

/* The rank `distance` before, in a ring. */
static inline gaspi_rank_t rank_before(unsigned distance) {
  return (gaspi_rank_t)((my_rank + ranks - distance % ranks) % ranks);
}

/* Address of an own segment. */
static inline char *segment_at(gaspi_segment_id_t segment) {
  gaspi_pointer_t pointer = NULL;
  CHECK_OK(gaspi_segment_ptr(segment, &pointer));
  CHECK(pointer != NULL);
  return (char *)pointer;
}

/* A zeroed segment on all ranks. */
static inline char *segment_on_all(gaspi_segment_id_t segment, gaspi_size_t size) {
  CHECK_OK(gaspi_segment_create(segment, size, GASPI_GROUP_ALL, LIMIT, GASPI_MEM_INITIALIZED));
  return segment_at(segment);
}

/* Requests of a queue that were not waited for. */
static inline gaspi_number_t queue_fill(gaspi_queue_id_t queue) {
  gaspi_number_t size = 12345;
  CHECK_OK(gaspi_queue_size(queue, &size));
  return size;
}

/* Waits for a notification, takes it and returns its value. */
static inline gaspi_notification_t take(gaspi_segment_id_t segment, gaspi_notification_id_t id) {
  gaspi_notification_id_t first = 0xffffffffu;
  gaspi_notification_t value = 0;
  CHECK_OK(gaspi_notify_waitsome(segment, id, 1, &first, LIMIT));
  CHECK(first == id);
  CHECK_OK(gaspi_notify_reset(segment, id, &value));
  CHECK(value != 0);
  return value;
}

#endif /* CHECK_H */
