/*
 * many.c: a rank of a job of many ranks on one host. tests/tests/scale.rs says what is asked of it.
 *
 * many steps                       calls one procedure after another, and tells what that cost
 * many death VICTIM                VICTIM is killed from outside, and all others learn it
 * many pass STEP HOW VICTIM US     joins, commits a group, creates a segment in it, and leaves.
 *                                  VICTIM kills itself `before` STEP, or US microseconds after it
 *                                  has begun it (`in`); with STEP none it does not
 */
#define _GNU_SOURCE

#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

enum {
  SEGMENT = 0,
  SEGMENT_BYTES = 64 << 10,
  MESSAGE = 64,
  /* Peers that a rank writes to, at these distances and half way around. */
  PEERS = 4,
  COLLECTIVES = 6
};

static uint64_t now_us(void) {
  struct timespec now;

  CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* User and system time of this process, in microseconds. */
static int64_t cpu_us(void) {
  struct rusage usage;

  CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return ((int64_t)usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
         usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

/* What a process has of the kernel. */
typedef struct {
  long descriptors;
  long mappings;
  long private_kib;
} holding_t;

static long lines_of(const char *path) {
  FILE *file = fopen(path, "r");
  long lines = 0;

  CHECK(file != NULL);
  for (int byte = fgetc(file); byte != EOF; byte = fgetc(file)) {
    lines += byte == '\n';
  }
  fclose(file);
  return lines;
}

static long private_kib(void) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[256];
  long kib = -1;

  CHECK(file != NULL);
  while (kib < 0 && fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "RssAnon: %ld", &kib) != 1) {
      kib = -1;
    }
  }
  fclose(file);
  CHECK(kib > 0);
  return kib;
}

static holding_t holding(void) {
  holding_t held = {0, lines_of("/proc/self/maps"), private_kib()};
  DIR *directory = opendir("/proc/self/fd");

  CHECK(directory != NULL);
  for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
    held.descriptors += entry->d_name[0] != '.';
  }
  closedir(directory);
  held.descriptors -= 1; /* that of the directory */
  return held;
}

/* The peers of a rank; with few ranks one may come twice. */
static gaspi_rank_t peer(unsigned number, int after) {
  const unsigned distances[PEERS] = {1, 2, 7, ranks / 2u};

  return after ? rank_after(distances[number]) : rank_before(distances[number]);
}

static unsigned char pattern(gaspi_rank_t source, unsigned number, unsigned byte) {
  return (unsigned char)(source * 31u + number * 7u + byte);
}

/* Each rank writes to its peers and notifies them, and looks at what has come. */
static void exchange(void) {
  unsigned char *segment = (unsigned char *)segment_at(SEGMENT);

  for (unsigned number = 0; number < PEERS; number++) {
    const gaspi_offset_t out = number * MESSAGE, in = (PEERS + number) * MESSAGE;

    for (unsigned byte = 0; byte < MESSAGE; byte++) {
      segment[out + byte] = pattern(my_rank, number, byte);
    }
    CHECK_OK(gaspi_write_notify(SEGMENT, out, peer(number, 1), SEGMENT, in, MESSAGE, number,
                                my_rank + 1u, 0, LIMIT));
  }
  CHECK_OK(gaspi_wait(0, LIMIT));
  for (unsigned number = 0; number < PEERS; number++) {
    const gaspi_rank_t source = peer(number, 0);

    CHECK(take(SEGMENT, number) == source + 1u);
    for (unsigned byte = 0; byte < MESSAGE; byte++) {
      CHECK(segment[(PEERS + number) * MESSAGE + byte] == pattern(source, number, byte));
    }
  }
}

static double expected_sum(void) { return ranks * (ranks - 1.0) / 2; }

static void allreduce(void) {
  double own = my_rank, sum = -1;

  CHECK_OK(gaspi_allreduce(&own, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_DOUBLE, GASPI_GROUP_ALL, LIMIT));
  CHECK(sum == expected_sum());
}

static void coll_allreduce(int round) {
  double own[2] = {my_rank, round}, sum[2] = {-1, -1};

  CHECK_OK(gaspi_coll_allreduce(own, sum, 2, GASPI_COLL_TYPE_F64, GASPI_COLL_OP_SUM,
                                GASPI_GROUP_ALL, NULL, LIMIT));
  CHECK(sum[0] == expected_sum());
  CHECK(sum[1] == (double)round * ranks);
}

/* CPU time is told of the calls alone, without what looks at this process. */
static void steps(void) {
  const holding_t before = holding();
  const int64_t begin = cpu_us();
  int64_t looked = 0, standard, all;
  holding_t started, ended;

  job_start();
  /* Between two barriers no rank begins what comes next. */
  sync_all();
  looked -= cpu_us();
  started = holding();
  looked += cpu_us();
  sync_all();
  (void)segment_on_all(SEGMENT, SEGMENT_BYTES);
  allreduce();
  standard = cpu_us() - begin - looked;
  exchange();
  sync_all();
  for (int round = 0; round < COLLECTIVES; round++) {
    coll_allreduce(round);
  }
  sync_all();
  looked -= cpu_us();
  ended = holding();
  looked += cpu_us();
  sync_all();
  all = cpu_us() - begin - looked;
  looked = cpu_us();
  CHECK_OK(gaspi_proc_term(LIMIT));
  looked = cpu_us() - looked;
  printf("figures rank=%d standard_us=%lld all_us=%lld", (int)my_rank,
         (long long)(standard + looked), (long long)(all + looked));
  printf(" descriptors=%ld descriptors_later=%ld descriptors_in_all=%ld",
         started.descriptors - before.descriptors, ended.descriptors - before.descriptors,
         started.descriptors);
  printf(" mappings=%ld mappings_later=%ld", started.mappings - before.mappings,
         ended.mappings - before.mappings);
  printf(" private_kib=%ld\n", started.private_kib - before.private_kib);
}

