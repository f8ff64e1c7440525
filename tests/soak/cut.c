/*
 * cut.c: rank VICTIM shuts down one of its TCP connections, and what takes its place. Calls under
 * way may fail; the state vector then shows an end of that connection. Nobody is dead: ranks tell
 * each other to stop, connect again and go on together.
 */
#include "soak.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

/* A connection by the ports of both ends, which all ranks have on one host. */
typedef struct {
  uint32_t here, there;
} ports_t;

/* How often the victim cuts what connects it with the same rank, as long as nobody notices. */
enum { CUTS = 12 };

enum { CONNECTIONS_MAX = PORTS_BYTES / sizeof(ports_t) - 1 };

/* Microseconds after the last cut when all stop, whether they noticed or not. */
#define QUIET_US ((uint64_t)500000)

/* The other end of the cut, plus 1; 0 before it. */
static atomic_uint far_end;
static atomic_ullong cut_at_us;
static atomic_int is_over;
/* What is cut next. */
static int descriptor = -1;

static unsigned port_of(const struct sockaddr_storage *address) {
  return ntohs(address->ss_family == AF_INET6
                   ? ((const struct sockaddr_in6 *)(const void *)address)->sin6_port
                   : ((const struct sockaddr_in *)(const void *)address)->sin_port);
}

/* The ports of a descriptor that is a TCP connection. */
static int is_connection(int number, ports_t *ports) {
  struct sockaddr_storage here, there;
  socklen_t size = sizeof(int), here_size = sizeof here, there_size = sizeof there;
  int type = 0, domain = 0;

  if (getsockopt(number, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM ||
      getsockopt(number, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 ||
      (domain != AF_INET && domain != AF_INET6) ||
      getpeername(number, (struct sockaddr *)&there, &there_size) != 0 ||
      getsockname(number, (struct sockaddr *)&here, &here_size) != 0) {
    return 0;
  }
  ports->here = port_of(&here);
  ports->there = port_of(&there);
  return 1;
}

static ports_t *ports_of(gaspi_rank_t rank) {
  return (ports_t *)(void *)(segment + PORTS + PORTS_BYTES * (1 + (unsigned)rank));
}

/* All ranks learn whose connection is whose: the first entry says how many follow. */
static void share_ports(worker_t *me) {
  ports_t *own = (ports_t *)(void *)(segment + PORTS);
  unsigned count = 0;

  for (int number = 0; number < 1024 && count < CONNECTIONS_MAX; number++) {
    count += (unsigned)is_connection(number, &own[1 + count]);
  }
  own[0].here = count;
  MUST(me, gaspi_barrier(GASPI_GROUP_ALL, GUARD));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    MUST(me, gaspi_read(SEGMENT, PORTS + PORTS_BYTES * (1 + (gaspi_offset_t)rank), rank, SEGMENT,
                        PORTS, PORTS_BYTES, CONTROL, GUARD));
  }
  MUST(me, gaspi_wait(CONTROL, GUARD));
}

/* The other end of a connection plus 1; 0 if no rank has it. */
static unsigned end_of(const ports_t *ports) {
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    const ports_t *theirs = ports_of(rank);

    for (unsigned number = 1; number <= theirs[0].here; number++) {
      if (rank != my_rank && theirs[number].here == ports->there &&
          theirs[number].there == ports->here) {
        return 1u + rank;
      }
    }
  }
  return 0;
}

/* Draws a connection with a rank that is known, or one that is new. */
static unsigned choose(dice_t *dice, int known) {
  unsigned found = 0, far = 0;

  for (int number = 0; number < 1024; number++) {
    ports_t ports;

    if (is_connection(number, &ports) && (end_of(&ports) != 0) == known &&
        draw(dice, ++found) == 0) {
      descriptor = number;
      far = known ? end_of(&ports) : 1;
    }
  }
  return far;
}

/* Of the victim: tells all which connection it will be, and cuts it at a random moment. Then it
 * cuts what takes its place, as long as nobody notices. There are no other new connections. */
