/* Joins and leaves its job, and MPI's, in the order of the letters of its argument: G and g are
   gaspi_proc_init and gaspi_proc_term, M and m are MPI_Init and MPI_Finalize. T is a
   gaspi_proc_init of 100 ms that has to time out, F one that has to fail; A makes the file that
   PMIX_STUB_ANSWERS names. W waits in a barrier until that fails, P for a signal; D dies by
   SIGKILL, K kills rank 1. L meets those that live. U says which PMIx library is used. */

#define _POSIX_C_SOURCE 200809L

#include <GASPI.h>
#include <gaspi_collectives.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(call)                                                                                \
  do {                                                                                             \
    gaspi_return_t status = (call);                                                                \
    if (status != GASPI_SUCCESS) {                                                                 \
      fprintf(stderr, "%s gave %d\n", #call, (int)status);                                         \
      exit(7);                                                                                     \
    }                                                                                              \
  } while (0)

#ifdef WITH_MPI
/* Of any MPI library: its header is not needed for these two. */
int MPI_Init(int *argc, char ***argv);
int MPI_Finalize(void);
#else
#define MPI_Init(argc, argv) abort()
#define MPI_Finalize() abort()
#endif

/* Each rank notifies its neighbour. */
static void meet(void) {
  gaspi_rank_t rank, size;
  gaspi_notification_id_t first;
  gaspi_notification_t heard;
  CHECK(gaspi_proc_init(GASPI_BLOCK));
  CHECK(gaspi_proc_rank(&rank));
  CHECK(gaspi_proc_num(&size));
  CHECK(gaspi_segment_create(0, 4096, GASPI_GROUP_ALL, GASPI_BLOCK, GASPI_MEM_INITIALIZED));
  CHECK(gaspi_notify(0, (gaspi_rank_t)((rank + 1) % size), 0, rank + 1u, 0, GASPI_BLOCK));
  CHECK(gaspi_notify_waitsome(0, 0, 1, &first, GASPI_BLOCK));
  CHECK(gaspi_notify_reset(0, first, &heard));
  CHECK(gaspi_wait(0, GASPI_BLOCK));
  CHECK(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK));
  printf("rank %u of %u heard %u\n", (unsigned)rank, (unsigned)size, (unsigned)heard - 1u);
  fflush(stdout);
}

/* Says what was waited for, or what has failed. */
static void no_init(gaspi_timeout_t timeout) {
  char text[1024];
  gaspi_return_t status = gaspi_proc_init(timeout);
  if (status == GASPI_SUCCESS || (timeout != GASPI_BLOCK && status != GASPI_TIMEOUT)) {
    fprintf(stderr, "gaspi_proc_init gave %d\n", (int)status);
    exit(7);
  }
  CHECK(gaspi_error_detail(text, sizeof text));
  printf("%s\n", text);
  fflush(stdout);
}

/* For a barrier that nobody else comes to. */
static void wait_in_vain(void) {
  char text[1024];
  gaspi_return_t status = gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK);
  if (status != GASPI_ERROR) {
    exit(7);
  }
  CHECK(gaspi_error_detail(text, sizeof text));
  printf("%s\n", text);
  fflush(stdout);
}

/* In a barrier of a group of theirs. */
static void meet_the_living(void) {
  gaspi_group_t living;
  gaspi_rank_t rank, size, other, met = 0;
  gaspi_state_vector_t states;
  CHECK(gaspi_proc_rank(&rank));
  CHECK(gaspi_proc_num(&size));
  if ((states = malloc(size)) == NULL) {
    exit(7);
  }
  CHECK(gaspi_state_vec_get(states));
  CHECK(gaspi_group_create(&living));
  for (other = 0; other < size; other++) {
    if (states[other] == GASPI_STATE_HEALTHY) {
      CHECK(gaspi_group_add(living, other));
      met++;
    }
  }
  free(states);
  CHECK(gaspi_group_commit(living, GASPI_BLOCK));
  CHECK(gaspi_barrier(living, GASPI_BLOCK));
  printf("rank %u met the %u that live\n", (unsigned)rank, (unsigned)met);
  fflush(stdout);
}

/* By what is mapped; each library once. */
static void name_library(void) {
  char line[4096], last[4096] = "";
  FILE *maps = fopen("/proc/self/maps", "r");
  if (maps == NULL) {
    exit(7);
  }
  while (fgets(line, sizeof line, maps) != NULL) {
    const char *path = strchr(line, '/');
    if (path != NULL && strstr(path, "/libpmix") != NULL && strcmp(path, last) != 0) {
      printf("uses %s", path);
      strcpy(last, path);
    }
  }
  fclose(maps);
  fflush(stdout);
}

static void answer(void) {
  const char *name = getenv("PMIX_STUB_ANSWERS");
  FILE *file = name == NULL ? NULL : fopen(name, "w");
  if (file == NULL || fclose(file) != 0) {
    exit(7);
  }
}

int main(int argc, char **argv) {
  const char *letter;
  if (argc != 2) {
    return 2;
  }
  for (letter = argv[1]; *letter != '\0'; letter++) {
    switch (*letter) {
      case 'G':
        meet();
        break;
      case 'T':
        no_init(100);
        break;
      case 'F':
        no_init(GASPI_BLOCK);
        break;
      case 'W':
        wait_in_vain();
        break;
      case 'L':
        meet_the_living();
        break;
      case 'P':
        pause();
        break;
      case 'U':
        name_library();
        break;
      case 'D':
        kill(getpid(), SIGKILL);
        break;
      case 'K':
        CHECK(gaspi_proc_kill(1, GASPI_BLOCK));
        break;
      case 'A':
        answer();
        break;
      case 'g':
        CHECK(gaspi_proc_term(GASPI_BLOCK));
        break;
      case 'M':
        MPI_Init(&argc, &argv);
        break;
      case 'm':
        MPI_Finalize();
        break;
      default:
        return 2;
    }
  }
  return 0;
}
