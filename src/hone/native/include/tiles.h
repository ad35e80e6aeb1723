// Products by AMX tiles: of bfloat16 numbers, and of float32 numbers that are cut into three bfloat16 pieces each.
// Compiled with -mamx-tile, -mamx-bf16 and the flags of AVX-512; without tiles there is the layout alone.
//
// A float32 number is h + m + l, each the nearest bfloat16 number to what the ones before it leave, exactly: 24 bits
// are 8 + 8 + 8. Of the nine products of two such numbers six are taken, lh, mh, mm, hm, hl and hh; the others are
// below 2^-23 of the whole (Henry, Tang, Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for
// higher-precision computations", 2019). Every 128 products are added up from zero, the small ones first, and then to
// the sum: it is rounded at its own size less often than in a loop over single numbers.
//
// What is not finite gives what is not a number: infinity less its first piece is. Numbers from 3.396e38 on count as
// infinite. Tiles take pieces below 2^-126 for zero, so that of a number below 2^-102 the last bits are lost, and sums
// below 2^-126 are zero.
//
// 32 of the inner dimension are one step. A tile holds 16 rows of it on the left, and 16 columns on the right, in words
// of two numbers: number i of the step together with number i + 16, so that words are made by shifts alone.
#pragma once
#include <immintrin.h>

#include "basics.h"

namespace hone {
namespace tiles {

constexpr int SIDE = 16, DEEP = 2 * SIDE;  // rows of a tile (or columns of a product), and inner numbers of a step
constexpr int TILE = SIDE * DEEP;          // numbers in a tile
constexpr int PIECES = 3;                  // of a float32 number that keeps all its bits
constexpr int64_t CHUNK = 4;               // steps whose sums begin at zero; a panel of them is 24 KiB
constexpr int64_t LINE = SIDE * 4;         // bytes of a tile's row
constexpr int64_t TILE_BYTES = TILE * 2;

#if defined(__AMX_TILE__)
struct alignas(64) Config {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};  // the palette has 8 tiles
};

// In static memory: compilers take _tile_loadconfig to read no more than the first bytes of a local.
static const Config CONFIG;

// Around products of one thread; between them another library of the thread may have tiles of its own.
static inline void enter() { _tile_loadconfig(&CONFIG); }
static inline void leave() { _tile_release(); }
#endif

// --- laying numbers out in tiles ---

// [16][16] words, turned.
static inline void turn(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

// Two float32 numbers in each place -> words of their pieces, at `to`, `to` + TILE and `to` + 2 TILE.
// The last piece is exact without rounding, and cutting bits off leaves what is not a number what it is.
static inline __attribute__((always_inline)) void split(__m512i low, __m512i high, bf16* to) {
  const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(int(0xffff0000));
  const auto rounded = [&](__m512i x) { return _mm512_and_si512(_mm512_add_epi32(x, half), upper); };
  const auto less = [](__m512i x, __m512i y) {
    return _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y)));
  };
  const auto word = [&](__m512i x, __m512i y) {  // the upper halves of both: (x >> 16) | (y & upper)
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(x, 16), y, upper, 0xf8);
  };
  const __m512i h0 = rounded(low), h1 = rounded(high), r0 = less(low, h0), r1 = less(high, h1);
  const __m512i m0 = rounded(r0), m1 = rounded(r1);
  _mm512_store_si512(to, word(h0, h1));
  _mm512_store_si512(to + TILE, word(m0, m1));
  _mm512_store_si512(to + 2 * TILE, word(less(r0, m0), less(r1, m1)));
}

// The nearest bfloat16 numbers to two float32 numbers in each place -> their words, at `to`.
static inline __attribute__((always_inline)) void round_words(__m512i low, __m512i high, bf16* to) {
#if defined(__AVX512BF16__)
  const auto rounded = [](__m512i x) {
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(x)));
  };
  _mm512_store_si512(to, _mm512_or_si512(rounded(low), _mm512_slli_epi32(rounded(high), 16)));
#endif
}

