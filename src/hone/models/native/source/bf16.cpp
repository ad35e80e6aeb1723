// Compiled for processors with AVX-512 BF16: the table, and products of numbers that are rounded to bfloat16.
#include "isa.cpp"
#include "product.h"
