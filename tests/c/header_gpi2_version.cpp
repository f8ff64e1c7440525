/* build: compile */
/* language: c++ */
/*
 * GPI2_VERSION.h can be included alone, and twice.
 */
#include <GPI2_VERSION.h>
#include <GPI2_VERSION.h>

using not_empty = int;
