/*
 * Failures of a device, for `cargo xtask rxe`: GASPI_IBVERBS_LIB names tests/faulty-verbs, and
 * GASPI_TRANSPORT is verbs. Each failure is an error of those concerned, with its reason; other
 * queues and ranks lose nothing, and the next requests are carried again.
 *
 *     faults requests         posts, completions and receives that fail, objects that are refused
 *     faults init CALL        rank 1 cannot start, since the device refuses it that call
 *     faults poll             rank 1 cannot look at completions any more
 *     faults random SEED N    N of a million requests fail while all ranks exchange data
 *
 * `requests` and `poll` are for GASPI_IB_MESSAGES=tcp: what fails is what this program posts then.
 */
#include "../c/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>

enum {
  SEGMENT = 0,
  OTHER = 1,
  SIZE = 65536,
  OWN = 32768,
  QUEUE = 0,
  SECOND = 1,
  LIST = 8,
  ROUNDS = 40
};

static int (*refuse)(const char *, uint64_t, int);
static int (*fail_request)(uint64_t, uint32_t);
static int (*fail_receive)(uint64_t);
static void (*fail_some)(uint64_t, uint32_t);
static uint64_t (*played)(void);
static char *memory;

static void find(void *library, const char *name, void *function) {
  void *found = dlsym(library, name);
  CHECK(found != NULL);
  memcpy(function, &found, sizeof found);
}

/* The library between this one and the device, before gaspi_proc_init loads it. */
static void load(void) {
  const char *name = getenv("GASPI_IBVERBS_LIB");
  CHECK(name != NULL);
  void *library = dlopen(name, RTLD_NOW);
  CHECK(library != NULL);
  find(library, "faulty_verbs_refuse", &refuse);
  find(library, "faulty_verbs_fail", &fail_request);
  find(library, "faulty_verbs_fail_receive", &fail_receive);
  find(library, "faulty_verbs_random", &fail_some);
  find(library, "faulty_verbs_played", &played);
}

static const char *detail(void) {
  static char text[1024];
  CHECK_OK(gaspi_error_detail(text, sizeof text));
  return text;
}

static void purge(gaspi_queue_id_t queue) {
  CHECK_OK(gaspi_queue_purge(queue, LIMIT));
  CHECK(queue_fill(queue) == 0);
}

/* Every rank writes to every other one by two queues, and finds what the others wrote. */
static void exchange(void) {
  static uint64_t round;
  uint64_t *sent = (uint64_t *)(void *)memory;
  round++;
  for (gaspi_queue_id_t queue = QUEUE; queue <= SECOND; queue++) {
    sent[queue] = round * 1000 + my_rank;
    for (gaspi_rank_t peer = 0; peer < ranks; peer++) {
      const unsigned long place = 1024 + 64ul * my_rank + 8ul * queue;
      if (peer != my_rank) {
        CHECK_OK(gaspi_write_notify(SEGMENT, 8ul * queue, peer, SEGMENT, place, 8,
                                    (gaspi_notification_id_t)(2 * my_rank + queue), 1, queue,
                                    LIMIT));
      }
    }
  }
  for (gaspi_rank_t peer = 0; peer < ranks; peer++) {
    for (gaspi_queue_id_t queue = QUEUE; peer != my_rank && queue <= SECOND; queue++) {
      gaspi_notification_id_t id;
      gaspi_notification_t value;
      uint64_t came;
      CHECK_OK(gaspi_notify_waitsome(SEGMENT, (gaspi_notification_id_t)(2 * peer + queue), 1, &id,
                                     LIMIT));
      CHECK_OK(gaspi_notify_reset(SEGMENT, id, &value));
      memcpy(&came, memory + 1024 + 64ul * peer + 8ul * queue, sizeof came);
      CHECK(value == 1 && came == round * 1000 + peer);
    }
  }
  CHECK_OK(gaspi_wait(QUEUE, LIMIT));
  CHECK_OK(gaspi_wait(SECOND, LIMIT));
  sync_all();
}

