/* build: compile */
/* language: c++ */
/*
 * PGASPI.h can be included alone, and twice.
 */
#include <PGASPI.h>
#include <PGASPI.h>

using not_empty = int;
