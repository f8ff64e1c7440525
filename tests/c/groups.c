/* ranks: 1 2 3 5 */
/*
 * Groups: ids, members, commit, use in collectives, reuse, limits, differing member lists.
 */
#include "check.h"

static gaspi_number_t group_count(void) {
  gaspi_number_t num = 0;
  CHECK_OK(gaspi_group_num(&num));
  return num;
}

static gaspi_group_t new_group(void) {
  gaspi_group_t group = 255;
  CHECK_OK(gaspi_group_create(&group));
  return group;
}

static void group_all(void) {
  gaspi_number_t size = 0;
  gaspi_rank_t *members = (gaspi_rank_t *)malloc(ranks * sizeof *members);

  CHECK(members != NULL);
  CHECK(group_count() == 1);
  CHECK_OK(gaspi_group_size(GASPI_GROUP_ALL, &size));
  CHECK(size == ranks);
  CHECK_OK(gaspi_group_ranks(GASPI_GROUP_ALL, members));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK(members[rank] == rank);
  }
  free(members);
  CHECK_ERR(gaspi_group_delete(GASPI_GROUP_ALL), GASPI_ERR_INV_GROUP);
  CHECK_OK(gaspi_group_commit(GASPI_GROUP_ALL, LIMIT));
  sync_all();
}

/* Members are sorted, each is in once, and only ranks of the job can be. */
static void members(void) {
  const gaspi_group_t group = new_group();
  gaspi_number_t size = 77;
  gaspi_rank_t *list = (gaspi_rank_t *)malloc(ranks * sizeof *list);

  CHECK(list != NULL);
  CHECK(group == 1);
  CHECK_OK(gaspi_group_size(group, &size));
  CHECK(size == 0);
  for (gaspi_rank_t rank = ranks; rank > 0; rank--) {
    CHECK_OK(gaspi_group_add(group, (gaspi_rank_t)(rank - 1)));
  }
  CHECK_ERR(gaspi_group_add(group, 0), GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_group_add(group, ranks), GASPI_ERR_INV_RANK);
  CHECK_OK(gaspi_group_size(group, &size));
  CHECK(size == ranks);
  CHECK_OK(gaspi_group_ranks(group, list));
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK(list[rank] == rank);
  }
  CHECK_ERR(gaspi_barrier(group, LIMIT), GASPI_ERR_INV_GROUP);
  CHECK_OK(gaspi_group_commit(group, LIMIT));
  CHECK_OK(gaspi_barrier(group, LIMIT));
  CHECK_OK(gaspi_group_delete(group));
  CHECK_ERR(gaspi_group_delete(group), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_barrier(group, LIMIT), GASPI_ERR_INV_GROUP);
  free(list);
}

/* Ids are the lowest free ones; holes disturb nobody. */
static void ids(void) {
  gaspi_group_t group;
  gaspi_number_t size = 0;

  CHECK(new_group() == 1);
  CHECK(new_group() == 2);
  CHECK(new_group() == 3);
  CHECK_OK(gaspi_group_add(3, my_rank));
  CHECK_OK(gaspi_group_delete(2));
  CHECK(group_count() == 3);
  CHECK_OK(gaspi_group_size(3, &size));
  CHECK(size == 1);
  CHECK_OK(gaspi_group_commit(3, LIMIT));
  CHECK_OK(gaspi_barrier(3, LIMIT));
  CHECK(new_group() == 2);
  for (group = 1; group <= 3; group++) {
    CHECK_OK(gaspi_group_delete(group));
  }
  CHECK(group_count() == 1);
}

static void limit(void) {
  gaspi_number_t max = 0;
  gaspi_group_t group = 0;

  CHECK_OK(gaspi_group_max(&max));
  CHECK(max == 32);
  while (group_count() < max) {
    (void)new_group();
  }
  CHECK_ERR(gaspi_group_create(&group), GASPI_ERR_MANY_GRP);
  CHECK(group == 0);
  for (group = 1; group < max; group++) {
    CHECK_OK(gaspi_group_delete(group));
  }
  CHECK(group_count() == 1);
}