/* The call has failed, for a reason that names rank 1; of the planned failures one was played. */
static void concerns_rank_1(gaspi_return_t got, uint64_t before, const char *what) {
  if (got != GASPI_ERROR || strstr(detail(), "rank 1") == NULL || played() != before + 1) {
    fprintf(stderr, "%s: %s, %d failures played: %s\n", what, gaspi_error_str(got),
            (int)(played() - before), detail());
    _exit(1);
  }
  printf("%s: %s\n", what, detail());
}

/* By another queue and to another rank all goes on, beside what fails. */
static void write_beside(void) {
  CHECK_OK(gaspi_write(SEGMENT, 0, 1, SEGMENT, OWN, 8, SECOND, LIMIT));
  CHECK_OK(gaspi_write(SEGMENT, 0, 2, SEGMENT, OWN, 8, SECOND, LIMIT));
}

static void lose_request_of_list(uint64_t nth) {
  gaspi_segment_id_t segments[LIST] = {SEGMENT};
  gaspi_offset_t local[LIST];
  gaspi_offset_t remote[LIST];
  gaspi_size_t sizes[LIST];
  char what[64];
  const uint64_t before = played();
  for (int at = 0; at < LIST; at++) {
    segments[at] = SEGMENT;
    local[at] = 4096ul + 512ul * (unsigned)at;
    remote[at] = OWN + 512ul * (unsigned)at;
    sizes[at] = 512;
  }
  (void)snprintf(what, sizeof what, "post of request %d of a list", (int)nth);
  write_beside();
  CHECK(refuse("post_send", nth, ENOMEM) == 0);
  gaspi_return_t got = gaspi_write_list_notify(LIST, segments, local, 1, segments, remote, sizes,
                                               SEGMENT, 60, 1, QUEUE, LIMIT);
  if (got == GASPI_SUCCESS) {
    got = gaspi_wait(QUEUE, LIMIT);
  }
  concerns_rank_1(got, before, what);
  purge(QUEUE);
  CHECK_OK(gaspi_wait(SECOND, LIMIT));
}

static void lose_completion(uint32_t status) {
  char what[64];
  const uint64_t before = played();
  (void)snprintf(what, sizeof what, "completion with status %d", (int)status);
  write_beside();
  CHECK(fail_request(1, status) == 0);
  CHECK_OK(gaspi_write(SEGMENT, 0, 1, SEGMENT, OWN, 8, QUEUE, LIMIT));
  concerns_rank_1(gaspi_wait(QUEUE, LIMIT), before, what);
  purge(QUEUE);
  CHECK_OK(gaspi_wait(SECOND, LIMIT));
}

/* A buffer of the receive queue of rank 1 is none: the message that meets it fails at both. */
static void lose_receive(void) {
  gaspi_return_t got = GASPI_SUCCESS;
  if (my_rank == 1) {
    CHECK(fail_receive(1) == 0);
  }
  sync_all();
  if (my_rank == 0) {
    /* Buffers are used in turn, and this one comes behind all that had been posted before. */
    for (int sent = 0; sent < 100000 && got == GASPI_SUCCESS; sent++) {
      /* A message with bytes: the value does not fit beside the request. */
      got = gaspi_notify(SEGMENT, 1, 61, 70000, QUEUE, LIMIT);
      if (got == GASPI_SUCCESS && sent % 16 == 15) {
        got = gaspi_wait(QUEUE, LIMIT);
      }
    }
    CHECK(got == GASPI_ERROR);
    printf("a receive that fails: %s\n", detail());
    CHECK(strstr(detail(), "rank 1") != NULL);
    purge(QUEUE);
  }
  sync_all();
  CHECK(my_rank != 1 || played() > 0);
}

