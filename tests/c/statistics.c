/* ranks: 1 2 5 */
/*
 * Statistics: the counters, their names, what they count, levels and resets.
 */
#include "check.h"

enum { SEGMENT = 0, SIZE = 4096, KNOWN = 18 };

static const char *const names[KNOWN] = {
    "BytesWritten",
    "BytesRead",
    "NumberOfBarriers",
    "NumberOfWaits",
    "NumberOfWrites",
    "NumberOfWriteNotifys",
    "NumberOfReads",
    "NumberOfReadNotifys",
    "NumberOfSegmentCreate",
    "NumberOfSegmentAlloc",
    "NumberOfSegmentRegister",
    "NumberOfSegmentDelete",
    "NumberOfSegmentBind",
    "NumberOfSegmentUse",
    "TimeInBarrier",
    "TimeInWait",
    "TimeInWaitSome",
    "TimeWaitingInGaspi",
};

enum {
  BYTES_WRITTEN = 0,
  BYTES_READ = 1,
  BARRIERS = 2,
  WAITS = 3,
  WRITES = 4,
  WRITE_NOTIFYS = 5,
  READS = 6,
  READ_NOTIFYS = 7,
  SEGMENT_CREATE = 8,
  SEGMENT_ALLOC = 9,
  SEGMENT_DELETE = 11,
  SEGMENT_BIND = 12
};

static gaspi_number_t counters(void) {
  gaspi_number_t max = 0;
  CHECK_OK(gaspi_statistic_counter_max(&max));
  return max;
}

/* A counter's value; of one that counts per rank, the sum. */
static gaspi_ulong total(gaspi_statistic_counter_t counter) {
  gaspi_statistic_argument_t argument = GASPI_STATISTIC_ARGUMENT_NONE;
  gaspi_string_t name = NULL;
  gaspi_string_t description = NULL;
  gaspi_number_t level = 0;
  gaspi_ulong sum = 0;

  CHECK_OK(gaspi_statistic_counter_info(counter, &argument, &name, &description, &level));
  for (gaspi_number_t rank = 0;
       rank < (argument == GASPI_STATISTIC_ARGUMENT_RANK ? ranks : 1u); rank++) {
    gaspi_ulong value = 0;
    gaspi_float fraction = -1;
    CHECK_OK(gaspi_statistic_counter_get(counter, rank, &value));
    CHECK_OK(gaspi_statistic_counter_get_f(counter, rank, &fraction));
    CHECK(fraction >= 0);
    if (counter < 14) {
      CHECK(fraction > 0.999f * (float)value - 1 && fraction < 1.001f * (float)value + 1);
    }
    sum += value;
  }
  return sum;
}

static gaspi_number_t describe(void) {
  const gaspi_number_t max = counters();
  gaspi_number_t highest = 0;

  CHECK(max >= KNOWN);
  for (gaspi_statistic_counter_t counter = 0; counter < max; counter++) {
    gaspi_statistic_argument_t argument = (gaspi_statistic_argument_t)77;
    gaspi_string_t name = NULL;
    gaspi_string_t description = NULL;
    gaspi_number_t level = 0;
    CHECK_OK(gaspi_statistic_counter_info(counter, &argument, &name, &description, &level));
    CHECK(argument == GASPI_STATISTIC_ARGUMENT_NONE || argument == GASPI_STATISTIC_ARGUMENT_RANK);
    CHECK(name != NULL && name[0] != '\0');
    CHECK(description != NULL && description[0] != '\0');
    CHECK(level >= 1);
    if (counter < KNOWN) {
      CHECK(strcmp(name, names[counter]) == 0);
    }
    highest = level > highest ? level : highest;
  }
  return highest;
}

static void wrong_arguments(void) {
  const gaspi_number_t max = counters();
  gaspi_statistic_argument_t argument;
  gaspi_string_t name = NULL;
  gaspi_string_t description = NULL;
  gaspi_number_t level = 0;
  gaspi_ulong value = 0;
  gaspi_float fraction = 0;

  CHECK_ERR(gaspi_statistic_counter_info(max, &argument, &name, &description, &level),
            GASPI_ERROR);
  CHECK_ERR(gaspi_statistic_counter_get(max, 0, &value), GASPI_ERROR);
  CHECK_ERR(gaspi_statistic_counter_get_f(max, 0, &fraction), GASPI_ERROR);
  CHECK_ERR(gaspi_statistic_counter_reset(max), GASPI_ERROR);
  CHECK_ERR(gaspi_statistic_counter_reset(0xffffffffu), GASPI_ERROR);
}

static void reset_all(void) {
  for (gaspi_statistic_counter_t counter = 0; counter < counters(); counter++) {
    CHECK_OK(gaspi_statistic_counter_reset(counter));
  }
}

