/* build: compile */
/*
 * PGASPI.h can be included alone, and twice.
 */
#include <PGASPI.h>
#include <PGASPI.h>

typedef int not_empty;