/* The device of one rank has no more pairs: the queue shares that of another one. */
static void share_pair(uint64_t times, gaspi_rank_t of, gaspi_queue_id_t queue) {
  const uint64_t before = played();
  for (uint64_t more = 0; my_rank == of && more < times; more++) {
    CHECK(refuse("create_qp", 1 + more, ENOMEM) == 0);
  }
  sync_all();
  if (my_rank == 0) {
    CHECK_OK(gaspi_write(SEGMENT, 0, 1, SEGMENT, OWN, 8, queue, LIMIT));
    CHECK_OK(gaspi_wait(queue, LIMIT));
    write_beside();
    CHECK_OK(gaspi_wait(SECOND, LIMIT));
  }
  sync_all();
  CHECK(my_rank != of || played() == before + times);
}

/* The device of one rank refuses a call while a pair is made: an error of that queue. */
static void lose_pair(const char *call, uint64_t nth, uint64_t times, gaspi_rank_t of,
                      gaspi_queue_id_t queue) {
  const uint64_t before = played();
  for (uint64_t more = 0; my_rank == of && more < times; more++) {
    CHECK(refuse(call, nth + more, ENOMEM) == 0);
  }
  sync_all();
  if (my_rank == 0) {
    gaspi_return_t got = gaspi_write(SEGMENT, 0, 1, SEGMENT, OWN, 8, queue, LIMIT);
    if (got == GASPI_SUCCESS) {
      got = gaspi_wait(queue, LIMIT);
    }
    CHECK(got == GASPI_ERROR);
    printf("%s %d refused to rank %d: %s\n", call, (int)nth, (int)of, detail());
    CHECK(strstr(detail(), "rank 1") != NULL);
    purge(queue);
    write_beside();
    CHECK_OK(gaspi_wait(SECOND, LIMIT));
  }
  sync_all();
  CHECK(my_rank != of || played() == before + times);
}

/* The device of rank 1 does not take a segment: an error of all, and the next one is taken. */
static void lose_registration(void) {
  if (my_rank == 1) {
    CHECK(refuse("reg_mr", 1, ENOMEM) == 0);
  }
  sync_all();
  CHECK_RC(gaspi_segment_create(OTHER, SIZE, GASPI_GROUP_ALL, LIMIT, GASPI_MEM_INITIALIZED),
           GASPI_ERROR);
  if (my_rank != 2) {
    printf("rank %d: a registration that is refused: %s\n", (int)my_rank, detail());
  }
  CHECK(strstr(detail(), "ulimit -l") != NULL);
  sync_all();
  (void)segment_on_all(OTHER, SIZE);
  CHECK_OK(gaspi_segment_delete(OTHER));
  sync_all();
}

static void requests(void) {
  static const uint32_t STATUS[] = {1, 2, 4, 6, 8, 9, 10, 11, 12, 13, 21};
  gaspi_queue_id_t queue = SECOND;
  CHECK(ranks == 3);
  exchange();
  for (uint64_t nth = 1; nth <= LIST; nth += nth == 1 ? 1 : 3) {
    if (my_rank == 0) {
      lose_request_of_list(nth);
    }
    sync_all();
    exchange();
  }
  for (size_t at = 0; at < sizeof STATUS / sizeof STATUS[0]; at++) {
    if (my_rank == 0) {
      lose_completion(STATUS[at]);
    }
    sync_all();
    exchange();
  }
  lose_receive();
  exchange();
  /* Each by a queue that has no pair yet. */
  for (gaspi_rank_t of = 0; of < 2; of++) {
    /* The library asks again for less room in requests, and then for none. */
    share_pair(3, of, ++queue);
    exchange();
  }
  for (uint64_t nth = 1; nth <= 3; nth++) {
    lose_pair("modify_qp", nth, 1, nth % 2, ++queue);
    exchange();
  }
  lose_registration();
  exchange();
  /* A receive that cannot be posted is posted later; an event that was not asked for is missed. */
  CHECK(refuse("post_srq_recv", 1, ENOMEM) == 0);
  CHECK(refuse("req_notify_cq", 1, EIO) == 0);
  for (int round = 0; round < 5; round++) {
    exchange();
  }
  job_end();
}

