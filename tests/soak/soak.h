/*
 * soak.h: what the files of the soak test share: ranks call everything at random while one of them
 * suffers. main.c says which scenarios there are.
 *
 * Every call of the library goes through CALL, which takes its time and looks at the state vector
 * right after an error. A complaint lets the rank go on; it ends with status 1.
 */
#ifndef SOAK_H
#define SOAK_H

#define _GNU_SOURCE

#include <GASPI.h>
#include <GASPI_Ext.h>
#include <gaspi_collectives.h>

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS_MAX = 8, WORKERS = 3, TEXT = 1024 };

/* A call that takes longer hangs. */
#define HANG_US ((uint64_t)10000000)

/* Milliseconds for what has to succeed: less than HANG_US, so that a timeout has a place. */
#define GUARD ((gaspi_timeout_t)9000)

/* Microseconds within which a call that needs a dead rank fails once the death is known. */
#define AT_ONCE_US ((uint64_t)2000000)

/* The segment of all ranks, by offset. */
enum {
  SEGMENT = 0,
  ADDED = 0,     /* for gaspi_atomic_fetch_add */
  SWAPPED = 64,  /* for gaspi_atomic_compare_swap: 8 bytes per source */
  PORTS = 4096,  /* the TCP connections of this rank, and then those of all */
  PORTS_BYTES = 2048,
  FIXED = 64 << 10, /* a pattern that others read */
  FIXED_BYTES = 256 << 10,
  OUT = FIXED + FIXED_BYTES, /* source of writes */
  WRITE_MAX = 256 << 10,
  IN = OUT + WRITE_MAX, /* where reads go */
  PASSIVE_OUT = IN + FIXED_BYTES,
  PASSIVE_IN = PASSIVE_OUT + 4096,
  PASSIVE_MAX = 4096,
  INBOX = PASSIVE_IN + 4096, /* WRITE_MAX per source */
  BUFFERS = INBOX + RANKS_MAX * WRITE_MAX, /* of collectives: input and output of each worker */
  BUFFER_BYTES = 1 << 20,
  SEGMENT_BYTES = BUFFERS + 2 * WORKERS * BUFFER_BYTES
};

/* Notifications of that segment. */
enum {
  WRITTEN = 0 /* + source */,
  TAKEN = 16 /* + target */,
  CUT = 40,
  STOP = 41,
  BEGUN = 48 /* + source */
};

/* The queue for what is not part of the mix. */
enum { CONTROL = 7 };

typedef enum {
  DIE,
  EXIT,
  THREADS,
  STOPPED,
  CUTTING,
  BUSY,
  COME_AND_GO,
  GROUPS,
  FUSION,
  FUSION_EXIT,
  FUSION_STOP
} scenario_t;

/* How a piece of the mix ended. */
typedef enum { FINE, ERROR_SEEN, STATE_SEEN, TOLD } outcome_t;

/* A small generator (SplitMix64). */
typedef struct {
  uint64_t state;
} dice_t;

/* A thread that calls the library. */
typedef struct {
  unsigned number;
  gaspi_queue_id_t queue;
  gaspi_group_t group; /* of all ranks */
  dice_t own;          /* of this rank */
  dice_t common;       /* draws the same on all ranks */
  int pairs;           /* whether it does pairwise operations */
  int collectives;     /* whether it does collective operations */

  /* The call under way, for the watchdog. */
  const char *_Atomic call;
  atomic_ullong began_us;
  char note[128];
  /* The last call. */
  uint64_t took_us;
  gaspi_return_t code;
  gaspi_state_t states[RANKS_MAX];
  char detail[TEXT];

  uint64_t swapped[RANKS_MAX]; /* what this rank's place at each target holds */
  int swap_unsure[RANKS_MAX];
  uint64_t added[RANKS_MAX];
  uint32_t sent[RANKS_MAX], received[RANKS_MAX];
  int may_write[RANKS_MAX];
  int sending; /* a passive send timed out and goes on */
  gaspi_rank_t sending_to;
  gaspi_size_t sending_bytes;
  int active; /* a collective was given up in the middle */
  double *input, *output;
} worker_t;

extern scenario_t scenario;
extern uint64_t seed;
extern gaspi_rank_t my_rank, ranks, victim;
extern worker_t workers[WORKERS];
extern char *segment;

/* base.c */
uint64_t now_us(void);
void pause_us(uint64_t microseconds);
uint64_t draw(dice_t *dice, uint64_t limit);
dice_t dice_of(uint64_t number);
void begin(worker_t *me, const char *call);
gaspi_return_t end(worker_t *me, gaspi_return_t code);
int is_failure(gaspi_return_t code);
void complain(worker_t *me, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void give_up(worker_t *me, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void note(worker_t *me, const char *format, ...) __attribute__((format(printf, 2, 3)));
int names_rank(const char *text, gaspi_rank_t rank);
void expect_states(worker_t *me, gaspi_rank_t corrupt);
void report(worker_t *me, const char *what);
void watch(void);
void begin_together(worker_t *me);
void leave_after(uint64_t calls);
_Noreturn void leave_now(void);
int complaints(void);

/* mix.c */
void prepare_mix(void);
outcome_t look(worker_t *me);
outcome_t pairwise(worker_t *me);
outcome_t collective(worker_t *me, gaspi_timeout_t timeout);
outcome_t mix(worker_t *me);
void go_on(worker_t *me, gaspi_group_t group);
void recover(worker_t *me, gaspi_queue_id_t queue);

/* die.c, groups.c, stop.c, cut.c, busy.c: from ready to the end */
void die(void);
void groups(void);
void stop(const char *file);
void cut(void);
void busy(uint64_t seconds);

/* fusion.c */
void fuse(void);
void fuse_stopped(const char *file);

/* Calls the library and returns the code. */
#define CALL(me, call) (begin(me, #call), end(me, (call)))

/* Something that has to succeed before the rank can go on. */
#define MUST(me, call)                                    \
  do {                                                    \
    if (CALL(me, call) != GASPI_SUCCESS) {                \
      give_up(me, "%s is not done", #call);               \
    }                                                     \
  } while (0)

#endif /* SOAK_H */
