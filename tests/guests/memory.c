/*
 * Memory that devices read and write, for `cargo xtask rxe`: reserved huge pages, and `ulimit -l`.
 *
 *     memory huge             segments on reserved huge pages, made and bound, to their last byte
 *     memory limit            rank 1 may pin too little for gaspi_proc_init
 *     memory segment          rank 1 may pin the first of three segments, not the second
 *     memory fallback         the same, where data may go by TCP: the second goes that way
 */
#define _GNU_SOURCE

#include "counters.h"

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

enum { QUEUE = 0, SEGMENTS = 3, TIMES = 8 };
#define MIB (1ul << 20)
/* What a rank may pin beside its first segment: too little for the second one. */
#define ROOM (48 * MIB)

/* From now on this process, though it is root's, may pin no more than so many bytes. */
static void limit_pinned(unsigned long bytes) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2];
  const struct rlimit limit = {bytes, bytes};
  CHECK(syscall(SYS_capget, &header, data) == 0);
  data[CAP_IPC_LOCK / 32].effective &= ~(1u << (CAP_IPC_LOCK % 32));
  CHECK(syscall(SYS_capset, &header, data) == 0);
  CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}

/* A value of /proc/meminfo. */
static unsigned long meminfo(const char *name) {
  char line[256];
  unsigned long value = 0;
  int found = 0;
  FILE *file = fopen("/proc/meminfo", "r");
  CHECK(file != NULL);
  while (!found && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, name, strlen(name)) == 0) {
      value = strtoul(line + strlen(name), NULL, 10);
      found = 1;
    }
  }
  CHECK(fclose(file) == 0);
  CHECK(found);
  return value;
}

static const char *detail(void) {
  static char text[1024];
  CHECK_OK(gaspi_error_detail(text, sizeof text));
  return text;
}

/* Writes 8 bytes of a segment to a rank until they go by the carrier `counted`. By TCP they go, if
 * they may, until the pair of devices is up. */
static void until_by(gaspi_segment_id_t segment, gaspi_offset_t at, gaspi_rank_t peer,
                     const char *counted) {
  const time_t begin = time(NULL);
  uint64_t before;
  do {
    CHECK((unsigned long)(time(NULL) - begin) < LIMIT / 1000);
    before = count_of(counted);
    CHECK_OK(gaspi_write(segment, at, peer, segment, at, 8, QUEUE, LIMIT));
    CHECK_OK(gaspi_wait(QUEUE, LIMIT));
  } while (count_of(counted) == before);
}

/* Writes the last bytes of a segment to a rank, and reads them back, by the carrier `counted`. */
static void move_end(gaspi_segment_id_t segment, gaspi_size_t size, gaspi_rank_t peer,
                     const char *counted) {
  const gaspi_offset_t end = size - 8;
  char *memory = segment_at(segment);
  until_by(segment, 0, peer, counted);
  const uint64_t before = count_of(counted);
  for (uint64_t turn = 1; turn <= TIMES; turn++) {
    const uint64_t sent = 1000 * (turn + my_rank);
    uint64_t came;
    memcpy(memory + end - 8, &sent, sizeof sent);
    CHECK_OK(gaspi_write(segment, end - 8, peer, segment, end, sizeof sent, QUEUE, LIMIT));
    CHECK_OK(gaspi_wait(QUEUE, LIMIT));
    CHECK_OK(gaspi_read(segment, end - 16, peer, segment, end, sizeof sent, QUEUE, LIMIT));
    CHECK_OK(gaspi_wait(QUEUE, LIMIT));
    memcpy(&came, memory + end - 16, sizeof came);
    CHECK(came == sent);
  }
  CHECK(count_of(counted) - before == 8 * TIMES);
  sync_all();
}

static void huge(void) {
  const gaspi_size_t size = 3 * MIB + 24;
  const unsigned long total = meminfo("HugePages_Total:");
  const unsigned long before = meminfo("HugePages_Free:");
  const gaspi_rank_t peer = rank_after(1);
  CHECK(total > 0);
  sync_all();
  (void)segment_on_all(0, size);
  CHECK(meminfo("HugePages_Free:") < before);
  move_end(0, size, peer, "BytesWrittenVerbs");
  /* Memory of the program, whose last huge page is used in part. */
  void *mine = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  CHECK(mine != MAP_FAILED);
  CHECK_OK(gaspi_segment_use(1, mine, size, GASPI_GROUP_ALL, LIMIT, 0));
  move_end(1, size, peer, "BytesWrittenVerbs");
  CHECK_OK(gaspi_segment_delete(1));
  CHECK_OK(gaspi_segment_delete(0));
  sync_all();
  CHECK(munmap(mine, 4 * MIB) == 0);
  sync_all();
  if (my_rank == 0) {
    printf("%lu of %lu huge pages are free again\n", meminfo("HugePages_Free:"), total);
    CHECK(meminfo("HugePages_Free:") == total);
  }
  job_end();
}

static void refused_at_init(void) {
  const char *rank = getenv("GASPI_RANK");
  CHECK(rank != NULL);
  const int limited = atoi(rank) == 1;
  alarm(WATCHDOG_S);
  if (limited) {
    limit_pinned(64 * 1024);
  }
  CHECK_ERR(gaspi_proc_init(LIMIT), limited ? GASPI_ERR_ENV : GASPI_ERROR);
  printf("rank %s: %s\n", rank, detail());
  CHECK(strstr(detail(), limited ? "ulimit -l" : "rank 1") != NULL);
}

/* Rank 1 cannot pin the second of three segments. */
static void refused_segment(int may_go_by_tcp) {
  static const gaspi_size_t sizes[SEGMENTS] = {MIB, 2 * ROOM, MIB};
  const char *rank = getenv("GASPI_RANK");
  CHECK(rank != NULL);
  if (atoi(rank) == 1) {
    limit_pinned(ROOM);
  }
  job_start();
  CHECK(ranks == 2);
  const gaspi_rank_t peer = rank_after(1);
  for (gaspi_segment_id_t id = 0; id < SEGMENTS; id++) {
    const int is_refused = id == 1;
    if (is_refused && !may_go_by_tcp) {
      CHECK_ERR(gaspi_segment_create(id, sizes[id], GASPI_GROUP_ALL, LIMIT, GASPI_MEM_INITIALIZED),
                GASPI_ERROR);
      printf("rank %d: %s\n", (int)my_rank, detail());
      CHECK(strstr(detail(), "ulimit -l") != NULL);
      sync_all();
    } else {
      (void)segment_on_all(id, sizes[id]);
      move_end(id, sizes[id], peer, is_refused ? "BytesWrittenTcp" : "BytesWrittenVerbs");
    }
  }
  job_end();
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  if (strcmp(argv[1], "huge") == 0) {
    job_start();
    huge();
  } else if (strcmp(argv[1], "limit") == 0) {
    refused_at_init();
  } else if (strcmp(argv[1], "segment") == 0) {
    refused_segment(0);
  } else if (strcmp(argv[1], "fallback") == 0) {
    refused_segment(1);
  } else {
    CHECK(!"a known mode");
  }
  return 0;
}