static void *cutter(void *worker) {
  worker_t *me = worker;
  dice_t dice = dice_of(901);
  const unsigned far = choose(&dice, 1);
  ports_t ports;
  int cuts = 0;

  if (far == 0) {
    give_up(me, "there is no connection to cut");
  }
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    if (rank != my_rank) {
      MUST(me, gaspi_notify(SEGMENT, rank, CUT, far, CONTROL, GUARD));
    }
  }
  MUST(me, gaspi_wait(CONTROL, GUARD));
  atomic_store(&far_end, far);
  pause_us(draw(&dice, 80000));
  do {
    if (is_connection(descriptor, &ports) && shutdown(descriptor, SHUT_RDWR) == 0) {
      cuts++;
      atomic_store(&cut_at_us, now_us());
    } else if (cuts == 0) {
      give_up(me, "the connection to cut is gone");
    }
    pause_us(draw(&dice, 80000));
    descriptor = -1;
    (void)choose(&dice, 0);
  } while (cuts < CUTS && !atomic_load(&is_over));
  printf("rank %d cut %d connections with rank %u\n", (int)my_rank, cuts, far - 1);
  return NULL;
}

/* The rank at the other end, as soon as that is known. */
static unsigned other_end(void) {
  gaspi_notification_t value = 0;

  if (atomic_load(&far_end) == 0 && gaspi_notify_reset(SEGMENT, CUT, &value) == GASPI_SUCCESS &&
      value != 0) {
    atomic_store(&far_end, value);
  }
  return atomic_load(&far_end);
}

static void nobody_is_dead(worker_t *me) {
  if (is_failure(me->code) && strstr(me->detail, "has died") != NULL) {
    complain(me, "somebody is called dead");
  }
}

/* The first error comes of the cut, and the state vector shows an end of it. */
static void expect_cut(worker_t *me) {
  const int is_collective = strstr(atomic_load(&me->call), "barrier") != NULL ||
                            strstr(atomic_load(&me->call), "allreduce") != NULL;
  const unsigned far = other_end();
  int corrupt = 0;

  report(me, "first error");
  nobody_is_dead(me);
  if (far == 0) {
    complain(me, "an error although nothing is cut");
    return;
  }
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    const int is_end = rank != my_rank && (rank == victim || rank + 1u == far);

    if (me->states[rank] == GASPI_STATE_HEALTHY) {
      continue;
    }
    corrupt++;
    if (!is_end && !(is_collective && names_rank(me->detail, rank))) {
      complain(me, "rank %d is CORRUPT; the cut was between ranks %d and %u", (int)rank,
               (int)victim, far - 1);
    }
  }
  if (corrupt == 0) {
    complain(me, "an error, and nobody is CORRUPT; the cut was between ranks %d and %u",
             (int)victim, far - 1);
  }
}

/* Connects to a rank until its state is HEALTHY. */
static void connect_again(worker_t *me, gaspi_rank_t rank) {
  const uint64_t began = now_us();
  gaspi_state_t states[RANKS_MAX];
  int tries = 0;

  for (;;) {
    MUST(me, gaspi_state_vec_get(states));
    if (states[rank] == GASPI_STATE_HEALTHY) {
      break;
    }
    note(me, "again with rank %d, try %d", (int)rank, ++tries);
    if (CALL(me, gaspi_connect(rank, 1000)) == GASPI_SUCCESS) {
      MUST(me, gaspi_state_vec_get(states));
      if (states[rank] != GASPI_STATE_HEALTHY) {
        complain(me, "rank %d is CORRUPT after gaspi_connect", (int)rank);
      }
    }
    nobody_is_dead(me);
    if (now_us() - began > HANG_US) {
      give_up(me, "rank %d is CORRUPT after 10 s of gaspi_connect", (int)rank);
    }
  }
  if (tries > 1) {
    printf("rank %d connected to rank %d with %d tries\n", (int)my_rank, (int)rank, tries);
  }
}

