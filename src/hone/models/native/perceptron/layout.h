// How weights and panels are laid out as tiles, of bytes and of pieces.
#pragma once
#include <cstring>

#include "digits.h"
#include "perceptron.h"
#include "pieces.h"

namespace hone {
namespace {

constexpr int PANEL = 32;  // rows

inline int64_t padded(int64_t size) { return (size + 31) / 32 * 32; }
inline __mmask16 first(int64_t count) { return count >= 16 ? 0xffff : count <= 0 ? 0 : __mmask16((1u << count) - 1); }
inline void put(bf16* to, __m512i words) { _mm512_store_si512(to, words); }
inline __m512 fma(float a, __m512 b, __m512 c) { return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c); }

// Words of three bytes each, [3][16][16], turned and stored as tiles at `to`, `to` + `piece` and `to` + 2 `piece`.
inline void put_turned(const int8_t words[DIGITS][BYTES], int8_t* to, int64_t piece) {
  for (int p = 0; p < DIGITS; ++p) {
    __m512i lines[SIDE];
    for (int i = 0; i < SIDE; ++i) lines[i] = _mm512_load_si512(words[p] + i * STEP);
    turn(lines);
    for (int i = 0; i < SIDE; ++i) _mm512_store_si512(to + p * piece + i * STEP, lines[i]);
  }
}

// Weights [out, in] as left tiles [out / 16][steps][3], and the scales `down` of rows.
void lay_weights(const float* w, int64_t outs, int64_t ins, int8_t* to, float* down) {
  const int64_t steps = steps_of(ins);
  for (int64_t n = 0; n < padded(outs); ++n) {
    const float* row = w + n * ins;
    const auto at = [&](int64_t k) { return _mm512_maskz_loadu_ps(n < outs ? first(ins - k) : 0, row + k); };
    __m512i most = _mm512_setzero_si512();
    for (int64_t k = 0; k < ins; k += SIDE) most = greater(most, at(k));
    const Scale scale(_mm512_set1_epi32(_mm512_reduce_max_epi32(most)), MOST);
    down[n] = _mm512_cvtss_f32(scale.down);
    int8_t* line = to + n / SIDE * steps * DIGITS * BYTES + n % SIDE * STEP;
    for (int64_t k = 0; k < ins; k += STEP, line += DIGITS * BYTES)
      put_digits(at(k), at(k + 16), at(k + 32), at(k + 48), scale.up, line, BYTES);
  }
}

// The same weights, turned and each row times `times` [out], if any: left tiles [in / 16][steps][3].
void lay_turned(const float* w, const float* times, int64_t outs, int64_t ins, int8_t* to, float* down) {
  for (int64_t k = 0; k < padded(ins); k += SIDE) {
    const auto row = [&](int64_t n) {
      if (n >= outs) return _mm512_setzero_ps();
      const __m512 x = _mm512_maskz_loadu_ps(first(ins - k), w + n * ins + k);
      return times ? _mm512_mul_ps(x, _mm512_set1_ps(times[n])) : x;
    };
    __m512i most = _mm512_setzero_si512();
    for (int64_t n = 0; n < outs; ++n) most = greater(most, row(n));
    const Scale scale(most, MOST);
    _mm512_store_ps(down + k, scale.down);
    for (int64_t n = 0; n < outs; n += STEP, to += DIGITS * BYTES) {
      alignas(64) int8_t words[DIGITS][BYTES];
      for (int64_t i = 0; i < SIDE; ++i)
        put_digits(row(n + i), row(n + 16 + i), row(n + 32 + i), row(n + 48 + i), scale.up, words[0] + i * STEP, BYTES);
      put_turned(words, to, BYTES);
    }
  }
}

// A panel as right tiles, summed over its units: [steps][3][2 halves of the rows], and the scales of its rows: [32].
void lay_units(const float* panel, int64_t units, float most_digits, int8_t* to, float* down) {
  for (int half = 0; half < 2; ++half) {
    const float* from = panel + half * SIDE;
    const auto at = [&](int64_t k) { return k < units ? _mm512_load_ps(from + k * PANEL) : _mm512_setzero_ps(); };
    __m512i most = _mm512_setzero_si512();
    for (int64_t k = 0; k < units; ++k) most = greater(most, _mm512_load_ps(from + k * PANEL));
    const Scale scale(most, most_digits);
    _mm512_store_ps(down + half * SIDE, scale.down);
    for (int64_t k = 0; k < units; k += STEP)
      for (int64_t i = k; i < k + SIDE; ++i)
        put_digits(at(i), at(i + 16), at(i + 32), at(i + 48), scale.up,
                   to + (k / STEP * DIGITS * 2 + half) * BYTES + (i - k) * STEP, 2 * BYTES);
  }
}

// Ones where it is positive: [steps][2 halves].
void lay_ones(const float* panel, int64_t units, int8_t* to) {
  for (int64_t k = 0; k < units; k += STEP)
    for (int half = 0; half < 2; ++half, to += BYTES)
      for (int64_t i = 0; i < SIDE; ++i) {
        __m512i word = _mm512_setzero_si512();
        for (int q = 0; q < 4 && k + q * SIDE < units; ++q) {
          const float* at = panel + (k + i + q * SIDE) * PANEL + half * SIDE;
          word = _mm512_or_si512(word, one_where_positive(_mm512_load_ps(at), q));
        }
        _mm512_store_si512(to + i * STEP, word);
      }
}

// Several panels, one every `between` numbers: summed over their rows.
struct Panels {
  const float* first;
  int64_t between, count;

