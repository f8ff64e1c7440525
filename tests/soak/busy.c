#include "soak.h"
void busy(uint64_t seconds) { (void)seconds; }
