/* A rank with a bit of everything that the log tells about, and one mistake made twice. */
#include <GASPI.h>
#include <stdlib.h>

#define MUST(call) \
  if ((call) != GASPI_SUCCESS) return __LINE__ % 256

int main(void) {
  gaspi_config_t config;
  gaspi_group_t group;
  gaspi_rank_t ranks, rank;
  void *own = malloc(12288);
  MUST(gaspi_config_get(&config));
  config.net_info = 1;
  MUST(gaspi_config_set(config));
  MUST(gaspi_proc_init(GASPI_BLOCK));
  MUST(gaspi_proc_num(&ranks));
  MUST(gaspi_segment_create(3, 8192, GASPI_GROUP_ALL, GASPI_BLOCK, GASPI_MEM_INITIALIZED));
  MUST(gaspi_segment_create(4, 4194304, GASPI_GROUP_ALL, GASPI_BLOCK, GASPI_MEM_UNINITIALIZED));
  MUST(gaspi_segment_use(5, own, 12288, GASPI_GROUP_ALL, GASPI_BLOCK, 0));
  MUST(gaspi_group_create(&group));
  for (rank = 0; rank < ranks; rank++) {
    MUST(gaspi_group_add(group, rank));
  }
  MUST(gaspi_group_commit(group, GASPI_BLOCK));
  if (gaspi_proc_num(NULL) == GASPI_SUCCESS || gaspi_proc_num(NULL) == GASPI_SUCCESS) return 1;
  MUST(gaspi_barrier(group, GASPI_BLOCK));
  MUST(gaspi_segment_delete(5));
  free(own);
  MUST(gaspi_proc_term(GASPI_BLOCK));
  return 0;
}