static void without_oneself(void) {
  const gaspi_group_t group = new_group();

  CHECK_ERR(gaspi_group_commit(group, LIMIT), GASPI_ERR_INV_GROUP);
  if (ranks > 1) {
    CHECK_OK(gaspi_group_add(group, rank_after(1)));
    CHECK_ERR(gaspi_group_commit(group, LIMIT), GASPI_ERR_INV_GROUP);
  }
  CHECK_OK(gaspi_group_delete(group));
}

/* Even and odd ranks compute apart from each other, under the same id. */
static void halves(void) {
  const gaspi_group_t group = new_group();
  gaspi_uint count = 0;
  gaspi_uint expected = 0;

  for (gaspi_rank_t rank = (gaspi_rank_t)(my_rank % 2); rank < ranks;
       rank = (gaspi_rank_t)(rank + 2)) {
    CHECK_OK(gaspi_group_add(group, rank));
    expected += rank;
  }
  CHECK_OK(gaspi_group_commit(group, LIMIT));
  for (gaspi_uint round = 0; round < 20; round++) {
    gaspi_uint mine = my_rank + round;
    gaspi_number_t size = 0;
    CHECK_OK(gaspi_group_size(group, &size));
    CHECK_OK(gaspi_allreduce(&mine, &count, 1, GASPI_OP_SUM, GASPI_TYPE_UINT, group, LIMIT));
    CHECK(count == expected + round * size);
    CHECK_OK(gaspi_barrier(group, LIMIT));
  }
  CHECK_OK(gaspi_group_delete(group));
}

/* One id, used for other members each time, while ranks run at different speeds. */
static void reuse(void) {
  for (unsigned round = 0; round < 40; round++) {
    const gaspi_rank_t absent = (gaspi_rank_t)(round % ranks);
    gaspi_ulong mine = round * 1000ul + my_rank;
    gaspi_ulong largest = 0;
    gaspi_group_t group;

    if (ranks > 1 && my_rank == absent) {
      continue;
    }
    group = new_group();
    CHECK(group == 1);
    for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
      if (ranks == 1 || rank != absent) {
        CHECK_OK(gaspi_group_add(group, rank));
      }
    }
    CHECK_OK(gaspi_group_commit(group, LIMIT));
    CHECK_OK(gaspi_allreduce(&mine, &largest, 1, GASPI_OP_MAX, GASPI_TYPE_ULONG, group, LIMIT));
    CHECK(largest / 1000 == round);
    CHECK_OK(gaspi_group_delete(group));
  }
  sync_all();
}

/* Ranks 0 and 1 wait for each other with different lists: an error for both, not a hang. */
static void differing_lists(void) {
  gaspi_group_t group;

  if (ranks >= 3 && my_rank < 2) {
    group = new_group();
    CHECK_OK(gaspi_group_add(group, 0));
    CHECK_OK(gaspi_group_add(group, 1));
    if (my_rank == 1) {
      CHECK_OK(gaspi_group_add(group, 2));
    }
    CHECK_ERR(gaspi_group_commit(group, LIMIT), GASPI_ERROR);
    CHECK_OK(gaspi_group_delete(group));
  }
  sync_all();
  CHECK(group_count() == 1);
}

static void unknown(void) {
  gaspi_number_t size = 0;
  gaspi_rank_t rank = 0;

  CHECK_ERR(gaspi_group_add(9, my_rank), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_group_commit(9, LIMIT), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_group_delete(9), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_group_size(9, &size), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_group_ranks(9, &rank), GASPI_ERR_INV_GROUP);
  CHECK_ERR(gaspi_group_size(255, &size), GASPI_ERR_INV_GROUP);
}

int main(void) {
  job_start();
  group_all();
  members();
  ids();
  limit();
  without_oneself();
  sync_all();
  halves();
  sync_all();
  reuse();
  differing_lists();
  unknown();
  job_end();
  return 0;
}
