/* build: compile */
/* language: c++ */
/*
 * GASPI_types.h can be included alone, and twice.
 */
#include <GASPI_types.h>
#include <GASPI_types.h>

using not_empty = int;
