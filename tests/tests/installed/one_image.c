/* Linked with the old and the new name of the library: counts how often its code is mapped. */
#include <GASPI.h>

#include <stdio.h>
#include <string.h>

int main(void) {
  char line[4096];
  int images = 0;
  float version = 0;
  FILE *maps = fopen("/proc/self/maps", "r");

  if (maps == NULL || gaspi_version(&version) != GASPI_SUCCESS) {
    return 1;
  }
  while (fgets(line, sizeof line, maps) != NULL) {
    const int is_ours = strstr(line, "libgaspi") != NULL || strstr(line, "libGPI2") != NULL;
    images += is_ours && strstr(line, " r-xp ") != NULL;
  }
  fclose(maps);
  if (images != 1) {
    fprintf(stderr, "the library is mapped %d times\n", images);
    return 1;
  }
  return 0;
}
