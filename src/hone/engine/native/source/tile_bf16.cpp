// Products of bfloat16 pairs, summed in float32, by AVX-512 BF16.
#include <immintrin.h>

#include "engine.h"

namespace hone {
namespace {

constexpr int TILE_ROWS = 14;  // 2 accumulators a row, and what is multiplied, fill the registers
constexpr int SHARED = 3;      // rows that one address reaches: it, it + line and it + 2 line

template <int ROWS>
void tile(const bf16* a, int64_t stride, const bf16* panel, int k, float* c, const Ahead& ahead) {
  constexpr int BASES = (ROWS + SHARED - 1) / SHARED;
  __m512 sums[ROWS][2] = {};
  const int64_t line = stride * int64_t(sizeof(bf16));
  const char* base[BASES];
#pragma GCC unroll 8
  for (int i = 0; i < BASES; ++i) base[i] = reinterpret_cast<const char*>(a) + SHARED * i * line;
  const bf16* const end = panel + int64_t(k) * PANEL;
  for (const char* next = ahead.line; panel != end; panel += 2 * PANEL, next += ahead.step) {
    __builtin_prefetch(next, 0, 2);
    const __m512bh left = (__m512bh)_mm512_load_si512(panel), right = (__m512bh)_mm512_load_si512(panel + PANEL);
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; ++row) {
      int32_t pair;
      __builtin_memcpy(&pair, base[row / SHARED] + row % SHARED * line, 4);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
      sums[row][0] = _mm512_dpbf16_ps(sums[row][0], x, left);
      sums[row][1] = _mm512_dpbf16_ps(sums[row][1], x, right);
    }
#pragma GCC unroll 8
    for (int i = 0; i < BASES; ++i) base[i] += sizeof(int32_t);
  }
#pragma GCC unroll 16
  for (int row = 0; row < ROWS; ++row) {
    _mm512_store_ps(c + row * PANEL, sums[row][0]);
    _mm512_store_ps(c + row * PANEL + 16, sums[row][1]);
  }
}

}  // namespace

extern const int tile_avx512_bf16_rows;
const int tile_avx512_bf16_rows = TILE_ROWS;

void tile_avx512_bf16(const bf16* a, int64_t stride, int rows, const bf16* panel, int k, float* c, const Ahead& ahead) {
  static constexpr void (*TILES[])(const bf16*, int64_t, const bf16*, int, float*, const Ahead&) = {
      tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>, tile<7>,
      tile<8>, tile<9>, tile<10>, tile<11>, tile<12>, tile<13>, tile<14>};
  TILES[rows - 1](a, stride, panel, k, c, ahead);
}

}  // namespace hone
