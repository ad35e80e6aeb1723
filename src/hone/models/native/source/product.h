// Products of matrices: out = left right (+ bias, + out), by AMX tiles of float32 numbers, each as three bfloat16 pieces,
// and of numbers that are rounded to bfloat16, by tiles or the pairwise products of AVX-512.
//
// The floor: a product of 2 M N K operations is 12 M N K on bfloat16, of which a core was seen to do 2,900 GFLOP/s: 490
// GFLOP/s of float32, against 195 of torch by AVX-512. Cutting a number into pieces takes 0.13 ns where it lies in the
// cache, so that a row of 256 times [256, 256] needs 267 ns of products and 32 ns of cutting. What is reached is 180 GFLOP/s
// at 256 rows and 220 to 270 at 4,096, about half of the floor: pieces are 6 bytes a number, and what is read again of
// them has to lie in the second-level cache. The gradient of a weight cuts two large factors. Numbers that are rounded
// take a sixth of the products, and are rounded as they are laid out: no copy of a float32 weight is made.
//
// The inner dimension is cut into stretches at fixed places, and these into chunks (tiles.h): an element depends on its
// own row and column alone, and not on threads, nor on how many rows or columns there are. Edges are padded with zeros
// to 32 in each dimension, and cost what the padded product does: below 6 million multiplications torch is faster.
#pragma once
#include <cstring>

#include "kernels.h"
#include "tiles.h"

namespace hone {
namespace {

constexpr int64_t WIDE = 2 * tiles::SIDE;                      // rows and columns of what is summed at once
constexpr int64_t MOST_ROWS = 256;                             // of a task
constexpr int64_t GROUP = 4;                                   // panels that a block of rows meets one after another
constexpr int64_t ROOM = int64_t(1) << 21;                     // numbers of the right factor that are laid out at once
constexpr int64_t PAST = int64_t(1) << 19;                     // sums, from which on they are written past the cache
constexpr int LEFT_ROOM = 0, RIGHT_ROOM = 1;                   // of `scratch`

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

// A factor, `length` rows (or columns of the product) by `depth`, in COUNT pieces a number.
template <int COUNT>
struct Factor {
  static constexpr int64_t STEP = 2 * COUNT * tiles::TILE;  // numbers of a step of 32 rows or columns

  const void* at;
  bool half;  // bfloat16 numbers
  int64_t stride, length, depth;
  bool depth_first;  // it is stored as [depth, length]

  template <class T>
  tiles::Block<T> block(int64_t n, int64_t k) const {
    const auto here = [](int64_t left) { return int(left < 0 ? 0 : least(left, tiles::SIDE)); };
    const T* from = static_cast<const T*>(at);
    if (depth_first) return {from + k * stride + n, stride, here(depth - k), here(length - n)};
    return {from + n * stride + k, stride, here(length - n), here(depth - k)};
  }
  // 32 of its length from `n` on, and a step from `k` on: [2][pieces] tiles.
  template <bool TURNED, class T>
  void lay_step(int64_t n, int64_t k, bf16* room) const {
    for (int half_step = 0; half_step < 2; ++half_step, n += tiles::SIDE, room += STEP / 2)
      tiles::lay<COUNT, TURNED>(block<T>(n, k), block<T>(n, k + tiles::SIDE), room);
  }
  void lay_step(bool on_the_left, int64_t n, int64_t k, bf16* room) const {
    if (half)
      on_the_left == depth_first ? lay_step<true, bf16>(n, k, room) : lay_step<false, bf16>(n, k, room);
    else
      on_the_left == depth_first ? lay_step<true, float>(n, k, room) : lay_step<false, float>(n, k, room);
  }
};

// Sums of 32 rows by 32 columns, some of which may not be there, and where they go.
struct Sums {
  float* out;
  const float* bias;  // or null
  int64_t stride;
  int rows, columns;
  bool rests;  // `out` has what they are added to
  bool past;   // written past the cache: whole lines of what does not fit into it