  int64_t steps() const { return (count + 1) / 2; }
  // The fourth `quarter` of the rows of step `step`, of unit k.
  __m512 rows(int64_t step, int quarter, int64_t k) const {
    const int64_t panel = step * 2 + quarter / 2;
    const float* at = first + panel * between + k * PANEL + quarter % 2 * SIDE;
    return panel < count ? _mm512_load_ps(at) : _mm512_setzero_ps();
  }
};

// Ones where they are positive, as left tiles [units / 16][steps].
void lay_rows_of_ones(const Panels& panels, int64_t units, int8_t* to) {
  for (int64_t k = 0; k < units; ++k)
    for (int64_t step = 0; step < panels.steps(); ++step) {
      __m512i word = _mm512_setzero_si512();
      for (int q = 0; q < 4; ++q) word = _mm512_or_si512(word, one_where_positive(panels.rows(step, q, k), q));
      _mm512_store_si512(to + (k / SIDE * panels.steps() + step) * BYTES + k % SIDE * STEP, word);
    }
}

// Rows times those of `times` (one unit), as right tiles: [units / 32][steps][3][2 halves of the units], and the scales
// of units.
void lay_rows_times(const Panels& panels, const Panels& times, int64_t units, int8_t* to, float* down) {
  const int64_t steps = panels.steps();
  for (int64_t k = 0; k < units; k += SIDE) {
    const auto rows = [&](int64_t step, int q, int64_t i) {
      return _mm512_mul_ps(panels.rows(step, q, k + i), times.rows(step, q, 0));
    };
    alignas(64) int32_t greatest[SIDE];
    for (int64_t i = 0; i < SIDE; ++i) {
      __m512i most = _mm512_setzero_si512();
      for (int64_t step = 0; step < steps; ++step)
        for (int q = 0; q < 4; ++q) most = greater(most, rows(step, q, i));
      greatest[i] = _mm512_reduce_max_epi32(most);
    }
    const Scale scale(_mm512_load_si512(greatest), MOST);
    _mm512_store_ps(down + k, scale.down);
    alignas(64) float up[SIDE];
    _mm512_store_ps(up, scale.up);
    for (int64_t step = 0; step < steps; ++step) {
      alignas(64) int8_t words[DIGITS][BYTES];
      for (int64_t i = 0; i < SIDE; ++i)
        put_digits(rows(step, 0, i), rows(step, 1, i), rows(step, 2, i), rows(step, 3, i), _mm512_set1_ps(up[i]),
                   words[0] + i * STEP, BYTES);
      put_turned(words, to + ((k / 32 * steps + step) * DIGITS * 2 + k % 32 / SIDE) * BYTES, 2 * BYTES);
    }
  }
}

// ---- as bfloat16 pieces: gradients of layers with slopes of all sizes

// A panel as step `step` of `steps` that are summed over its rows: left tiles [units / 32][steps][3][2].
void lay_rows(const float* panel, int64_t units, int64_t step, int64_t steps, bf16* to) {
  for (int64_t k = 0; k < units; ++k) {
    bf16* line = to + (k / 32 * steps + step) * 6 * TILE + k % 32 * DEEP;
    const Split a(_mm512_load_ps(panel + k * PANEL)), b(_mm512_load_ps(panel + k * PANEL + SIDE));
    for (int p = 0; p < 3; ++p) put(line + p * 2 * TILE, in_order(a.piece[p], b.piece[p]));
  }
}

// The same, turned, as right tiles: [units / 32][steps][3][2 halves of the units].
void lay_rows_turned(const float* panel, int64_t units, int64_t step, int64_t steps, bf16* to) {
  for (int64_t k = 0; k < units; k += SIDE) {
    bf16* tile = to + (k / 32 * steps + step) * 6 * TILE + k % 32 / 16 * TILE;
    __m512i words[3][16];
    for (int i = 0; i < 16; ++i) {
      const float* at = panel + (k + i) * PANEL;
      const Split a(_mm512_load_ps(at)), b(_mm512_load_ps(at + SIDE));
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