/* Has all other ranks leave the mix. */
static void tell_stop(worker_t *me) {
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    const uint64_t began = now_us();

    while (rank != my_rank) {
      note(me, "the stop to rank %d", (int)rank);
      (void)CALL(me, gaspi_notify(SEGMENT, rank, STOP, 1, CONTROL, GUARD));
      nobody_is_dead(me);
      if (me->code == GASPI_SUCCESS && CALL(me, gaspi_wait(CONTROL, GUARD)) == GASPI_SUCCESS) {
        break;
      }
      nobody_is_dead(me);
      if (now_us() - began > HANG_US) {
        give_up(me, "rank %d cannot be told in 10 s", (int)rank);
      }
      recover(me, CONTROL);
      connect_again(me, rank);
    }
  }
}

/* Everybody answers, and counts as healthy. */
static void reach_all(worker_t *me) {
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    const uint64_t began = now_us();

    if (rank == my_rank) {
      continue;
    }
    for (;;) {
      connect_again(me, rank);
      note(me, "rank %d", (int)rank);
      if (CALL(me, gaspi_proc_ping(rank, 2000)) == GASPI_SUCCESS) {
        break;
      }
      nobody_is_dead(me);
      if (now_us() - began > HANG_US) {
        give_up(me, "rank %d does not answer for 10 s", (int)rank);
      }
    }
  }
}

static outcome_t until_stop(worker_t *me) {
  for (;;) {
    const outcome_t outcome = mix(me);
    const unsigned long long at = atomic_load(&cut_at_us);

    if (outcome != FINE) {
      return outcome;
    }
    if (at != 0 && now_us() - at > QUIET_US) {
      return STATE_SEEN;
    }
  }
}

static void meet_again(worker_t *me, gaspi_group_t next, outcome_t outcome) {
  gaspi_state_t states[RANKS_MAX];

  recover(me, me->queue);
  recover(me, CONTROL);
  if (me->sending) {
    MUST(me, gaspi_passive_queue_purge(GUARD));
  }
  reach_all(me);
  /* A collective that was given up in the middle stays active. */
  if (!me->active) {
    MUST(me, gaspi_group_delete(me->group));
  }
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    MUST(me, gaspi_group_add(next, rank));
  }
  note(me, "group %d of all", (int)next);
  MUST(me, gaspi_group_commit(next, GUARD));
  /* The victim has joined its cutter by now, which may have cut once more since the first time. */
  reach_all(me);
  go_on(me, next);
  MUST(me, gaspi_state_vec_get(states));
  memcpy(me->states, states, sizeof states);
  expect_states(me, RANKS_MAX);
  MUST(me, gaspi_proc_term(GUARD));
  if (complaints() == 0) {
    printf("finished %d, %s\n", (int)my_rank, outcome == TOLD ? "told" : "by itself");
  }
}

void cut(void) {
  worker_t *me = &workers[0];
  gaspi_group_t next = 0;
  pthread_t thread;
  outcome_t outcome;

  MUST(me, gaspi_group_create(&me->group));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    MUST(me, gaspi_group_add(me->group, rank));
  }
  MUST(me, gaspi_group_commit(me->group, GUARD));
  MUST(me, gaspi_group_create(&next));
  /* Those that are made on first use would come later, and be taken for what replaces a cut one. */
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    MUST(me, gaspi_connect(rank, GUARD));
  }
  MUST(me, gaspi_barrier(GASPI_GROUP_ALL, GUARD));
  share_ports(me);
  MUST(me, gaspi_barrier(GASPI_GROUP_ALL, GUARD));
  printf("ready %d\n", (int)my_rank);
  if (my_rank == victim && pthread_create(&thread, NULL, cutter, &workers[1]) != 0) {
    give_up(me, "there is no thread");
  }
  outcome = until_stop(me);
  if (my_rank == victim) {
    atomic_store(&is_over, 1);
    pthread_join(thread, NULL);
  }
  if (outcome == ERROR_SEEN) {
    expect_cut(me);
  }
  if (outcome != TOLD) {
    tell_stop(me);
  }
  meet_again(me, next, outcome);
}
