/* build: compile */
/* language: c++ */
/*
 * GASPI.h can be included alone, and twice.
 */
#include <GASPI.h>
#include <GASPI.h>

using not_empty = int;
