// Compiled for processors with AMX: the table with conversions to bfloat16 in one instruction, and what `kernels.h` has
// beside it.
#include "isa.cpp"
#include "product.h"
#include "slope_amx.h"
