/* ranks: 1 2 5 */
/* link: legacy */
/*
 * An old binary: linked against a library of empty functions with the soname libGPI2.so.0, as if
 * long before ours existed, and run on ours under that name:
 *
 *   cc -shared -fPIC -Wl,-soname,libGPI2.so.0 legacy_stub.c -o old/libGPI2.so
 *   cc legacy.c -o legacy -Lold -lGPI2
 *
 * It uses nothing that is ours alone, so it checks by itself.
 */
#include <GASPI.h>
#include <GASPI_Ext.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(condition)                                                   \
  do {                                                                    \
    if (!(condition)) {                                                   \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

#define MUST_OK(call) MUST((call) == GASPI_SUCCESS)

static const gaspi_timeout_t limit = 60000;

int main(void) {
  gaspi_config_t config;
  gaspi_rank_t rank = 0;
  gaspi_rank_t num = 0;
  gaspi_rank_t right;
  gaspi_pointer_t pointer = NULL;
  gaspi_notification_id_t first = 0;
  gaspi_notification_t value = 0;
  gaspi_double mine;
  gaspi_double sum = 0;
  float version = 0;

  MUST_OK(gaspi_version(&version));
  MUST(version > 1.59f && version < 1.61f);
  memset(&config, 0, sizeof config);
  MUST_OK(gaspi_config_get(&config));
  MUST(config.queue_size_max == 1024 && config.rw_list_elem_max == 255);
  config.queue_num = 4;
  MUST_OK(gaspi_config_set(config));
  MUST_OK(gaspi_proc_init(limit));
  MUST_OK(gaspi_proc_rank(&rank));
  MUST_OK(gaspi_proc_num(&num));
  right = (gaspi_rank_t)((rank + 1) % num);
  MUST_OK(gaspi_segment_create(0, 4096, GASPI_GROUP_ALL, limit, GASPI_MEM_INITIALIZED));
  MUST_OK(gaspi_segment_ptr(0, &pointer));
  memset(pointer, rank + 1, 16);
  MUST_OK(gaspi_write_notify(0, 0, right, 0, 64, 16, 0, 1, 3, limit));
  MUST_OK(gaspi_notify_waitsome(0, 0, 1, &first, limit));
  MUST_OK(gaspi_notify_reset(0, first, &value));
  MUST(value == 1 && ((char *)pointer)[79] == (char)((rank + num - 1) % num + 1));
  MUST_OK(gaspi_wait(3, limit));
  mine = rank;
  MUST_OK(gaspi_allreduce(&mine, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_DOUBLE, GASPI_GROUP_ALL, limit));
  MUST(sum == num * (num - 1) / 2.0);
  MUST(strcmp(gaspi_error_str(GASPI_QUEUE_FULL), "Queue is full") == 0);
  gaspi_printf("rank %d of %d\n", rank, num);
  MUST_OK(gaspi_barrier(GASPI_GROUP_ALL, limit));
  MUST_OK(gaspi_proc_term(limit));
  return 0;
}
