/*
 * counters.h: what the library counts of this rank, by name.
 */
#ifndef COUNTERS_H
#define COUNTERS_H

#include "../c/check.h"

#include <stdint.h>

/* A counter of this rank by its name. */
static inline uint64_t count_of(const char *wanted) {
  gaspi_number_t counters;
  CHECK_OK(gaspi_statistic_counter_max(&counters));
  for (gaspi_number_t counter = 0; counter < counters; counter++) {
    gaspi_statistic_argument_t argument;
    gaspi_string_t name;
    gaspi_string_t description;
    gaspi_number_t level;
    gaspi_ulong value;
    CHECK_OK(gaspi_statistic_counter_info(counter, &argument, &name, &description, &level));
    if (strcmp(name, wanted) == 0) {
      CHECK_OK(gaspi_statistic_counter_get(counter, 0, &value));
      return value;
    }
  }
  CHECK(!"there is such a counter");
  return 0;
}

#endif /* COUNTERS_H */
