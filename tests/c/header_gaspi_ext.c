/* build: compile */
/*
 * GASPI_Ext.h can be included alone, and twice.
 */
#include <GASPI_Ext.h>
#include <GASPI_Ext.h>

typedef int not_empty;
