/* ranks: 1 */
/*
 * A start that has timed out, since the other rank never comes, is given up by gaspi_proc_term:
 * then the configuration can be changed, and another job begun.
 */
#define _GNU_SOURCE
#include "check.h"

#include <unistd.h>

int main(void) {
  static const char *const launched[] = {"GASPI_MEETING", "GASPI_HOSTS", "GASPI_HOST",
                                         "GASPI_SOCKET",  "GASPI_MFILE", "GASPI_BIND"};
  gaspi_config_t config;
  gaspi_number_t initialized = 1;
  char job[32];

  alarm(WATCHDOG_S);
  for (size_t at = 0; at < sizeof launched / sizeof *launched; at++) {
    CHECK(unsetenv(launched[at]) == 0);
  }
  snprintf(job, sizeof job, "given-up-%d", (int)getpid());
  CHECK(setenv("GASPI_JOB_ID", job, 1) == 0);
  CHECK(setenv("GASPI_RANK", "0", 1) == 0);
  CHECK(setenv("GASPI_NRANKS", "2", 1) == 0);
  CHECK_OK(gaspi_config_get(&config));
  for (int round = 0; round < 3; round++) {
    CHECK(gaspi_proc_init(50) == GASPI_TIMEOUT);
    CHECK(gaspi_config_set(config) == GASPI_ERR_INITED);
    CHECK_OK(gaspi_proc_term(LIMIT));
    CHECK(gaspi_proc_term(LIMIT) == GASPI_ERR_NOINIT);
    CHECK_OK(gaspi_config_set(config));
    CHECK_OK(gaspi_initialized(&initialized));
    CHECK(initialized == 0);
  }
  CHECK(setenv("GASPI_NRANKS", "1", 1) == 0);
  CHECK_OK(gaspi_proc_init(LIMIT));
  CHECK_OK(gaspi_proc_num(&ranks));
  CHECK(ranks == 1);
  CHECK_OK(gaspi_proc_term(LIMIT));
  return 0;
}
