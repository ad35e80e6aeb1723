// float32 numbers as three bytes, laid out in tiles, and products of such tiles.
//
// The numbers of a row are taken for whole ones: x = X * step, X = h * 2^16 + m * 2^8 + l, where h, m and l are bytes
// with a sign (h has none where no number is negative), and the step is the row's greatest size over 2^23 (2^24).
// Products of bytes are summed exactly, those of one weight together; a tile takes twice as many of them as of bfloat16
// numbers (Ootomo, Ozaki and Yokota, "DGEMM on integer matrix multiplication unit", 2024). Of the nine products of two
// numbers six are taken, hh, hm, mh, hl, mm and lh, or eight: ml and lm, too.
//
// A sum is as exact as one in float32 by the greatest sizes in its row and in its column: where single numbers are
// larger than the others by orders of magnitude, the last bits of the others are lost. Rows of no number above 2.5e-32
// count as zeros; a row with a number that is not finite gives NaN.
//
// 64 of the inner dimension are one step. A word holds numbers i, 16 + i, 32 + i and 48 + i of it.
#pragma once
#include "tiles.h"

namespace hone {

using tiles::LINE;
using tiles::SIDE;
using tiles::turn;

constexpr int STEP = 64;           // inner numbers
constexpr int DIGITS = 3;
constexpr int BYTES = 16 * STEP;   // of a tile
constexpr float MOST = 8355700.0f, MOST_UNSIGNED = 16744300.0f;  // whole numbers that three bytes hold, and some room

static inline int64_t steps_of(int64_t size) { return (size + STEP - 1) / STEP; }

// As whole numbers sizes keep their order, and NaN is the greatest.
static inline __m512i greater(__m512i sizes, __m512 x) {
  return _mm512_max_epi32(sizes, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
}

// How numbers become whole ones, and sums of their products numbers again.
struct Scale {
  __m512 up, down;
  Scale(__m512i greatest, float most) {
    const __m512 size = _mm512_castsi512_ps(greatest);
    up = _mm512_div_ps(_mm512_set1_ps(most), size);
    const __m512 high = _mm512_mul_ps(size, _mm512_set1_ps(65536.0f / most));  // of the highest byte
    down = _mm512_add_ps(high, _mm512_sub_ps(size, size));                     // infinity gives NaN
  }
};

// Four numbers in each place -> words of their bytes at `to`, `to` + `piece` and `to` + 2 `piece`, the highest first.
static inline void put_digits(__m512 a, __m512 b, __m512 c, __m512 d, __m512 up, int8_t* to, int64_t piece) {
  const __m512i half = _mm512_set1_epi32(0x00808080), sign = _mm512_set1_epi8(int8_t(0x80));
  const auto whole = [&](__m512 x) {  // of bytes that are 128 too great, as without a sign
    return _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x, up)), half);
  };
  const auto put = [&](int8_t* at, __m512i words) { _mm512_store_si512(at, _mm512_xor_si512(words, sign)); };
  const __m512i p = whole(a), q = whole(b), r = whole(c), s = whole(d);
  const __mmask64 odd = 0xaaaaaaaaaaaaaaaaull;
  const __mmask32 upper = 0xaaaaaaaau;
  const __m512i outer = _mm512_mask_blend_epi8(odd, p, _mm512_slli_epi32(q, 8));  // l l h h
  const __m512i outer_next = _mm512_mask_blend_epi8(odd, r, _mm512_slli_epi32(s, 8));
  const __m512i middle = _mm512_mask_blend_epi8(odd, _mm512_srli_epi32(p, 8), q);  // m m
  const __m512i middle_next = _mm512_mask_blend_epi8(odd, _mm512_srli_epi32(r, 8), s);
  put(to, _mm512_mask_blend_epi16(upper, _mm512_srli_epi32(outer, 16), outer_next));
  put(to + piece, _mm512_mask_blend_epi16(upper, middle, _mm512_slli_epi32(middle_next, 16)));
  put(to + 2 * piece, _mm512_mask_blend_epi16(upper, outer, _mm512_slli_epi32(outer_next, 16)));
}

// One where x is positive, in byte `place` of its word.
static inline __m512i one_where_positive(__m512 x, int place) {
  return _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), 1 << 8 * place);
}

// Sums 2 TO and 2 TO + 1 gain the products of the left tile, in tile 6, and two neighbours on the right, whose bytes
// have no sign if UNSIGNED.
#define HONE_PRODUCT(tile, at)      \
  _tile_loadd(7, at, LINE);         \
  if (UNSIGNED) {                   \
    _tile_dpbsud(tile, 6, 7);       \
  } else {                          \
    _tile_dpbssd(tile, 6, 7);       \
  }