  // `part` [32][32], and `more` [32][32] or null.
  void add(const float* part, const float* more) const {
    for (int j = 0; j < columns; j += tiles::SIDE) {
      const int left = columns - j;
      const __mmask16 there = left >= tiles::SIDE ? __mmask16(0xffff) : __mmask16((1u << left) - 1u);
      const __m512 base = bias ? _mm512_maskz_loadu_ps(there, bias + j) : _mm512_setzero_ps();
      for (int i = 0; i < rows; ++i) {
        float* to = out + i * stride + j;
        __m512 sum = _mm512_load_ps(part + i * WIDE + j);
        if (more) sum = _mm512_add_ps(_mm512_load_ps(more + i * WIDE + j), sum);
        if (bias) sum = _mm512_add_ps(base, sum);
        if (rests) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(there, to), sum);
        if (past && there == 0xffff)
          _mm512_stream_ps(to, sum);
        else
          _mm512_mask_storeu_ps(to, there, sum);
      }
    }
  }
};

#if defined(__AMX_TILE__)
inline void enter() { tiles::enter(); }
inline void leave() { tiles::leave(); }
// Sums [32][32] over `steps` of factors that are laid out in one piece.
inline void multiply_rounded(const bf16* left, const bf16* right, int64_t steps, float* sums) {
  tiles::zero_sums<2>();
  tiles::multiply<2>(tiles::laid<1>(left), tiles::laid<1>(right), steps, tiles::Nothing{});
  tiles::store_sums<2>(sums, WIDE * 4);
}
#else
inline void enter() {}
inline void leave() {}
inline void multiply_rounded(const bf16* left, const bf16* right, int64_t steps, float* sums) {
  constexpr int ROWS = 8;  // two accumulators for each
  constexpr int64_t STEP = Factor<1>::STEP;
  for (int64_t row = 0; row < WIDE; row += ROWS) {
    __m512 c[ROWS][2] = {};
    const bf16* l = left + row / tiles::SIDE * tiles::TILE + row % tiles::SIDE * tiles::DEEP;
    for (int64_t step = 0; step < steps; ++step)
      for (int pair = 0; pair < tiles::SIDE; ++pair) {
        const bf16* r = right + step * STEP + pair * tiles::DEEP;
        const __m512bh near = (__m512bh)_mm512_load_si512(r), far = (__m512bh)_mm512_load_si512(r + tiles::TILE);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) {
          int32_t word;
          std::memcpy(&word, l + step * STEP + i * tiles::DEEP + 2 * pair, 4);
          const __m512bh x = (__m512bh)_mm512_set1_epi32(word);
          c[i][0] = _mm512_dpbf16_ps(c[i][0], x, near);
          c[i][1] = _mm512_dpbf16_ps(c[i][1], x, far);
        }
      }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i) {
      _mm512_store_ps(sums + (row + i) * WIDE, c[i][0]);
      _mm512_store_ps(sums + (row + i) * WIDE + tiles::SIDE, c[i][1]);
    }
  }
}
#endif

template <int COUNT>
struct Product {
  static constexpr int64_t STEP = Factor<COUNT>::STEP;

  const HoneProduct& a;
  Factor<COUNT> left, right;
  int64_t first_column, last_column, from, to;  // of what is being computed, columns and inner numbers
  bf16* room;                                   // [panels of 32 columns][steps][2][COUNT] tiles of the right factor

  int64_t steps() const { return parts(to - from, tiles::DEEP); }

  Sums sums(int64_t row, int64_t column) const {
    const bool rests = a.add || from > 0;
    const bool aligned = a.out_stride % tiles::SIDE == 0 && reinterpret_cast<uintptr_t>(a.out) % 64 == 0;
    const bool past = aligned && !rests && to == a.depth && a.rows * a.columns > PAST;
    return {a.out + row * a.out_stride + column, a.bias && !rests ? a.bias + column : nullptr, a.out_stride,
            int(least(WIDE, a.rows - row)), int(least(WIDE, a.columns - column)), rests, past};
  }

  // Sums of a block of 32 rows by 32 columns go on over the chunk at `step`; meanwhile they rest in `c` [32][32].
  void chunk(int64_t row, int64_t column, int64_t step, const bf16* l, const bf16* r, float* c) const {
    alignas(64) float part[WIDE * WIDE];
    const float* before = step > 0 ? c : nullptr;
    if constexpr (COUNT == 1) {
      multiply_rounded(l, r, steps(), part);
    } else {
#if defined(__AMX_TILE__)
      const tiles::Side rows = tiles::laid<COUNT>(l + step * STEP), columns = tiles::laid<COUNT>(r + step * STEP);
      if (step + tiles::CHUNK < steps())
        return tiles::sum_pieces<2>(rows, columns, tiles::CHUNK, c, WIDE, step > 0, tiles::Nothing{});
      tiles::multiply_pieces<2>(rows, columns, steps() - step, tiles::Nothing{});
      tiles::store_sums<2>(part, WIDE * 4);
#endif
    }
    sums(row, column).add(part, before);
  }

