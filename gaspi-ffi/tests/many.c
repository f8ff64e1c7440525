/* More different mistakes than are told at once. */
#include <GASPI.h>

int main(void) {
  gaspi_pointer_t memory;
  int i;
  if (gaspi_proc_init(GASPI_BLOCK) != GASPI_SUCCESS) {
    return 1;
  }
  for (i = 0; i < 200; i++) {
    if (gaspi_segment_ptr((gaspi_segment_id_t)i, &memory) != GASPI_ERR_INV_SEG) {
      return 2;
    }
  }
  return gaspi_proc_term(GASPI_BLOCK) == GASPI_SUCCESS ? 0 : 3;
}
