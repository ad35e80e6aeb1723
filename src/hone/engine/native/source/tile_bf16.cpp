// Products of bfloat16 pairs, summed in float32, by AVX-512 BF16.
#include <immintrin.h>

#include "engine.h"

namespace hone {
namespace {

constexpr int TILE_ROWS = 12;

template <int ROWS>
void tile(const bf16* a, int64_t stride, const bf16* panel, int k, float* c, const Ahead& ahead) {
  __m512 sums[ROWS][2];
  for (int row = 0; row < ROWS; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
  const bf16* b = panel;
  for (int i = 0; i < k; i += 2, b += 2 * PANEL) {
    ahead.fetch(i / 2);
    const __m512bh left = (__m512bh)_mm512_load_si512(b), right = (__m512bh)_mm512_load_si512(b + PANEL);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) {
      int32_t pair;
      __builtin_memcpy(&pair, a + row * stride + i, 4);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
      sums[row][0] = _mm512_dpbf16_ps(sums[row][0], x, left);
      sums[row][1] = _mm512_dpbf16_ps(sums[row][1], x, right);
    }
  }
#pragma GCC unroll 12
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
      tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>, tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12>};
  TILES[rows - 1](a, stride, panel, k, c, ahead);
}

}  // namespace hone
