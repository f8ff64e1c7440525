/* Each rank greets the next one, in C. Valid C and C++. */
#include <GASPI.h>

#include <stdio.h>
#include <string.h>

#define MUST(call)                                                   \
  do {                                                               \
    if ((call) != GASPI_SUCCESS) {                                   \
      fprintf(stderr, "%s:%d: %s failed\n", __FILE__, __LINE__, #call); \
      return 1;                                                      \
    }                                                                \
  } while (0)

int main(void) {
  gaspi_rank_t rank, ranks;
  gaspi_pointer_t memory;
  gaspi_notification_id_t first;
  gaspi_notification_t value;
  char *text;
  int is_right;

  MUST(gaspi_proc_init(GASPI_BLOCK));
  MUST(gaspi_proc_rank(&rank));
  MUST(gaspi_proc_num(&ranks));
  MUST(gaspi_segment_create(0, 4096, GASPI_GROUP_ALL, GASPI_BLOCK, GASPI_MEM_INITIALIZED));
  MUST(gaspi_segment_ptr(0, &memory));
  text = (char *)memory;
  snprintf(text, 64, "greetings from rank %d", (int)rank);
  MUST(gaspi_write_notify(0, 0, (gaspi_rank_t)((rank + 1) % ranks), 0, 2048, 64, 0, 1, 0,
                          GASPI_BLOCK));
  MUST(gaspi_notify_waitsome(0, 0, 1, &first, GASPI_BLOCK));
  MUST(gaspi_notify_reset(0, first, &value));
  printf("rank %d: %s\n", (int)rank, text + 2048);
  is_right = strncmp(text + 2048, "greetings from rank ", 20) == 0;
  MUST(gaspi_wait(0, GASPI_BLOCK));
  MUST(gaspi_proc_term(GASPI_BLOCK));
  return is_right ? 0 : 1;
}
