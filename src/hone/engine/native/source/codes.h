// Numbers as codes: of 8 bits, or of 16 in two planes of bytes, times a scale of their row. Sums of products of codes
// are whole numbers, exact in any order; what is done to them in float32 is done number by number. So results are equal
// bits on every instruction set that has a fused multiply-add.
//
// Activations are unsigned, 128 more than they count, because vpdpbusd and its like multiply unsigned by signed bytes;
// the surplus is 128 times the sum of a feature's weights, and is taken off again. No sum saturates: AVX2 without
// VNNI multiplies in 16 bits and adds in 32, never by vpmaddubsw.
#pragma once
#include "engine.h"
#include "vec.h"

namespace hone {
namespace HONE_ISA {

constexpr float MOST_CODE = 127, MOST_WIDE_CODE = 32512;  // 127 * 256: the upper byte of 16 bits stays within 127

typedef uint8_t vb_there __attribute__((vector_size(LANES), may_alias, aligned(1)));

// The lowest byte of each word.
HONE_INLINE void store_bytes(void* p, vu words) {
#if defined(__AVX512F__)
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(words)));
#elif defined(__AVX2__)  // compilers take the words apart one by one
  const __m256i lowest = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                          0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(words), lowest);
  _mm_storel_epi64(static_cast<__m128i*>(p),
                   _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
#else
  *static_cast<vb_there*>(p) = __builtin_convertvector(words, vb_there);
#endif
}

HONE_INLINE vu spread_word(const void* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, 4);
  return word - vu{};
}

// The largest magnitude of `count` numbers, a multiple of LANES. Compared as bits, so that infinity, and what is not a
// number, count as larger than all others.
HONE_INLINE float largest(const float* x, int count) {
  vi most = {};
  for (int i = 0; i < count; i += LANES) {
    const vi bits = reinterpret_cast<vi>(load(x + i)) & 0x7fffffff;
    most = bits > most ? bits : most;
  }
  alignas(64) int32_t part[LANES];
  *reinterpret_cast<vi*>(part) = most;
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) part[i] = part[i] > part[i + half] ? part[i] : part[i + half];
  float found;
  __builtin_memcpy(&found, part, 4);
  return found;
}

// How numbers of at most `most` become codes of at most `codes`, and what a code counts. Numbers below 1e-30 are 0.
struct Coding {
  float scale, inverse;
  Coding() = default;
  Coding(float most, float codes) : scale(most / codes), inverse(most < 1e-30f ? 0.0f : codes / most) {}
};

// The nearest whole number to x * inverse, ties to even, plus `zero`: in the lower 16 bits of each word.
HONE_INLINE vu encode(vf x, float inverse, int zero) {
  return reinterpret_cast<vu>(fma(x, spread(inverse), spread(12582912.0f + float(zero))));  // 1.5 * 2^23
}

// Codes of 8 bits, 128 more than they count; returns what a code counts.
HONE_INLINE float encode_row(const float* x, int count, uint8_t* codes) {
  const Coding coding(largest(x, count), MOST_CODE);
  for (int i = 0; i < count; i += LANES) store_bytes(codes + i, encode(load(x + i), coding.inverse, 128));
  return coding.scale;
}

// Codes of 16 bits, upper and lower bytes apart, each 128 more than it counts.
HONE_INLINE float encode_wide_row(const float* x, int count, uint8_t* upper, uint8_t* lower) {
  const Coding coding(largest(x, count), MOST_WIDE_CODE);
  for (int i = 0; i < count; i += LANES) {
    const vu word = encode(load(x + i), coding.inverse, 128 * 256 + 128);
    store_bytes(upper + i, word >> 8);
    store_bytes(lower + i, word);
  }
  return coding.scale;
}

#if HONE_LANES == 8 && !defined(__AVXVNNI__)
#define HONE_WIDENS_CODES 1

