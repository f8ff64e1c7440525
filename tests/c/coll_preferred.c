/* ranks: 1 2 5 */
/*
 * The algorithm that GASPI_COLL_ALGORITHM prefers: a name that does not exist is an error of init,
 * which says the name; one that cannot carry out an operation leaves it to the table.
 */
#define _GNU_SOURCE
#include "check.h"

enum { COUNT = 1000 };

static double from[COUNT], to[COUNT];

/* The results are right, whatever carries them out. */
static void all_right(void) {
  int32_t word = my_rank == ranks - 1 ? 17 : 0;

  for (unsigned i = 0; i < COUNT; i++) {
    from[i] = my_rank + i;
  }
  CHECK_OK(gaspi_coll_allreduce(from, to, COUNT, GASPI_COLL_TYPE_F64, GASPI_COLL_OP_SUM,
                                GASPI_GROUP_ALL, NULL, LIMIT));
  for (unsigned i = 0; i < COUNT; i++) {
    CHECK(to[i] == (double)i * ranks + ranks * (ranks - 1) / 2);
  }
  CHECK_OK(gaspi_coll_broadcast(GASPI_COLL_IN_PLACE, &word, 1, GASPI_COLL_TYPE_I32,
                                (gaspi_rank_t)(ranks - 1), GASPI_GROUP_ALL, NULL, LIMIT));
  CHECK(word == 17);
  CHECK_OK(gaspi_coll_barrier(GASPI_GROUP_ALL, NULL, LIMIT));
}

static void refused(const char *name) {
  char text[1024] = "";

  CHECK(setenv("GASPI_COLL_ALGORITHM", name, 1) == 0);
  CHECK_ERR(gaspi_proc_init(LIMIT), GASPI_ERR_ENV);
  CHECK_OK(gaspi_error_detail(text, sizeof text));
  CHECK(strstr(text, "GASPI_COLL_ALGORITHM") != NULL && strstr(text, name) != NULL);
  CHECK(strstr(text, "recursive_doubling") != NULL);
}

int main(void) {
  /* Most serve some of the operations only, some of them only on one host. The last one is the
   * name that copy_in_copy_out had before. */
  static const char *const names[] = {"ring",   "pairwise",     "inline",           "linear",
                                      "hierarchical", "copy_in_copy_out", "staged"};

  refused("quantum_ring");
  refused("");
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
    CHECK(setenv("GASPI_COLL_ALGORITHM", names[i], 1) == 0);
    job_start();
    all_right();
    job_end();
  }
  return 0;
}
