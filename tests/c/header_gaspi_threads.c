/* build: compile */
/*
 * GASPI_Threads.h can be included alone, and twice.
 */
#include <GASPI_Threads.h>
#include <GASPI_Threads.h>

typedef int not_empty;