static void counting(void) {
  const gaspi_rank_t right = rank_after(1);

  reset_all();
  for (gaspi_statistic_counter_t counter = 0; counter < counters(); counter++) {
    CHECK(total(counter) == 0);
  }
  for (int at = 0; at < 10; at++) {
    CHECK_OK(gaspi_write(SEGMENT, 0, right, SEGMENT, 1000, 100, 0, LIMIT));
  }
  for (int at = 0; at < 7; at++) {
    CHECK_OK(gaspi_read(SEGMENT, 2000, right, SEGMENT, 0, 10, 0, LIMIT));
  }
  CHECK(total(WRITES) == 10 && total(BYTES_WRITTEN) == 1000);
  CHECK(total(READS) == 7 && total(BYTES_READ) == 70);
  CHECK(total(WRITE_NOTIFYS) == 0 && total(READ_NOTIFYS) == 0);
  CHECK(total(WAITS) == 0);
  CHECK_OK(gaspi_wait(0, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
  CHECK(total(WAITS) == 2);

  reset_all();
  for (int at = 0; at < 3; at++) {
    CHECK_OK(gaspi_write_notify(SEGMENT, 0, right, SEGMENT, 1000, 50, 1, 1, 0, LIMIT));
  }
  for (int at = 0; at < 4; at++) {
    CHECK_OK(gaspi_read_notify(SEGMENT, 2000, right, SEGMENT, 0, 20, 2, 0, LIMIT));
  }
  CHECK_OK(gaspi_wait(0, LIMIT));
  CHECK(total(WRITE_NOTIFYS) == 3 && total(BYTES_WRITTEN) == 150);
  CHECK(total(READ_NOTIFYS) == 4 && total(BYTES_READ) == 80);

  CHECK(total(BARRIERS) == 0);
  for (int at = 0; at < 5; at++) {
    sync_all();
  }
  CHECK(total(BARRIERS) == 5);
}

/* The counter of that name, or their number. */
static gaspi_statistic_counter_t named(const char *wanted) {
  gaspi_statistic_counter_t counter = 0;

  for (; counter < counters(); counter++) {
    gaspi_statistic_argument_t argument = GASPI_STATISTIC_ARGUMENT_NONE;
    gaspi_string_t name = NULL;
    gaspi_string_t description = NULL;
    gaspi_number_t level = 0;
    CHECK_OK(gaspi_statistic_counter_info(counter, &argument, &name, &description, &level));
    if (strcmp(name, wanted) == 0) {
      break;
    }
  }
  CHECK(counter < counters());
  return counter;
}

/* What goes to one rank is counted for that rank, and for the transport that carries it. */
static void by_rank(void) {
  const gaspi_rank_t right = rank_after(1);
  const gaspi_statistic_counter_t written = named("BytesWrittenToRank");
  const gaspi_statistic_counter_t atomics = named("NumberOfAtomicsOnRank");
  const char *const transport = getenv("GASPI_TRANSPORT");
  const int by_device = transport != NULL && strcmp(transport, "verbs") == 0;
  const char *const by_memory = right == my_rank ? "NumberOfRequestsSelf" : "NumberOfRequestsShm";
  const gaspi_statistic_counter_t carried =
      named(ranks > 1 && by_device ? "NumberOfRequestsVerbs" : by_memory);
  gaspi_atomic_value_t old = 0;
  gaspi_ulong value = 77;

  reset_all();
  for (int at = 0; at < 6; at++) {
    CHECK_OK(gaspi_write(SEGMENT, 0, right, SEGMENT, 1000, 30, 0, LIMIT));
    CHECK_OK(gaspi_notify(SEGMENT, right, 3, 1, 0, LIMIT));
  }
  CHECK_OK(gaspi_atomic_fetch_add(SEGMENT, 3000, right, 1, &old, LIMIT));
  CHECK_OK(gaspi_wait(0, LIMIT));
  for (gaspi_number_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_statistic_counter_get(written, rank, &value));
    CHECK(value == (rank == right ? 180u : 0u));
    CHECK_OK(gaspi_statistic_counter_get(atomics, rank, &value));
    CHECK(value == (rank == right ? 1u : 0u));
  }
  /* Devices carry what goes by queues; the atomic goes by TCP then. */
  CHECK(total(carried) == (ranks > 1 && by_device ? 12 : 13));
  CHECK(total(named("NumberOfNotifys")) == 6);
  CHECK_ERR(gaspi_statistic_counter_get(written, ranks, &value), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_statistic_counter_get(written, 0xffffffffu, &value), GASPI_ERR_INV_RANK);
  CHECK_OK(gaspi_statistic_counter_reset(written));
  CHECK(total(written) == 0);
  CHECK(total(BYTES_WRITTEN) == 180);
}

static void segments(void) {
  static char memory[64];

  reset_all();
  CHECK_OK(gaspi_segment_alloc(10, 64, GASPI_MEM_INITIALIZED));
  CHECK_OK(gaspi_segment_bind(11, memory, sizeof memory, 0));
  CHECK_OK(gaspi_segment_delete(10));
  CHECK_OK(gaspi_segment_delete(11));
  CHECK(total(SEGMENT_ALLOC) == 1);
  CHECK(total(SEGMENT_BIND) == 1);
  CHECK(total(SEGMENT_DELETE) == 2);
  (void)segment_on_all(10, 64);
  CHECK(total(SEGMENT_CREATE) == 1);
  sync_all();
  CHECK_OK(gaspi_segment_delete(10));
}

int main(void) {
  gaspi_number_t level;

  job_start();
  (void)segment_on_all(SEGMENT, SIZE);
  level = describe();
  wrong_arguments();
  CHECK_OK(gaspi_statistic_verbosity_level(level));
  counting();
  by_rank();
  segments();
  CHECK_OK(gaspi_pcontrol(NULL));
  gaspi_statistic_print_counters();
  CHECK_OK(gaspi_statistic_verbosity_level(0));
  job_end();
  return 0;
}
