/* build: compile */
/*
 * GASPI_types.h can be included alone, and twice.
 */
#include <GASPI_types.h>
#include <GASPI_types.h>

typedef int not_empty;
