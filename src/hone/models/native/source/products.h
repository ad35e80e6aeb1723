// Small dense products of float32 in memory that lies in the cache: c = a b, or c += a b.
//
// Rows of b and c are contiguous; a is read by any two strides, so that it may be a transposed matrix. Every element
// of c adds up over k = 0, 1, 2 ...
#pragma once
#include "vec.h"

namespace hone {
namespace HONE_ISA {

constexpr int TILE = LANES == 16 ? 12 : 6;  // rows: two accumulators each fill the registers
constexpr int WIDE = 2 * LANES;             // columns
constexpr int PAD = 32;                     // widths are multiples of it, whatever WIDE is

struct Left {
  const float* data;
  int64_t row, k;  // strides
};

template <int ROWS>
static void tile(Left a, const float* b, int64_t b_row, int64_t k, float* c, int64_t c_row, bool add) {
  vf sums[ROWS][2] = {};
  if (add)
    for (int row = 0; row < ROWS; ++row) {
      sums[row][0] = load(c + row * c_row);
      sums[row][1] = load(c + row * c_row + LANES);
    }
  for (int64_t i = 0; i < k; ++i, b += b_row) {
    const vf left = load(b), right = load(b + LANES);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) {
      const vf x = spread(a.data[row * a.row + i * a.k]);
      sums[row][0] = fma(x, left, sums[row][0]);
      sums[row][1] = fma(x, right, sums[row][1]);
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; ++row) {
    store(c + row * c_row, sums[row][0]);
    store(c + row * c_row + LANES, sums[row][1]);
  }
}

// `rows` <= TILE rows, `columns` a multiple of WIDE.
static void strip(Left a, int rows, const float* b, int64_t b_row, int64_t columns, int64_t k, float* c, int64_t c_row,
                  bool add) {
  for (int64_t j = 0; j < columns; j += WIDE) switch (rows) {
#define HONE_ROWS(n)                                  \
  case n:                                             \
    tile<n>(a, b + j, b_row, k, c + j, c_row, add);   \
    break;
      HONE_ROWS(1)
      HONE_ROWS(2)
      HONE_ROWS(3)
      HONE_ROWS(4)
      HONE_ROWS(5)
      HONE_ROWS(6)
#if HONE_LANES == 16
      HONE_ROWS(7)
      HONE_ROWS(8)
      HONE_ROWS(9)
      HONE_ROWS(10)
      HONE_ROWS(11)
      HONE_ROWS(12)
#endif
#undef HONE_ROWS
    }
}

}  // namespace HONE_ISA
}  // namespace hone
