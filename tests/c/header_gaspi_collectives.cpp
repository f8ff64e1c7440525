/* build: compile */
/* language: c++ */
/*
 * gaspi_collectives.h can be included alone, and twice.
 */
#include <gaspi_collectives.h>
#include <gaspi_collectives.h>

using not_empty = int;