/* Demands that one rank is corrupt, and no other. */
static void expect_corrupt(const gaspi_state_t *states, gaspi_rank_t victim) {
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK((states[rank] != GASPI_STATE_HEALTHY) == (rank == victim));
  }
}

/* Of the others each second one waits in a barrier, and the rest look at the state vector only. All
 * go on in a group of their own. */
static void death(gaspi_rank_t victim) {
  static gaspi_state_t states[1 << 16];
  const struct timespec interval = {0, 5000000};
  gaspi_group_t survivors;
  int own = 1, sum = 0;
  int64_t begin;

  job_start();
  sync_all();
  begin = cpu_us();
  printf("ready %d\n", (int)my_rank);
  fflush(stdout);
  while (my_rank == victim) {
    pause();
  }
  if (my_rank % 2 == 0) {
    CHECK_ERR(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK), GASPI_ERROR);
    CHECK_OK(gaspi_state_vec_get(states));
  }
  while (states[victim] == GASPI_STATE_HEALTHY) {
    nanosleep(&interval, NULL);
    CHECK_OK(gaspi_state_vec_get(states));
  }
  printf("knows %d at %llu\n", (int)my_rank, (unsigned long long)now_us());
  fflush(stdout);
  expect_corrupt(states, victim);
  CHECK_ERR(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK), GASPI_ERROR);
  CHECK_OK(gaspi_group_create(&survivors));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    if (rank != victim) {
      CHECK_OK(gaspi_group_add(survivors, rank));
    }
  }
  CHECK_OK(gaspi_group_commit(survivors, LIMIT));
  CHECK_OK(gaspi_allreduce(&own, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_INT, survivors, LIMIT));
  CHECK(sum == ranks - 1);
  CHECK_OK(gaspi_proc_term(LIMIT));
  printf("survived %d spent_us=%lld\n", (int)my_rank, (long long)(cpu_us() - begin));
}

/* How a rank is to die while all pass. */
static struct {
  const char *step;
  int in_the_middle;
  long delay_us;
} plan = {"none", 0, 0};

static void die(int signal) {
  (void)signal;
  raise(SIGKILL);
}

/* Comes to a step, and dies there if that is the plan. Tells when that is. */
static void come_to(const char *step) {
  const long delay_us = plan.in_the_middle ? plan.delay_us : 0;
  const struct itimerval timer = {{0, 0}, {0, delay_us}};

  if (strcmp(step, plan.step) != 0) {
    return;
  }
  printf("dies at %llu\n", (unsigned long long)(now_us() + (uint64_t)delay_us));
  fflush(stdout);
  if (delay_us == 0) {
    die(SIGKILL);
  }
  CHECK(signal(SIGALRM, die) != SIG_ERR);
  CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* What has failed, or NULL. A rank that has joined leaves, whatever came between. */
static const char *pass_through(char *reason, size_t size) {
  const char *failed = NULL;
  gaspi_group_t group;

#define TRY(call)                                        \
  do {                                                   \
    if (failed == NULL && (call) != GASPI_SUCCESS) {     \
      failed = #call;                                    \
      CHECK_OK(gaspi_error_detail(reason, size));        \
    }                                                    \
  } while (0)

  come_to("init");
  TRY(gaspi_proc_init(GASPI_BLOCK));
  if (failed != NULL) {
    return failed;
  }
  CHECK_OK(gaspi_proc_num(&ranks));
  CHECK_OK(gaspi_group_create(&group));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_group_add(group, rank));
  }
  come_to("commit");
  TRY(gaspi_group_commit(group, GASPI_BLOCK));
  come_to("create");
  TRY(gaspi_segment_create(SEGMENT, SEGMENT_BYTES, group, GASPI_BLOCK, GASPI_MEM_INITIALIZED));
  come_to("leave");
  CHECK_OK(gaspi_proc_term(LIMIT));
#undef TRY
  return failed;
}

static void pass(void) {
  char reason[1024] = "";
  const char *failed = pass_through(reason, sizeof reason);

  if (failed == NULL) {
    printf("passed %d at %llu\n", (int)my_rank, (unsigned long long)now_us());
  } else {
    printf("told %d at %llu: %s: %s\n", (int)my_rank, (unsigned long long)now_us(), failed,
           reason);
  }
}

int main(int argc, char **argv) {
  const char *scenario = argc > 1 ? argv[1] : "";

  if (argc == 2 && strcmp(scenario, "steps") == 0) {
    steps();
  } else if (argc == 3 && strcmp(scenario, "death") == 0) {
    death((gaspi_rank_t)atoi(argv[2]));
  } else if (argc == 6 && strcmp(scenario, "pass") == 0) {
    const char *name = getenv("GASPI_RANK");

    my_rank = (gaspi_rank_t)atoi(name == NULL ? "-1" : name);
    if (my_rank == (gaspi_rank_t)atoi(argv[4])) {
      plan.step = argv[2];
      plan.in_the_middle = strcmp(argv[3], "in") == 0;
      plan.delay_us = atol(argv[5]);
    }
    pass();
  } else {
    fprintf(stderr, "usage: many steps|death VICTIM|pass STEP HOW VICTIM US\n");
    return 2;
  }
  return 0;
}
