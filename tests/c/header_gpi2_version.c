/* build: compile */
/*
 * GPI2_VERSION.h can be included alone, and twice.
 */
#include <GPI2_VERSION.h>
#include <GPI2_VERSION.h>

typedef int not_empty;
