#include "soak.h"
void cut(void) {}