// The first and third of four bytes in each word, and the second and fourth, as pairs of 16 bits.
struct Halves {
  vu even, odd;
};
HONE_INLINE Halves unsigned_halves(vu words) { return {words & 0x00ff00ff, words >> 8 & 0x00ff00ff}; }
HONE_INLINE Halves signed_halves(vu words) {
  const __m256i pairs = reinterpret_cast<__m256i>(words);
  return {reinterpret_cast<vu>(_mm256_srai_epi16(_mm256_slli_epi16(pairs, 8), 8)),
          reinterpret_cast<vu>(_mm256_srai_epi16(pairs, 8))};
}
HONE_INLINE vi dot(vi sums, const Halves& left, const Halves& right) {
  const __m256i even = _mm256_madd_epi16(reinterpret_cast<__m256i>(left.even), reinterpret_cast<__m256i>(right.even));
  const __m256i odd = _mm256_madd_epi16(reinterpret_cast<__m256i>(left.odd), reinterpret_cast<__m256i>(right.odd));
  return sums + reinterpret_cast<vi>(_mm256_add_epi32(even, odd));
}
typedef Halves SignedCodes;
HONE_INLINE SignedCodes signed_codes(vu words) { return signed_halves(words); }
#else
typedef vu SignedCodes;  // as they lie in memory
HONE_INLINE SignedCodes signed_codes(vu words) { return words; }
#endif

// `sums` and the products of four unsigned bytes in each word of `left` and four signed ones in `right`.
HONE_INLINE vi dot(vi sums, vu left, vu right) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<vi>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(left),
                                                  reinterpret_cast<__m512i>(right)));
#elif defined(__AVXVNNI__)
  return reinterpret_cast<vi>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sums), reinterpret_cast<__m256i>(left),
                                                      reinterpret_cast<__m256i>(right)));
#elif defined(__AVX512F__)
  const __m512i a = reinterpret_cast<__m512i>(left), b = reinterpret_cast<__m512i>(right);
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(a, _mm512_set1_epi16(0xff)),
                                         _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));
  return sums + reinterpret_cast<vi>(_mm512_add_epi32(even, odd));
#elif defined(HONE_WIDENS_CODES)
  return dot(sums, unsigned_halves(left), signed_halves(right));
#else
  for (int byte = 0; byte < 4; ++byte) {
    const vu a = (left >> (8 * byte)) & 0xff;
    const vi b = reinterpret_cast<vi>(right << (24 - 8 * byte)) >> 24;
    sums = reinterpret_cast<vi>(reinterpret_cast<vu>(sums) + a * reinterpret_cast<vu>(b));
  }
  return sums;
#endif
}

// Rows of a tile of registers: their sums, two each, are held while the inputs go by.
#if HONE_LANES == 16
constexpr int CODE_ROWS = 12;
#elif defined(__AVXVNNI__)
constexpr int CODE_ROWS = 6;
#else
constexpr int CODE_ROWS = 4;
#endif

template <int ROWS>
static void tile_codes(const uint8_t* a, int64_t stride, const int8_t* panel, int k, int32_t* c, const Ahead& ahead) {
  for (int column = 0; column < PANEL; column += 2 * LANES) {
    vi sums[ROWS][2] = {};
    const int8_t* b = panel + 4 * column;
    for (int i = 0; i < k; i += 4, b += 4 * PANEL) {
      ahead.fetch(i / 4);
      const vu left = *reinterpret_cast<const vu*>(b), right = *reinterpret_cast<const vu*>(b + 4 * LANES);
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; ++row) {
        const vu x = spread_word(a + row * stride + i);
        sums[row][0] = dot(sums[row][0], x, left);
        sums[row][1] = dot(sums[row][1], x, right);
      }
    }
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) {
      *reinterpret_cast<vi*>(c + row * PANEL + column) = sums[row][0];
      *reinterpret_cast<vi*>(c + row * PANEL + column + LANES) = sums[row][1];
    }
  }
}

