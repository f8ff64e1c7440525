/* ranks: 1 2 5 */
/*
 * Thousands of segments, queues, groups and whole jobs, made and deleted: neither memory nor
 * descriptors of the process grow.
 */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>

enum { CYCLES = 2000, COLLECTIVE_CYCLES = 300, JOBS = 10, SIZE = 1 << 16, SLACK_KIB = 4096 };

struct usage {
  long resident_kib;
  long mappings;
  int descriptors;
};

static long status_kib(const char *field) {
  FILE *status = fopen("/proc/self/status", "r");
  char line[256];
  long kib = -1;

  CHECK(status != NULL);
  while (fgets(line, sizeof line, status) != NULL) {
    if (strncmp(line, field, strlen(field)) == 0) {
      kib = strtol(line + strlen(field), NULL, 10);
    }
  }
  fclose(status);
  CHECK(kib >= 0);
  return kib;
}

static long count_mappings(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  long lines = 0;
  int byte;

  CHECK(maps != NULL);
  while ((byte = fgetc(maps)) != EOF) {
    lines += byte == '\n';
  }
  fclose(maps);
  return lines;
}

static int count_descriptors(void) {
  DIR *directory = opendir("/proc/self/fd");
  int entries = 0;

  CHECK(directory != NULL);
  while (readdir(directory) != NULL) {
    entries++;
  }
  closedir(directory);
  return entries;
}

static struct usage measure(void) {
  struct usage usage;
  usage.resident_kib = status_kib("VmRSS:");
  usage.mappings = count_mappings();
  usage.descriptors = count_descriptors();
  return usage;
}

/* Measures while no rank does anything; outside of a job there is nothing to agree on. */
static struct usage measure_at_rest(void) {
  gaspi_number_t initialized = 0;
  struct usage usage;

  CHECK_OK(gaspi_initialized(&initialized));
  if (initialized) {
    sync_all();
  }
  usage = measure();
  if (initialized) {
    sync_all();
  }
  return usage;
}

/*
 * A cycle is run some times first, so that what is made once does not count. A rank may keep some
 * mappings for each other rank a while longer; a leak is hundreds.
 */
static void steady(void (*cycle)(unsigned), unsigned times, const char *name) {
  struct usage before;
  struct usage after;

  for (unsigned at = 0; at < times / 10 + 2; at++) {
    cycle(at);
  }
  before = measure_at_rest();
  for (unsigned at = 0; at < times; at++) {
    cycle(at);
  }
  after = measure_at_rest();
  if (after.resident_kib > before.resident_kib + SLACK_KIB ||
      after.mappings > before.mappings + 16 + 4 * ranks ||
      after.descriptors > before.descriptors + 2) {
    fprintf(stderr,
            "%s, %u times: %ld -> %ld KiB, %ld -> %ld mappings, %d -> %d descriptors\n", name,
            times, before.resident_kib, after.resident_kib, before.mappings, after.mappings,
            before.descriptors, after.descriptors);
    CHECK(!"usage does not grow");
  }
}

static void local_segment(unsigned at) {
  const gaspi_segment_id_t id = (gaspi_segment_id_t)(at % 255);

  CHECK_OK(gaspi_segment_alloc(id, SIZE, GASPI_MEM_INITIALIZED));
  CHECK_OK(gaspi_segment_register(id, my_rank, LIMIT));
  CHECK_OK(gaspi_notify(id, my_rank, at % 65536, 1, 0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
  CHECK(take(id, at % 65536) == 1);
  CHECK_OK(gaspi_segment_delete(id));
}

static void bound_segment(unsigned at) {
  static char memory[SIZE];
  const gaspi_segment_id_t id = (gaspi_segment_id_t)(at % 255);

  CHECK_OK(gaspi_segment_bind(id, memory, sizeof memory, 0));
  CHECK_OK(gaspi_segment_delete(id));
}

/* One id, used again by all, with accesses in between. */
static void common_segment(unsigned at) {
  char *memory = segment_on_all(7, SIZE);

  memory[0] = (char)at;
  CHECK_OK(gaspi_write_notify(7, 0, rank_after(1), 7, SIZE - 1, 1, 0, at + 1, 0, LIMIT));
  CHECK(take(7, 0) == at + 1);
  CHECK(memory[SIZE - 1] == (char)at);
  CHECK_OK(gaspi_wait(0, LIMIT));
  sync_all();
  CHECK_OK(gaspi_segment_delete(7));
}

static void queue(unsigned at) {
  gaspi_queue_id_t queue = 0;

  (void)at;
  CHECK_OK(gaspi_queue_create(&queue, LIMIT));
  CHECK(queue == 8);
  CHECK_OK(gaspi_write(0, 0, rank_after(1), 0, 8, 8, queue, LIMIT));
  CHECK_OK(gaspi_wait(queue, LIMIT));
  CHECK_OK(gaspi_queue_delete(queue));
}

static void local_group(unsigned at) {
  gaspi_group_t group = 0;

  (void)at;
  CHECK_OK(gaspi_group_create(&group));
  CHECK(group == 1);
  CHECK_OK(gaspi_group_add(group, my_rank));
  CHECK_OK(gaspi_group_commit(group, LIMIT));
  CHECK_OK(gaspi_barrier(group, LIMIT));
  CHECK_OK(gaspi_group_delete(group));
}

static void common_group(unsigned at) {
  gaspi_group_t group = 0;
  gaspi_uint mine = at + my_rank;
  gaspi_uint largest = 0;

  CHECK_OK(gaspi_group_create(&group));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_group_add(group, rank));
  }
  CHECK_OK(gaspi_group_commit(group, LIMIT));
  CHECK_OK(gaspi_allreduce(&mine, &largest, 1, GASPI_OP_MAX, GASPI_TYPE_UINT, group, LIMIT));
  CHECK(largest == at + ranks - 1);
  CHECK_OK(gaspi_group_delete(group));
}

static void failures(unsigned at) {
  char detail[256];
  gaspi_string_t text = NULL;

  CHECK_RC(gaspi_write(0, at, ranks, 0, 0, 8, 0, LIMIT), GASPI_ERR_INV_RANK);
  CHECK_OK(gaspi_error_detail(detail, sizeof detail));
  CHECK_OK(gaspi_print_error(GASPI_ERROR, &text));
  free(text);
}

static void whole_job(unsigned at) {
  job_start();
  common_segment(at);
  job_end();
}

int main(void) {
  job_start();
  steady(local_segment, CYCLES, "segment_alloc");
  steady(bound_segment, CYCLES, "segment_bind");
  steady(common_segment, COLLECTIVE_CYCLES, "segment_create");
  (void)segment_on_all(0, SIZE);
  steady(queue, CYCLES, "queue_create");
  steady(local_group, CYCLES, "group_create, alone");
  steady(common_group, COLLECTIVE_CYCLES, "group_create, all");
  steady(failures, CYCLES, "calls that fail");
  job_end();
  steady(whole_job, JOBS, "proc_init and proc_term");
  return 0;
}
