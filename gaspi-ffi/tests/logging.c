/* The same three mistakes again and again, and a text before init. */
#include <GASPI.h>
#include <stddef.h>

int main(void) {
  gaspi_rank_t rank;
  int i;
  gaspi_printf("before init %d\n", 7);
  for (i = 0; i < 100; i++) {
    if (gaspi_proc_rank(&rank) != GASPI_ERR_NOINIT) {
      return 1;
    }
  }
  if (gaspi_proc_init(GASPI_BLOCK) != GASPI_SUCCESS) {
    return 2;
  }
  for (i = 0; i < 100; i++) {
    if (gaspi_proc_num(NULL) != GASPI_ERR_NULLPTR) {
      return 3;
    }
    gaspi_printf_to(7, "never seen\n");
  }
  return gaspi_proc_term(GASPI_BLOCK) == GASPI_SUCCESS ? 0 : 4;
}