static void init(const char *call) {
  const char *rank = getenv("GASPI_RANK");
  CHECK(rank != NULL);
  if (atoi(rank) == 1) {
    CHECK(refuse(call, 1, ENOMEM) == 0);
  }
  alarm(WATCHDOG_S);
  CHECK_ERR(gaspi_proc_init(LIMIT), atoi(rank) == 1 ? GASPI_ERR_ENV : GASPI_ERROR);
  printf("rank %s, %s is refused to rank 1: %s\n", rank, call, detail());
}

static void poll_fails(void) {
  gaspi_return_t got;
  exchange();
  if (my_rank == 1) {
    /* Only what is under way when it fails is lost, so the write comes first. */
    CHECK_OK(gaspi_write(SEGMENT, 0, 0, SEGMENT, OWN, 8, QUEUE, LIMIT));
    CHECK(refuse("poll_cq", 1, EIO) == 0);
    got = gaspi_wait(QUEUE, LIMIT);
    CHECK(got == GASPI_ERROR);
    printf("rank 1: %s\n", detail());
    CHECK(strstr(detail(), "this rank's device has failed") != NULL);
    purge(QUEUE);
    CHECK_OK(gaspi_wait(SECOND, LIMIT));
  }
  sync_all();
  exchange();
  job_end();
}

/* What failed is written again until it has come: nothing is lost in silence. */
static void some(uint64_t seed, uint32_t of_a_million) {
  unsigned long errors = 0;
  uint64_t *sent = (uint64_t *)(void *)memory;
  const gaspi_rank_t next = rank_after(1);
  exchange();
  fail_some(seed + my_rank, of_a_million);
  for (uint64_t round = 1; round <= ROUNDS; round++) {
    gaspi_return_t got;
    uint64_t came;
    *sent = round;
    do {
      got = GASPI_SUCCESS;
      for (unsigned at = 0; got == GASPI_SUCCESS && at < LIST; at++) {
        got = gaspi_write(SEGMENT, 0, next, SEGMENT, OWN + 8ul * at, 8, QUEUE, LIMIT);
      }
      if (got == GASPI_SUCCESS) {
        got = gaspi_wait(QUEUE, LIMIT);
      }
      if (got != GASPI_SUCCESS) {
        errors++;
        CHECK(got == GASPI_ERROR && detail()[0] != '\0');
        purge(QUEUE);
      }
    } while (got != GASPI_SUCCESS);
    sync_all();
    for (unsigned at = 0; at < LIST; at++) {
      memcpy(&came, memory + OWN + 8ul * at, sizeof came);
      if (came != round && came != round + 1) {
        fprintf(stderr, "rank %d: place %u has %lu in round %lu\n", (int)my_rank, at,
                (unsigned long)came, (unsigned long)round);
        _exit(1);
      }
    }
  }
  fail_some(0, 0);
  printf("rank %d: %lu errors by %lu failures\n", (int)my_rank, errors, (unsigned long)played());
  sync_all();
  exchange();
  job_end();
}

int main(int argc, char **argv) {
  CHECK(argc >= 2);
  load();
  if (strcmp(argv[1], "init") == 0 && argc == 3) {
    init(argv[2]);
    return 0;
  }
  job_start();
  memory = segment_on_all(SEGMENT, SIZE);
  if (strcmp(argv[1], "requests") == 0) {
    requests();
  } else if (strcmp(argv[1], "poll") == 0) {
    poll_fails();
  } else if (strcmp(argv[1], "random") == 0 && argc == 4) {
    some(strtoull(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10));
  } else {
    CHECK(!"a known mode");
  }
  return 0;
}
