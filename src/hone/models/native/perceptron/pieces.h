// float32 numbers as three bfloat16 pieces, laid out in tiles, and products of such tiles.
//
// x = high + middle + low: each piece has the next 8 of the 24 significant bits, cut off and not rounded, so that all
// three are exact. Of the nine products of two numbers six are taken; what is left out is below 2^-23 of the product
// (Henry, Tang and Heinecke, 2019). The small ones are summed first, and the great ones onto them: the sum is rounded as
// often as that of float32 products.
#pragma once
#include "tiles.h"

namespace hone {

using tiles::DEEP;
using tiles::LINE;
using tiles::SIDE;
using tiles::TILE;  // as [16][32] on the left, as [16 pairs][16][2] on the right
using tiles::turn;

// Each piece in the upper half of its word.
struct Split {
  __m512i piece[3];
  explicit Split(__m512 x) {
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
    piece[0] = _mm512_and_si512(_mm512_castps_si512(x), upper);
    const __m512 rest = _mm512_sub_ps(x, _mm512_castsi512_ps(piece[0]));
    piece[1] = _mm512_and_si512(_mm512_castps_si512(rest), upper);
    piece[2] = _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(piece[1])));
  }
};

// Upper halves of [16] and [16] words, one after the other: [32] bfloat16.
static inline __m512i in_order(__m512i first, __m512i second) {
  alignas(64) static const uint16_t ODD[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                               33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(first, _mm512_load_si512(ODD), second);
}

// The same, each word with the upper half of `first` in its lower half.
static inline __m512i in_pairs(__m512i first, __m512i second) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(first, 16), second);
}

enum Part { SMALL, GREAT };  // of the products

// Two tiles below each other on the left times two beside each other on the right, over `steps` of 32, added to the
// tiles of sums. Tiles [steps][3][2] of both.
template <Part PART>
static inline __attribute__((always_inline)) void add_products(const bf16* left, const bf16* right, int64_t steps) {
#define HONE_LEFT(piece)                                                   \
  _tile_loadd(4, left + (step * 3 + (piece)) * 2 * TILE, LINE);            \
  _tile_loadd(5, left + (step * 3 + (piece)) * 2 * TILE + TILE, LINE);
#define HONE_RIGHT(piece)                                                  \
  _tile_loadd(6, right + (step * 3 + (piece)) * 2 * TILE, LINE);           \
  _tile_loadd(7, right + (step * 3 + (piece)) * 2 * TILE + TILE, LINE);
#define HONE_PRODUCT       \
  _tile_dpbf16ps(0, 4, 6); \
  _tile_dpbf16ps(1, 4, 7); \
  _tile_dpbf16ps(2, 5, 6); \
  _tile_dpbf16ps(3, 5, 7);
  for (int64_t step = 0; step < steps; ++step) {
    HONE_LEFT(0)
    if (PART == GREAT) {
      HONE_RIGHT(0)
      HONE_PRODUCT
    } else {
      HONE_RIGHT(2)
      HONE_PRODUCT
      HONE_RIGHT(1)
      HONE_PRODUCT
      HONE_LEFT(1)
      HONE_PRODUCT
      HONE_RIGHT(0)
      HONE_PRODUCT
      HONE_LEFT(2)
      HONE_PRODUCT
    }
  }
#undef HONE_LEFT
#undef HONE_RIGHT
#undef HONE_PRODUCT
}

// What they come to: c [32][32], rows `width` apart.
static void multiply(const bf16* left, const bf16* right, int64_t steps, float* c, int64_t width) {
  __asm__ volatile("" ::: "memory");  // compilers do not know that a tile is loaded from what was just stored
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  add_products<SMALL>(left, right, steps);
  add_products<GREAT>(left, right, steps);
  _tile_stored(0, c, width * 4);
  _tile_stored(1, c + SIDE, width * 4);
  _tile_stored(2, c + SIDE * width, width * 4);
  _tile_stored(3, c + SIDE * width + SIDE, width * 4);
}

}  // namespace hone
