/* Notifications, waiting and leaving from an atexit handler. */
#include <GASPI.h>
#include <gaspi_collectives.h>
#include <stdio.h>
#include <stdlib.h>

static void need(int condition, const char *what) {
  if (!condition) {
    char detail[512] = "";
    gaspi_error_detail(detail, sizeof detail);
    fprintf(stderr, "%s: %s\n", what, detail);
    _Exit(1);
  }
}

static void leave(void) {
  gaspi_notification_id_t first = 99;
  gaspi_notification_t old = 0;
  need(gaspi_notify(0, 0, 5, 7, 0, GASPI_BLOCK) == GASPI_SUCCESS, "notify");
  need(gaspi_notify_waitsome(0, 0, 8, &first, 1000) == GASPI_SUCCESS && first == 5, "waitsome");
  need(gaspi_notify_reset(0, first, &old) == GASPI_SUCCESS && old == 7, "reset");
  need(gaspi_wait(0, GASPI_BLOCK) == GASPI_SUCCESS, "wait");
  need(gaspi_notify_waitsome(0, 0, 8, &first, 20) == GASPI_TIMEOUT, "waitsome without any");
  need(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK) == GASPI_SUCCESS, "barrier");
  need(gaspi_proc_term(GASPI_BLOCK) == GASPI_SUCCESS, "term");
  puts("left");
}

int main(void) {
  atexit(leave);
  need(gaspi_proc_init(GASPI_BLOCK) == GASPI_SUCCESS, "init");
  need(gaspi_segment_create(0, 4096, GASPI_GROUP_ALL, GASPI_BLOCK, GASPI_MEM_INITIALIZED) ==
           GASPI_SUCCESS,
       "segment");
  puts("main ends");
  return 0;
}
