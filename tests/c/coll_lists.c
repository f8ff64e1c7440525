/* ranks: 1 2 3 5 */
/*
 * Broadcasts of lists: pieces of any types and lengths, waiting and started; every wrong argument;
 * lists that differ.
 */
#include "check.h"

enum { PIECES = 5, MOST = 40000 };

#define ALL GASPI_GROUP_ALL
#define NULLPTR(call) CHECK_ERR(call, GASPI_ERR_NULLPTR)

static uint8_t bytes[3];
static float weights[MOST];
static double few[7], many[300];

/* What the root has, and nobody else. */
static void fill(gaspi_coll_piece_t pieces[PIECES], int is_root, unsigned round) {
  const gaspi_coll_piece_t all[PIECES] = {{bytes, 3, GASPI_COLL_TYPE_U8, 0},
                                          {NULL, 0, GASPI_COLL_TYPE_I64, 0},
                                          {weights, MOST, GASPI_COLL_TYPE_F32, 0},
                                          {few, 7, GASPI_COLL_TYPE_F64, 0},
                                          {many, 300, GASPI_COLL_TYPE_F64, 0}};

  for (unsigned at = 0; at < PIECES; at++) pieces[at] = all[at];
  for (unsigned at = 0; at < 3; at++) bytes[at] = (uint8_t)(is_root ? at + round : 0);
  for (unsigned at = 0; at < MOST; at++) weights[at] = is_root ? (float)(at + round) : 0;
  for (unsigned at = 0; at < 7; at++) few[at] = is_root ? (double)(at * round) : 0;
  for (unsigned at = 0; at < 300; at++) many[at] = is_root ? (double)(at * 3 + round) : 0;
}

static void check(unsigned round) {
  for (unsigned at = 0; at < 3; at++) CHECK(bytes[at] == (uint8_t)(at + round));
  for (unsigned at = 0; at < MOST; at++) CHECK(weights[at] == (float)(at + round));
  for (unsigned at = 0; at < 7; at++) CHECK(few[at] == (double)(at * round));
  for (unsigned at = 0; at < 300; at++) CHECK(many[at] == (double)(at * 3 + round));
}

static void wrong_arguments(void) {
  gaspi_coll_piece_t pieces[PIECES];
  gaspi_coll_request_t request;

  fill(pieces, 0, 0);
  NULLPTR(gaspi_coll_broadcast_list(NULL, 1, 0, ALL, NULL, LIMIT));
  NULLPTR(gaspi_coll_broadcast_list_start(NULL, 1, 0, ALL, NULL, &request, LIMIT));
  NULLPTR(gaspi_coll_broadcast_list_start(pieces, PIECES, 0, ALL, NULL, NULL, LIMIT));
  pieces[1].count = 1;
  NULLPTR(gaspi_coll_broadcast_list(pieces, PIECES, 0, ALL, NULL, LIMIT));
  pieces[1].count = 0;
  pieces[3].reserved = 1;
  CHECK_ERR(gaspi_coll_broadcast_list(pieces, PIECES, 0, ALL, NULL, LIMIT), GASPI_ERROR);
  pieces[3].reserved = 0;
  pieces[3].datatype = GASPI_COLL_TYPE_USER;
  CHECK_ERR(gaspi_coll_broadcast_list(pieces, PIECES, 0, ALL, NULL, LIMIT), GASPI_ERROR);
  pieces[3].datatype = GASPI_COLL_TYPE_F64;
  pieces[3].count = UINT64_MAX / 4;
  CHECK_ERR(gaspi_coll_broadcast_list(pieces, PIECES, 0, ALL, NULL, LIMIT), GASPI_ERR_INV_NUM);
  pieces[3].count = 7;
  pieces[3].data = &weights[5];
  CHECK_ERR(gaspi_coll_broadcast_list(pieces, PIECES, 0, ALL, NULL, LIMIT), GASPI_ERR_INV_SIZE);
  pieces[3].data = few;
  CHECK_ERR(gaspi_coll_broadcast_list(pieces, PIECES, 0xffff, ALL, NULL, LIMIT),
            GASPI_ERR_INV_RANK);
  CHECK_ERR(gaspi_coll_broadcast_list(pieces, PIECES, 0, 99, NULL, LIMIT), GASPI_ERR_INV_GROUP);
}

int main(void) {
  gaspi_coll_options_t options = GASPI_COLL_OPTIONS_INIT;
  gaspi_coll_piece_t pieces[PIECES];
  gaspi_coll_request_t request;

  job_start();
  CHECK_OK(gaspi_coll_barrier(ALL, NULL, LIMIT));
  wrong_arguments();
  for (unsigned round = 0; round < 6; round++) {
    const gaspi_rank_t root = (gaspi_rank_t)(round % ranks);

    fill(pieces, my_rank == root, round);
    options.background = round % 4 == 1;
    if (round % 2 == 0) {
      CHECK_OK(gaspi_coll_broadcast_list(pieces, PIECES, root, ALL, NULL, LIMIT));
    } else {
      CHECK_OK(
        gaspi_coll_broadcast_list_start(pieces, PIECES, root, ALL, &options, &request, LIMIT));
      CHECK_OK(gaspi_coll_wait(request, LIMIT));
    }
    check(round);
  }
  CHECK_OK(gaspi_coll_broadcast_list(NULL, 0, 0, ALL, NULL, LIMIT));
  job_end();
  return 0;
}