// Numbers as float32, of either type.
static inline __m512i numbers(__mmask16 there, const float* at) {
  return _mm512_castps_si512(_mm512_maskz_loadu_ps(there, at));
}
static inline __m512i numbers(__mmask16 there, const bf16* at) {
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, at)), 16);
}

// 16 rows of 16 numbers, of which `rows` and `columns` are there and the rest zeros.
template <class T>
struct Block {
  const T* at;
  int64_t stride;
  int rows, columns;

  __attribute__((always_inline)) __m512i row(int i) const {
    const __mmask16 there = __mmask16((1u << columns) - 1u);
    return i < rows ? numbers(there, at + i * stride) : _mm512_setzero_si512();
  }
  // Asks for what lies 32 rows on, which is most often read next.
  __attribute__((always_inline)) __m512i whole_row(int i) const {
    _mm_prefetch(reinterpret_cast<const char*>(at + (i + DEEP) * stride), _MM_HINT_T0);
    return numbers(__mmask16(0xffff), at + i * stride);
  }
  __attribute__((always_inline)) bool whole() const { return rows >= SIDE && columns >= SIDE; }
};

// A tile of each piece, [COUNT][16][16][2], of the numbers `low` of 16 inner places and `high` of the next 16: three
// pieces, or one that is rounded. On the right rows of a block are inner places, on the left columns are; `turned`
// where they are the other way round.
template <int COUNT, bool TURNED, class T>
static inline void lay(const Block<T>& low, const Block<T>& high, bf16* to) {
  __m512i r[2][SIDE];
  if (low.whole() && high.whole())
    for (int i = 0; i < SIDE; ++i) {
      r[0][i] = low.whole_row(i);
      r[1][i] = high.whole_row(i);
    }
  else
    for (int i = 0; i < SIDE; ++i) {
      r[0][i] = low.row(i);
      r[1][i] = high.row(i);
    }
  if (TURNED) {
    turn(r[0]);
    turn(r[1]);
  }
  for (int i = 0; i < SIDE; ++i)
    if (COUNT == 1)
      round_words(r[0][i], r[1][i], to + i * DEEP);
    else
      split(r[0][i], r[1][i], to + i * DEEP);
}

// Members of two rows side by side: [16] words, of `low` and `high` [16].
static inline __m512i pairs(const bf16* low, const bf16* high) {
  const auto words = [](const bf16* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  return _mm512_or_si512(words(low), _mm512_slli_epi32(words(high), 16));
}

// --- products ---

// Where the tiles of one factor lie, in bytes.
struct Side {
  const void* at;
  int64_t line;    // from a row of a tile to the next
  int64_t second;  // from a tile to its neighbour: 16 rows below on the left, 16 columns on on the right
  int64_t step;    // to the next 32 inner numbers
  int64_t piece;   // from h to m, and from m to l
};

// Tiles of two neighbours of one step, as `lay` wrote them: [steps][2][COUNT pieces].
template <int COUNT>
static inline Side laid(const bf16* at) {
  return {at, LINE, COUNT * TILE_BYTES, 2 * COUNT * TILE_BYTES, TILE_BYTES};
}

#if defined(__AMX_TILE__)

// Sums in tiles 0 to 3: [tall][32] of the left's `TALL` and the right's two tiles.
template <int TALL>
static inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if (TALL < 2) return;
  _tile_zero(2);
  _tile_zero(3);
}
// `c` has rows `line` bytes apart; 0: all rows are the same.
template <int TALL>
static inline void load_sums(const float* c, int64_t line) {
  const char* below = reinterpret_cast<const char*>(c) + SIDE * line;
  _tile_loadd(0, c, line);
  _tile_loadd(1, c + SIDE, line);
  if (TALL < 2) return;
  _tile_loadd(2, below, line);
  _tile_loadd(3, below + LINE, line);
}
template <int TALL>
static inline void store_sums(float* c, int64_t line) {
  char* below = reinterpret_cast<char*>(c) + SIDE * line;
  _tile_stored(0, c, line);
  _tile_stored(1, c + SIDE, line);
  if (TALL < 2) return;
  _tile_stored(2, below, line);
  _tile_stored(3, below + LINE, line);
}