  // Rows `row` to `last` by panels `first` to `last_panel`.
  void task(int64_t row, int64_t last, int64_t first, int64_t last_panel) const {
    const int64_t size = steps() * STEP, blocks = parts(last - row, WIDE);
    float* c = scratch(size_t(blocks * (size / 2 + GROUP * WIDE * WIDE)), LEFT_ROOM);
    bf16* laid = reinterpret_cast<bf16*>(c + blocks * GROUP * WIDE * WIDE);
    const auto lay = [&](int64_t i, int64_t step) {
      left.lay_step(true, row + i * WIDE, from + step * tiles::DEEP, laid + i * size + step * STEP);
    };
    in_memory_order(left.depth_first, blocks, steps(), lay);
    const int64_t at_once = COUNT == 1 ? steps() : tiles::CHUNK;  // rounded numbers have one chunk
    enter();
    for (int64_t group = first; group < last_panel; group += GROUP)
      for (int64_t step = 0; step < steps(); step += at_once)
        for (int64_t i = 0; i < blocks; ++i)
          for (int64_t p = group; p < least(group + GROUP, last_panel); ++p)
            chunk(row + i * WIDE, first_column + p * WIDE, step, laid + i * size, room + p * size,
                  c + (i * GROUP + p - group) * WIDE * WIDE);
    leave();
    _mm_sfence();
  }

  template <class F>
  static void in_memory_order(bool depth_first, int64_t blocks, int64_t steps, const F& lay) {
    for (int64_t outer = 0; outer < (depth_first ? steps : blocks); ++outer)
      for (int64_t inner = 0; inner < (depth_first ? blocks : steps); ++inner)
        depth_first ? lay(inner, outer) : lay(outer, inner);
  }

  void lay_right(int64_t panels) const {
    const auto lay = [&](int64_t p, int64_t step) {
      right.lay_step(false, first_column + p * WIDE, from + step * tiles::DEEP, room + (p * steps() + step) * STEP);
    };
    if (right.depth_first)
      for_tasks(a.threads, steps(), [&](int64_t step) {
        for (int64_t p = 0; p < panels; ++p) lay(p, step);
      });
    else
      for_tasks(a.threads, panels, [&](int64_t p) {
        for (int64_t step = 0; step < steps(); ++step) lay(p, step);
      });
  }

  void stretch() const {
    const int64_t panels = parts(last_column - first_column, WIDE);
    const int64_t share = parts(parts(a.rows, a.threads), WIDE) * WIDE, tall = least(share, MOST_ROWS);
    const int64_t down = parts(a.rows, tall), across = least(parts(a.threads, down), panels);
    lay_right(panels);
    for_tasks(a.threads, down * across, [&](int64_t n) {
      const int64_t row = n / across * tall, side = n % across;
      task(row, least(row + tall, a.rows), panels * side / across, panels * (side + 1) / across);
    });
  }
};

template <int COUNT>
void by_pieces(const HoneProduct& a) {
  constexpr int64_t STRETCH = 256 * tiles::PIECES / COUNT;  // inner numbers between which sums rest in `out`
  const Factor<COUNT> left{a.left, bool(a.left_half), a.left_stride, a.rows, a.depth, bool(a.left_depth_first)};
  const Factor<COUNT> right{a.right, bool(a.right_half), a.right_stride, a.columns, a.depth, bool(a.right_depth_first)};
  const int64_t deep = least(STRETCH, parts(a.depth, tiles::DEEP) * tiles::DEEP);
  const int64_t columns = ROOM / COUNT / deep / WIDE * WIDE;
  const int64_t most = least(columns, parts(a.columns, WIDE) * WIDE);
  bf16* room = reinterpret_cast<bf16*>(scratch(size_t(most * deep * COUNT) / 2, RIGHT_ROOM));
  for (int64_t column = 0; column < a.columns; column += columns)
    for (int64_t from = 0; from < a.depth; from += STRETCH)
      Product<COUNT>{a,    left, right, column, least(column + columns, a.columns), from, least(from + STRETCH, a.depth),
                     room}
          .stretch();
}

}  // namespace

void HONE_JOIN(product_, HONE_ISA)(const HoneProduct& a) {
  HONE_CHECK(a.rows > 0 && a.columns > 0 && a.depth > 0 && a.threads > 0);
#if defined(__AMX_TILE__)
  if (!a.rounded) return by_pieces<tiles::PIECES>(a);
#endif
  HONE_CHECK(a.rounded);
  by_pieces<1>(a);
}

}  // namespace hone
