// How weights and panels are laid out as tiles of pieces.
#pragma once
#include <cstring>

#include "perceptron.h"
#include "pieces.h"

namespace hone {
namespace {

constexpr int PANEL = 32;  // rows

inline int64_t padded(int64_t size) { return (size + 31) / 32 * 32; }
inline __mmask16 first(int64_t count) { return count >= 16 ? 0xffff : count <= 0 ? 0 : __mmask16((1u << count) - 1); }
inline void put(bf16* to, __m512i words) { _mm512_store_si512(to, words); }
inline __m512 fma(float a, __m512 b, __m512 c) { return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c); }

// Weights [out, in] as left tiles [out / 32][in / 32][3][2].
void lay_weights(const float* w, int64_t outs, int64_t ins, bf16* to) {
  for (int64_t n = 0; n < padded(outs); n += 32)
    for (int64_t k = 0; k < ins; k += 32, to += 6 * TILE)
      for (int i = 0; i < 32; ++i) {
        bf16* line = to + i * DEEP;  // the second tile follows the first
        const float* row = w + (n + i) * ins + k;
        const bool there = n + i < outs;
        const Split a(_mm512_maskz_loadu_ps(there ? first(ins - k) : 0, row));
        const Split b(_mm512_maskz_loadu_ps(there ? first(ins - k - 16) : 0, row + 16));
        for (int p = 0; p < 3; ++p) put(line + p * 2 * TILE, in_order(a.piece[p], b.piece[p]));
      }
}

// The same weights, turned and each row times `scale` [out], if any: left tiles [in / 32][out / 32][3][2].
void lay_turned(const float* w, const float* scale, int64_t outs, int64_t ins, bf16* to) {
  for (int64_t k = 0; k < padded(ins); k += 32)
    for (int64_t n = 0; n < padded(outs); n += 32, to += 6 * TILE)
      for (int half = 0; half < 2; ++half) {
        __m512i words[3][16];
        const int64_t from = k + half * SIDE;
        for (int i = 0; i < 16; ++i) {
          const auto row = [&](int64_t r) {
            if (r >= outs) return _mm512_setzero_ps();
            const __m512 x = _mm512_maskz_loadu_ps(first(ins - from), w + r * ins + from);
            return scale ? _mm512_mul_ps(x, _mm512_set1_ps(scale[r])) : x;
          };
          const Split a(row(n + 2 * i)), b(row(n + 2 * i + 1));
          for (int p = 0; p < 3; ++p) words[p][i] = in_pairs(a.piece[p], b.piece[p]);
        }
        for (int p = 0; p < 3; ++p) {
          turn(words[p]);
          for (int i = 0; i < 16; ++i) put(to + (p * 2 + half) * TILE + i * DEEP, words[p][i]);
        }
      }
}

// A panel as right tiles, summed over its units: [units / 32][3][2 halves of the rows].
void lay_units(const float* panel, int64_t units, bf16* to) {
  for (int64_t k = 0; k < units; k += 2) {
    bf16* line = to + k / 32 * 6 * TILE + k % 32 / 2 * DEEP;
    for (int half = 0; half < 2; ++half) {
      const float* at = panel + k * PANEL + half * SIDE;
      const Split a(_mm512_load_ps(at)), b(_mm512_load_ps(at + PANEL));
      for (int p = 0; p < 3; ++p) put(line + (p * 2 + half) * TILE, in_pairs(a.piece[p], b.piece[p]));
    }
  }
}

inline __m512i ones(const float* at) {
  return _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(_mm512_load_ps(at), _mm512_setzero_ps(), _CMP_GT_OQ), 0x3f800000);
}

// The same of where it is positive: [units / 32][2 halves].
void lay_ones(const float* panel, int64_t units, bf16* to) {
  for (int64_t k = 0; k < units; k += 2) {
    bf16* line = to + k / 32 * 2 * TILE + k % 32 / 2 * DEEP;
    for (int half = 0; half < 2; ++half) {
      const float* at = panel + k * PANEL + half * SIDE;
      put(line + half * TILE, in_pairs(ones(at), ones(at + PANEL)));
    }
  }
}

// A panel as step `step` of `steps` that are summed over its rows: left tiles [units / 32][steps][3][2].
void lay_rows(const float* panel, int64_t units, int64_t step, int64_t steps, bf16* to) {
  for (int64_t k = 0; k < units; ++k) {
    bf16* line = to + (k / 32 * steps + step) * 6 * TILE + k % 32 * DEEP;
    const Split a(_mm512_load_ps(panel + k * PANEL)), b(_mm512_load_ps(panel + k * PANEL + SIDE));
    for (int p = 0; p < 3; ++p) put(line + p * 2 * TILE, in_order(a.piece[p], b.piece[p]));
  }
}

// The same of where it is positive: [units / 32][steps][2].
void lay_rows_of_ones(const float* panel, int64_t units, int64_t step, int64_t steps, bf16* to) {
  for (int64_t k = 0; k < units; ++k) {
    bf16* line = to + (k / 32 * steps + step) * 2 * TILE + k % 32 * DEEP;
    put(line, in_order(ones(panel + k * PANEL), ones(panel + k * PANEL + SIDE)));
  }
}

// A panel, rows times `scale` [32] if any, as right tiles: [units / 32][steps][3][2 halves of the units].
void lay_rows_turned(const float* panel, const float* scale, int64_t units, int64_t step, int64_t steps, bf16* to) {
  const __m512 low = scale ? _mm512_loadu_ps(scale) : _mm512_set1_ps(1.0f);
  const __m512 high = scale ? _mm512_loadu_ps(scale + SIDE) : low;
  for (int64_t k = 0; k < units; k += SIDE) {
    bf16* tile = to + (k / 32 * steps + step) * 6 * TILE + k % 32 / 16 * TILE;
    __m512i words[3][16];
    for (int i = 0; i < 16; ++i) {
      const float* at = panel + (k + i) * PANEL;
      const Split a(_mm512_mul_ps(_mm512_load_ps(at), low)), b(_mm512_mul_ps(_mm512_load_ps(at + SIDE), high));
      for (int p = 0; p < 3; ++p) words[p][i] = in_order(a.piece[p], b.piece[p]);
    }
    for (int p = 0; p < 3; ++p) {
      turn(words[p]);
      for (int i = 0; i < 16; ++i) put(tile + p * 2 * TILE + i * DEEP, words[p][i]);
    }
  }
}

// Rows [count <= 32, width] -> [width][32], zeros past their end.
void stand(const float* rows, int64_t count, int64_t width, float* to) {
  std::memset(to, 0, width * PANEL * sizeof(float));
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < width; ++j) to[j * PANEL + i] = rows[i * width + j];
}

void lie(const float* panel, int64_t count, int64_t width, float* to) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < width; ++j) to[i * width + j] = panel[j * PANEL + i];
}

}  // namespace
}  // namespace hone
