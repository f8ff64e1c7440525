/* ranks: 1 2 5 */
/*
 * A forked child is not part of the job: every call says so there, its end disturbs nobody, and
 * the parent goes on.
 */
#define _GNU_SOURCE
#include "noinit.h"

#include <sys/wait.h>

enum { CHILDREN = 3 };

/* Ends by exit, so that the handlers and destructors of the library run in the child too. */
static void child(void) {
  gaspi_number_t initialized = 0;
  const gaspi_return_t told = gaspi_initialized(&initialized);

  CHECK(initialized == 0 && (told == GASPI_SUCCESS || told == GASPI_ERR_NOINIT));
  all_noinit();
  NOINIT(gaspi_proc_init(LIMIT));
  exit(0);
}

int main(void) {
  char *memory;

  job_start();
  memory = segment_on_all(0, 4096);
  for (int round = 0; round < CHILDREN; round++) {
    int status = -1;
    const pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
      child();
    }
    /* The job works while the child lives and after it ended. */
    memory[0] = (char)round;
    CHECK_OK(gaspi_write_notify(0, 0, rank_after(1), 0, 64, 1, 1, 1, 0, LIMIT));
    (void)take(0, 1);
    CHECK_OK(gaspi_wait(0, LIMIT));
    CHECK(memory[64] == (char)round);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    sync_all();
    for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
      CHECK_OK(gaspi_proc_ping(rank, LIMIT));
    }
    sync_all();
  }
  job_end();
  return 0;
}
