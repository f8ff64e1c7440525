/*
 * base.c: clocks, dice, the watched calls and complaints.
 */
#include "soak.h"

#include <pthread.h>
#include <stdarg.h>
#include <time.h>

scenario_t scenario;
uint64_t seed;
gaspi_rank_t my_rank, ranks, victim;
worker_t workers[WORKERS];
char *segment;

static atomic_int complained;
/* Calls after which the rank leaves without a word; 0: none. */
static atomic_ullong calls_left;

uint64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

void pause_us(uint64_t microseconds) {
  const struct timespec pause = {(time_t)(microseconds / 1000000),
                                 (long)(microseconds % 1000000) * 1000};
  nanosleep(&pause, NULL);
}

uint64_t draw(dice_t *dice, uint64_t limit) {
  uint64_t bits = dice->state += 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return (bits ^ (bits >> 31)) % limit;
}

dice_t dice_of(uint64_t number) {
  dice_t dice = {seed * 0x1000003 + number * 0x10001 + 77};
  return dice;
}

int complaints(void) { return atomic_load(&complained); }

/* "0 1", or "nobody". */
static void corrupt_ranks(const worker_t *me, char *text, size_t size) {
  size_t used = 0;

  snprintf(text, size, "nobody");
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    if (me->states[rank] != GASPI_STATE_HEALTHY && used < size) {
      used += (size_t)snprintf(text + used, size - used, used == 0 ? "%d" : " %d", (int)rank);
    }
  }
}

static void say(worker_t *me, const char *head, const char *format, va_list arguments) {
  char what[TEXT], corrupt[64];

  vsnprintf(what, sizeof what, format, arguments);
  corrupt_ranks(me, corrupt, sizeof corrupt);
  fprintf(stderr,
          "%s on rank %d of %d, thread %u, at %llu us: %s; the last call %s (%s) took %llu us and "
          "returned %d, corrupt after the last error: %s, last error: %s\n",
          head, (int)my_rank, (int)ranks, me->number, (unsigned long long)now_us(), what,
          atomic_load(&me->call), me->note, (unsigned long long)me->took_us, (int)me->code,
          corrupt, me->detail);
  fflush(stderr);
}

void complain(worker_t *me, const char *format, ...) {
  va_list arguments;

  if (atomic_fetch_add(&complained, 1) > 12) {
    return;
  }
  va_start(arguments, format);
  say(me, "FAILED", format, arguments);
  va_end(arguments);
}

void give_up(worker_t *me, const char *format, ...) {
  va_list arguments;

  va_start(arguments, format);
  say(me, "FAILED", format, arguments);
  va_end(arguments);
  fflush(stdout);
  _exit(1);
}

void report(worker_t *me, const char *what) {
  char corrupt[64];

  corrupt_ranks(me, corrupt, sizeof corrupt);
  printf("rank %d, thread %u: %s: %s (%s), corrupt: %s, %s\n", (int)my_rank, me->number, what,
         atomic_load(&me->call), me->note, corrupt, me->detail);
}

void note(worker_t *me, const char *format, ...) {
  va_list arguments;

  va_start(arguments, format);
  vsnprintf(me->note, sizeof me->note, format, arguments);
  va_end(arguments);
}

/* All are ready. A victim that leaves by itself does so once all others know: what it has just sent
 * may be lost with its device, that of a barrier too. */
void begin_together(worker_t *me) {
  gaspi_notification_id_t first;

  MUST(me, gaspi_barrier(GASPI_GROUP_ALL, GUARD));
  printf("ready %d\n", (int)my_rank);
  if (scenario != EXIT && scenario != FUSION_EXIT) {
    return;
  }
  if (my_rank != victim) {
    MUST(me, gaspi_notify(SEGMENT, victim, BEGUN + my_rank, 1, CONTROL, GUARD));
    /* The victim may be gone before it has acknowledged what it knows. */
    if (CALL(me, gaspi_wait(CONTROL, GUARD)) == GASPI_TIMEOUT) {
      complain(me, "the victim neither acknowledges nor dies");
    }
    return;
  }
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    if (rank != victim) {
      MUST(me, gaspi_notify_waitsome(SEGMENT, BEGUN + rank, 1, &first, GUARD));
    }
  }
}

void leave_after(uint64_t calls) { atomic_store(&calls_left, calls); }

/* From here on others have so long to know. */
_Noreturn void leave_now(void) {
  printf("leaves %d %llu\n", (int)my_rank, (unsigned long long)now_us());
  fflush(stdout);
  _exit(3);
}

int is_failure(gaspi_return_t code) {
  return code != GASPI_SUCCESS && code != GASPI_TIMEOUT && code != GASPI_QUEUE_FULL;
}

void begin(worker_t *me, const char *call) {
  if (atomic_load(&calls_left) != 0 && atomic_fetch_sub(&calls_left, 1) == 1) {
    leave_now();
  }
  atomic_store(&me->call, call);
  atomic_store(&me->began_us, now_us());
}

gaspi_return_t end(worker_t *me, gaspi_return_t code) {
  if (is_failure(code)) {
    /* Nothing may come between: the caller of a failed request asks for the state next. */
    if (gaspi_state_vec_get(me->states) != GASPI_SUCCESS) {
      memset(me->states, 0, sizeof me->states);
    }
    (void)gaspi_error_detail(me->detail, sizeof me->detail);
  }
  me->code = code;
  me->took_us = now_us() - atomic_load(&me->began_us);
  atomic_store(&me->began_us, 0);
  if (me->took_us > HANG_US) {
    complain(me, "a call took %llu us", (unsigned long long)me->took_us);
  }
  return code;
}

int names_rank(const char *text, gaspi_rank_t rank) {
  char name[16];
  const size_t length = (size_t)snprintf(name, sizeof name, "rank %d", (int)rank);

  for (const char *at = strstr(text, name); at != NULL; at = strstr(at + 1, name)) {
    if (at[length] < '0' || at[length] > '9') {
      return 1;
    }
  }
  return 0;
}

void expect_states(worker_t *me, gaspi_rank_t corrupt) {
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    const int is_corrupt = me->states[rank] != GASPI_STATE_HEALTHY;

    if (is_corrupt != (rank == corrupt)) {
      complain(me, "wrong state: rank %d is %s", (int)rank, is_corrupt ? "CORRUPT" : "HEALTHY");
    }
  }
}

/* Tells which call hangs; the harness takes the stacks. */
static void *watchdog(void *unused) {
  unsigned long long told[WORKERS] = {0};

  (void)unused;
  for (;;) {
    pause_us(500000);
    for (unsigned number = 0; number < WORKERS; number++) {
      worker_t *me = &workers[number];
      const unsigned long long began = atomic_load(&me->began_us);

      if (began != 0 && began != told[number] && now_us() - began > HANG_US) {
        told[number] = began;
        fprintf(stderr, "FAILED on rank %d of %d, thread %u: a call hangs: %s (%s)\n",
                (int)my_rank, (int)ranks, number, atomic_load(&me->call), me->note);
        fflush(stderr);
      }
    }
  }
  return NULL;
}

void watch(void) {
  pthread_t thread;

  if (pthread_create(&thread, NULL, watchdog, NULL) != 0 || pthread_detach(thread) != 0) {
    give_up(&workers[0], "there is no watchdog");
  }
}
