/* build: compile */
/*
 * GASPI.h can be included alone, and twice.
 */
#include <GASPI.h>
#include <GASPI.h>

typedef int not_empty;