template <int TO, bool UNSIGNED>
static inline __attribute__((always_inline)) void add_bytes(const int8_t* right) {
  static_assert(TO >= 0 && TO < 3);
  if constexpr (TO == 0) {
    HONE_PRODUCT(0, right)
    HONE_PRODUCT(1, right + BYTES)
  } else if constexpr (TO == 1) {
    HONE_PRODUCT(2, right)
    HONE_PRODUCT(3, right + BYTES)
  } else {
    HONE_PRODUCT(4, right)
    HONE_PRODUCT(5, right + BYTES)
  }
}
#undef HONE_PRODUCT

// Left tiles [steps][LEFT] times two neighbours on the right, [steps][RIGHT][2]; LEFT, RIGHT bytes of a number, 3 or 1.
// UNSIGNED: the highest byte on the right. FINE: eight products and not six.
template <int LEFT, int RIGHT, bool UNSIGNED = false, bool FINE = false>
struct Sums {
  static_assert((LEFT == DIGITS || LEFT == 1) && (RIGHT == DIGITS || RIGHT == 1));
  static constexpr int LEVELS = DIGITS + FINE;  // weights: 1, 2^-8 ...
  alignas(64) int32_t of[LEVELS][SIDE * 2 * SIDE];

  // `meanwhile(step)` is called once for each step: the processor does it while tiles are multiplied.
  template <class Meanwhile>
  void multiply(const int8_t* left, const int8_t* right, int64_t steps, const Meanwhile& meanwhile) {
    __asm__ volatile("" ::: "memory");  // compilers do not know that a tile is loaded from what was just stored
    zero();
    for (int64_t step = 0; step < steps; ++step) {
      const int8_t *a = left + step * LEFT * BYTES, *b = right + step * RIGHT * 2 * BYTES;
      _tile_loadd(6, a, LINE);
      add_bytes<0, UNSIGNED>(b);
      if (RIGHT == DIGITS) add_bytes<1, false>(b + 2 * BYTES);
      if (RIGHT == DIGITS) add_bytes<2, false>(b + 4 * BYTES);
      if (LEFT == DIGITS) {
        _tile_loadd(6, a + BYTES, LINE);
        add_bytes<1, UNSIGNED>(b);
        if (RIGHT == DIGITS) add_bytes<2, false>(b + 2 * BYTES);
        _tile_loadd(6, a + 2 * BYTES, LINE);
        add_bytes<2, UNSIGNED>(b);
      }
      meanwhile(step);
    }
    store(0);
    store(1);
    store(2);
    if (!FINE) return;
    zero();
    for (int64_t step = 0; step < steps; ++step) {
      const int8_t *a = left + step * LEFT * BYTES, *b = right + step * RIGHT * 2 * BYTES;
      _tile_loadd(6, a + BYTES, LINE);
      add_bytes<0, false>(b + 4 * BYTES);
      _tile_loadd(6, a + 2 * BYTES, LINE);
      add_bytes<0, false>(b + 2 * BYTES);
    }
    _tile_stored(0, of[LEVELS - 1], 2 * LINE);
    _tile_stored(1, of[LEVELS - 1] + SIDE, 2 * LINE);
  }
  // Row i, columns from 16 `half` on, in units of the highest bytes' products.
  __m512 row(int i, int half) const {
    const auto level = [&](int n) { return _mm512_cvtepi32_ps(_mm512_load_si512(of[n] + (i * 2 + half) * SIDE)); };
    const __m512 less = _mm512_set1_ps(1.0f / 256);
    __m512 sum = level(LEVELS - 1);
    for (int n = LEVELS - 2; n >= 0; --n) sum = _mm512_fmadd_ps(sum, less, level(n));
    return sum;
  }

 private:
  void zero() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
  }
  void store(int n) {
    int32_t* to = of[n];
    if (n == 0) {
      _tile_stored(0, to, 2 * LINE);
      _tile_stored(1, to + SIDE, 2 * LINE);
    } else if (n == 1) {
      _tile_stored(2, to, 2 * LINE);
      _tile_stored(3, to + SIDE, 2 * LINE);
    } else {
      _tile_stored(4, to, 2 * LINE);
      _tile_stored(5, to + SIDE, 2 * LINE);
    }
  }
};

// One product after the other: `of(b)` are the left and the right tiles of number b, and `take(b, i, sums)` makes use
// of row i of it while the next one is multiplied.
template <class S, class Of, class Take>
static inline void multiply_all(int64_t blocks, int64_t steps, const Of& of, const Take& take) {
  S sums[2];
  const auto rows = [&](int64_t b, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) take(b, i, sums[b % 2]);
  };
  for (int64_t b = 0; b < blocks; ++b) {
    const auto [left, right] = of(b);
    sums[b % 2].multiply(left, right, steps, [&](int64_t step) {
      if (b > 0) rows(b - 1, step * SIDE / steps, (step + 1) * SIDE / steps);
    });
  }
  rows(blocks - 1, 0, SIDE);
}

struct Factors {
  const int8_t *left, *right;
};

}  // namespace hone