// One product of all tiles that are loaded: 4 and 5 on the left, 6 and 7 on the right.
template <int TALL>
static inline __attribute__((always_inline)) void add_products() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (TALL < 2) return;
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Pieces (or the only ones) of both sides at one step.
template <int TALL>
struct Loaded {
  const Side &left, &right;
  int64_t step;

  __attribute__((always_inline)) const Loaded& take_left(int piece) const {
    const char* a = static_cast<const char*>(left.at) + step * left.step + piece * left.piece;
    _tile_loadd(4, a, left.line);
    if (TALL == 2) _tile_loadd(5, a + left.second, left.line);
    return *this;
  }
  __attribute__((always_inline)) const Loaded& take_right(int piece) const {
    const char* b = static_cast<const char*>(right.at) + step * right.step + piece * right.piece;
    _tile_loadd(6, b, right.line);
    _tile_loadd(7, b + right.second, right.line);
    return *this;
  }
};

struct Nothing {
  void operator()(int64_t) const {}
};

// Of bfloat16 numbers: the sums go on over `steps`. `fetch(step)` is called before each.
template <int TALL, class Fetch>
static inline void multiply(const Side& left, const Side& right, int64_t steps, const Fetch& fetch) {
  for (int64_t step = 0; step < steps; ++step) {
    fetch(step);
    Loaded<TALL>{left, right, step}.take_left(0).take_right(0);
    add_products<TALL>();
  }
}

// Of float32 numbers in pieces: the sums of these steps alone, small products before large ones.
template <int TALL, class Fetch>
static inline void multiply_pieces(const Side& left, const Side& right, int64_t steps, const Fetch& fetch) {
  zero_sums<TALL>();
  for (int64_t step = 0; step < steps; ++step) {  // from one product to the next a single side changes
    fetch(step);
    const Loaded<TALL> here{left, right, step};
    here.take_left(2).take_right(0);
    add_products<TALL>();  // lh
    here.take_left(1);
    add_products<TALL>();  // mh
    here.take_right(1);
    add_products<TALL>();  // mm
    here.take_left(0);
    add_products<TALL>();  // hm
    here.take_right(2);
    add_products<TALL>();  // hl
  }
  for (int64_t step = 0; step < steps; ++step) {
    Loaded<TALL>{left, right, step}.take_left(0).take_right(0);
    add_products<TALL>();  // hh
  }
}

// Of float32 numbers in pieces, to `c` [16 TALL][32] with rows `line` numbers apart: `c` becomes the sums, or with
// `add` gains them. An element is the sum, in order, of those of CHUNK steps each: it depends on its own row and column
// alone, whatever TALL is. Chunks may be given in several calls, the first CHUNK * n steps before the others.
template <int TALL, class Fetch>
static inline void sum_pieces(Side left, Side right, int64_t steps, float* c, int64_t line, bool add,
                              const Fetch& fetch) {
  for (int64_t first = 0; first < steps; first += CHUNK, add = true) {
    const int64_t count = steps - first < CHUNK ? steps - first : CHUNK;
    multiply_pieces<TALL>(left, right, count, [&](int64_t step) { fetch(first + step); });
    left.at = static_cast<const char*>(left.at) + CHUNK * left.step;
    right.at = static_cast<const char*>(right.at) + CHUNK * right.step;
    if (!add) {
      store_sums<TALL>(c, line * 4);
      continue;
    }
    alignas(64) float part[TALL * SIDE][2 * SIDE];
    store_sums<TALL>(part[0], 2 * LINE);
    for (int i = 0; i < TALL * SIDE; ++i)
      for (int j = 0; j < 2 * SIDE; j += SIDE) {
        float* to = c + i * line + j;
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_load_ps(part[i] + j)));
      }
  }
}
#endif

}  // namespace tiles
}  // namespace hone
