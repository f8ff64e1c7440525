/* ranks: 1 2 5 */
/*
 * A process may join and leave again and again; each job starts empty.
 */
#include "check.h"

enum { TIMES = 6 };

static void use(unsigned round) {
  gaspi_number_t number = 99;
  gaspi_notification_id_t first = 0;
  gaspi_uint mine = round;
  gaspi_uint largest = 0;
  gaspi_group_t group = 0;
  char *memory;

  CHECK_OK(gaspi_segment_num(&number));
  CHECK(number == 0);
  CHECK_OK(gaspi_group_num(&number));
  CHECK(number == 1);
  CHECK_OK(gaspi_queue_num(&number));
  CHECK(number == 8);
  CHECK(queue_fill(0) == 0);
  memory = segment_on_all(0, 4096);
  CHECK_RC(gaspi_notify_waitsome(0, 0, 65536, &first, GASPI_TEST), GASPI_TIMEOUT);
  sync_all();
  memory[0] = (char)(round + my_rank);
  CHECK_OK(gaspi_write_notify(0, 0, rank_after(1), 0, 64, 1, 5, round + 1, 0, LIMIT));
  CHECK(take(0, 5) == round + 1);
  CHECK(memory[64] == (char)(round + rank_before(1)));
  /* Left behind on purpose: a posted request, a set notification, a group, a segment, a queue. */
  CHECK_OK(gaspi_notify(0, my_rank, 9, 1, 1, LIMIT));
  CHECK_OK(gaspi_group_create(&group));
  CHECK(group == 1);
  CHECK_OK(gaspi_allreduce(&mine, &largest, 1, GASPI_OP_MAX, GASPI_TYPE_UINT, GASPI_GROUP_ALL,
                           LIMIT));
  CHECK(largest == round);
}

int main(void) {
  gaspi_rank_t first_rank = 0;
  gaspi_rank_t first_ranks = 0;

  for (unsigned round = 0; round < TIMES; round++) {
    gaspi_rank_t rank = 0;
    job_start();
    if (round == 0) {
      first_rank = my_rank;
      first_ranks = ranks;
    }
    CHECK(my_rank == first_rank && ranks == first_ranks);
    use(round);
    job_end();
    CHECK_ERR(gaspi_proc_rank(&rank), GASPI_ERR_NOINIT);
  }
  return 0;
}
