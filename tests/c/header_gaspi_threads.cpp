/* build: compile */
/* language: c++ */
/*
 * GASPI_Threads.h can be included alone, and twice.
 */
#include <GASPI_Threads.h>
#include <GASPI_Threads.h>

using not_empty = int;
