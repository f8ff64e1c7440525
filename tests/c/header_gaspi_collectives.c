/* build: compile */
/*
 * gaspi_collectives.h can be included alone, and twice.
 */
#include <gaspi_collectives.h>
#include <gaspi_collectives.h>

typedef int not_empty;
