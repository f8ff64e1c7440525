/* build: compile */
/* language: c++ */
/*
 * GASPI_Ext.h can be included alone, and twice.
 */
#include <GASPI_Ext.h>
#include <GASPI_Ext.h>

using not_empty = int;