template <int MOST>
static void any_code_tile(const uint8_t* a, int64_t stride, int rows, const int8_t* panel, int k, int32_t* c,
                          const Ahead& ahead) {
  if constexpr (MOST > 1)
    if (rows < MOST) return any_code_tile<MOST - 1>(a, stride, rows, panel, k, c, ahead);
  tile_codes<MOST>(a, stride, panel, k, c, ahead);
}

#if defined(HONE_WIDENS_CODES)
constexpr int WIDE_INPUTS = 128;  // inputs that are widened at once: weights and rows of 8 KiB each
constexpr int WIDE_STEPS = WIDE_INPUTS / 4;

struct WideCodes {
  Halves weights[WIDE_STEPS][PANEL / LANES];
  uint32_t even[MOST_TILE_ROWS][WIDE_STEPS], odd[MOST_TILE_ROWS][WIDE_STEPS];
};

// Adds the products of `steps` times four inputs of ROWS rows to c [ROWS, 32].
template <int ROWS>
static void add_wide(const WideCodes& wide, int row, int steps, int32_t* c) {
  for (int column = 0; column < PANEL / LANES; column += 2) {
    vi sums[ROWS][2];
    vi* to = reinterpret_cast<vi*>(c) + column;
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
      for (int u = 0; u < 2; ++u) sums[r][u] = to[r * (PANEL / LANES) + u];
    for (int i = 0; i < steps; ++i) {
      const Halves &left = wide.weights[i][column], &right = wide.weights[i][column + 1];
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) {
        const Halves x = {wide.even[row + r][i] - vu{}, wide.odd[row + r][i] - vu{}};
        sums[r][0] = dot(sums[r][0], x, left);
        sums[r][1] = dot(sums[r][1], x, right);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
      for (int u = 0; u < 2; ++u) to[r * (PANEL / LANES) + u] = sums[r][u];
  }
}

template <int MOST>
static void add_wide_rows(const WideCodes& wide, int row, int rows, int steps, int32_t* c) {
  if constexpr (MOST > 1)
    if (rows < MOST) return add_wide_rows<MOST - 1>(wide, row, rows, steps, c);
  add_wide<MOST>(wide, row, steps, c);
}

// Without instructions for bytes, codes are widened to 16 bits in the first cache, once for all rows of a tile.
static void wide_code_tile(const uint8_t* a, int64_t stride, int rows, const int8_t* panel, int k, int32_t* c,
                           const Ahead& ahead) {
  if (rows <= CODE_ROWS) return any_code_tile<CODE_ROWS>(a, stride, rows, panel, k, c, ahead);
  alignas(64) WideCodes wide;
  __builtin_memset(c, 0, size_t(rows) * PANEL * sizeof(int32_t));
  const int parts = (rows + CODE_ROWS - 1) / CODE_ROWS;
  for (int from = 0; from < k; from += WIDE_INPUTS) {
    const int steps = (k - from < WIDE_INPUTS ? k - from : WIDE_INPUTS) / 4;
    const vu* weights = reinterpret_cast<const vu*>(panel + int64_t(from) * PANEL);
    for (int i = 0; i < steps; ++i) {
      ahead.fetch(from / 4 + i);
      for (int u = 0; u < PANEL / LANES; ++u) wide.weights[i][u] = signed_halves(weights[i * (PANEL / LANES) + u]);
    }
    for (int row = 0; row < rows; ++row)
      for (int i = 0; i < steps; i += LANES) {
        const Halves x = unsigned_halves(*reinterpret_cast<const vu_there*>(a + row * stride + from + 4 * i));
        *reinterpret_cast<vu*>(wide.even[row] + i) = x.even;
        *reinterpret_cast<vu*>(wide.odd[row] + i) = x.odd;
      }
    for (int part = 0; part < parts; ++part) {
      const int first = rows * part / parts, last = rows * (part + 1) / parts;
      add_wide_rows<CODE_ROWS>(wide, first, last - first, steps, c + first * PANEL);
    }
  }
}
#endif

}  // namespace HONE_ISA
}  // namespace hone
