// One block of panels on its way back.
#pragma once
#include <cstring>

#include "shape.h"

namespace hone {
namespace {

// One block of up to PANELS panels on its way back.
struct Block {
  const Shape& shape;
  const Perceptron& net;
  int64_t steps;        // panels
  const float* tape;    // of the first one
  const float* x;       // [steps][inputs][32]
  const float* slope;   // [steps][outputs][32]
  const int8_t* turned;  // packed weights
  const float* down;     // scales of their rows, layer after layer
  float* slopes;        // [steps][widest][32], of the layer gone through
  float* below;         // the same, of the layer before it
  bool weights;
  bool begun;            // whether there was a block before this one
  float* gathered;       // [in / 32][out][32], gradients of the last hidden layer before they are multiplied by `top`

  const float* units(int64_t l, int64_t step) const { return shape.units(tape, step, l); }
  float* of(float* slopes_, int64_t step) const { return slopes_ + step * shape.widest * PANEL; }

  // One sum over all rows of the block: of f(panel) -> two registers.
  template <class F>
  float over(F f) const {
    __m512 low = _mm512_setzero_ps(), high = low;
    for (int64_t step = 0; step < steps; ++step) f(step, low, high);
    return _mm512_reduce_add_ps(_mm512_add_ps(low, high));
  }

  // sum of a[row] * b[row], where `a_step` and `b_step` lie between panels.
  float dot(const float* a, int64_t a_step, const float* b, int64_t b_step) const {
    return over([&](int64_t step, __m512& low, __m512& high) {
      const float *p = a + step * a_step, *q = b + step * b_step;
      low = _mm512_fmadd_ps(_mm512_load_ps(p), _mm512_load_ps(q), low);
      high = _mm512_fmadd_ps(_mm512_load_ps(p + SIDE), _mm512_load_ps(q + SIDE), high);
    });
  }
  float total(const float* a, int64_t a_step) const {
    return over([&](int64_t step, __m512& low, __m512& high) {
      low = _mm512_add_ps(low, _mm512_load_ps(a + step * a_step));
      high = _mm512_add_ps(high, _mm512_load_ps(a + step * a_step + SIDE));
    });
  }

  // Gradients of the last layer.
  void last_weights() const {
    const int64_t l = net.layers - 1, ins = net.sizes[l], outs = net.sizes[net.layers];
    for (int64_t o = 0; o < outs; ++o) {
      const float* s = slope + o * PANEL;
      net.d_bias[l][o] += total(s, outs * PANEL);
      for (int64_t n = 0; n < ins; ++n)
        net.d_weight[l][o * ins + n] += dot(s, outs * PANEL, units(l, 0) + n * PANEL, shape.hidden * PANEL);
    }
  }

  // The same of one output, and the gradients of the biases below it.
  void last_weights_alone() const {
    const int64_t l = net.layers - 1, between = shape.hidden * PANEL;
    net.d_bias[l][0] += total(slope, PANEL);
    for (int64_t n = 0; n < net.sizes[l]; ++n) {
      __m512 held[2] = {}, sum[2] = {};
      for (int64_t step = 0; step < steps; ++step)
        for (int half = 0; half < 2; ++half) {
          const float* unit = units(l, 0) + step * between + n * PANEL + half * SIDE;
          const __m512 s = _mm512_load_ps(slope + step * PANEL + half * SIDE);
          sum[half] = _mm512_fmadd_ps(s, _mm512_load_ps(unit), sum[half]);
          held[half] = _mm512_add_ps(held[half], where_positive(unit, s));
        }
      net.d_weight[l][n] += _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
      net.d_bias[l - 1][n] += net.weight[l][n] * _mm512_reduce_add_ps(_mm512_add_ps(held[0], held[1]));
    }
  }

  // Slopes of the last hidden layer: W' s where it is positive.
  void last_slopes() const {
    const int64_t l = net.layers - 1, ins = net.sizes[l], outs = net.sizes[net.layers];
    for (int64_t step = 0; step < steps; ++step) {
      float* to = of(slopes, step);
      std::memset(to + ins * PANEL, 0, (padded(ins) - ins) * PANEL * sizeof(float));
      for (int64_t n = 0; n < ins; ++n)
        for (int half = 0; half < PANEL; half += SIDE) {
          __m512 sum = _mm512_setzero_ps();
          for (int64_t o = 0; o < outs; ++o)
            sum = fma(net.weight[l][o * ins + n], _mm512_load_ps(slope + (step * outs + o) * PANEL + half), sum);
          _mm512_store_ps(to + n * PANEL + half, where_positive(units(l, step) + n * PANEL + half, sum));
        }
    }
  }

  static __m512 where_positive(const float* unit, __m512 x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_load_ps(unit), _mm512_setzero_ps(), _CMP_GT_OQ), x);
  }

  template <class T>
  T* room_of(Place place) const {
    return reinterpret_cast<T*>(room(place, shape.widest * PANEL * PANELS * 3 / 2));
  }
  static void add_row(float* row, __m512 x, int64_t there) {
    _mm512_mask_storeu_ps(row, first(there), _mm512_add_ps(_mm512_maskz_loadu_ps(first(there), row), x));
  }

  // Gradients of layer l, whose outputs have `slopes`.
  void layer_weights(int64_t l) const {
    const int64_t outs = net.sizes[l + 1], ins = net.sizes[l], wide = shape.wide(l);
    bf16 *right = room_of<bf16>(RIGHT), *left = room_of<bf16>(LEFT);
    for (int64_t step = 0; step < steps; ++step) {
      lay_rows_turned(units(l, step), wide, step, steps, right);
      lay_rows(of(slopes, step), shape.wide(l + 1), step, steps, left);
    }
    for (int64_t n = 0; n < outs; n += 32)
      for (int64_t k = 0; k < ins; k += 32) {
        alignas(64) float sums[32 * 32];
        multiply(left + n / 32 * steps * 6 * TILE, right + k / 32 * steps * 6 * TILE, steps, sums, 32);
        for (int64_t i = 0; i < 32 && n + i < outs; ++i)
          for (int j = 0; j < 32; j += SIDE)
            add_row(net.d_weight[l] + (n + i) * ins + k + j, _mm512_load_ps(sums + i * 32 + j), ins - k - j);
      }
    for (int64_t n = 0; n < outs; ++n) net.d_bias[l][n] += slope_total(n);
  }

  // The same of the layer below one output, without the weights of that output: its slopes are those weights times the
  // output's slope where a unit is positive, and that last factor is a single byte. To `gathered`.
  void layer_weights_alone(int64_t l) const {
    const int64_t outs = net.sizes[l + 1], between = shape.hidden * PANEL;
    const float* top = net.weight[l + 1];
    int8_t *right = room_of<int8_t>(RIGHT), *left = room_of<int8_t>(LEFT);
    float* scales = room(SCALES_OF_ROWS, shape.widest);
    const Panels in{units(l, 0), between, steps}, s{slope, PANEL, steps};
    lay_rows_times(in, s, shape.wide(l), right, scales);
    lay_rows_of_ones({units(l + 1, 0), between, steps}, shape.wide(l + 1), left);
    using S = Sums<1, 3>;
    const int64_t rows = shape.wide(l + 1) / SIDE, line = in.steps() * BYTES;
    const auto of = [&](int64_t b) { return Factors{left + b % rows * line, right + b / rows * 2 * DIGITS * line}; };
    multiply_all<S>(rows * shape.wide(l) / 32, in.steps(), of, [&](int64_t b, int64_t i, const S& sums) {
      float* to = gathered + (b * SIDE + i) * 32;
      for (int half = 0; half < 2; ++half) {
        const __m512 had = begun ? _mm512_load_ps(to + half * SIDE) : _mm512_setzero_ps();
        const __m512 scale = _mm512_load_ps(scales + b / rows * 32 + half * SIDE);
        _mm512_store_ps(to + half * SIDE, _mm512_fmadd_ps(sums.row(i, half), scale, had));
      }
    });
  }

  // What `layer_weights_alone` gathered, to its place.
  void add_gathered(int64_t l) const {
    const int64_t ins = net.sizes[l], rows = shape.wide(l + 1);
    for (int64_t n = 0; n < net.sizes[l + 1]; ++n)
      for (int64_t k = 0; k < ins; k += SIDE) {
        const __m512 sum = _mm512_load_ps(gathered + (k / 32 * rows + n) * 32 + k % 32);
        add_row(net.d_weight[l] + n * ins + k, _mm512_mul_ps(sum, _mm512_set1_ps(net.weight[l + 1][n])), ins - k);
      }
  }

  float slope_total(int64_t n) const { return total(slopes + n * PANEL, shape.widest * PANEL); }

  // `below`: slopes of layer l's inputs, which are hidden units.
  void layer_slopes(int64_t l, bool alone) const {
    const int64_t outs = shape.wide(l + 1);
    int8_t* right = room_of<int8_t>(RIGHT);
    for (int64_t step = 0; step < steps; ++step) {
      alignas(64) float scales[PANEL];
      if (alone) {
        lay_ones(units(l + 1, step), outs, right);
        panel_slopes<Sums<3, 1>>(l, step, right, slope + step * PANEL);
      } else {
        lay_units(of(slopes, step), outs, MOST, right, scales);
        panel_slopes<Sums<3, 3, false, true>>(l, step, right, scales);
      }
    }
  }

  // Of one panel, whose rows are to be multiplied by `times`.
  template <class S>
  void panel_slopes(int64_t l, int64_t step, const int8_t* right, const float* times) const {
    const int64_t deep = steps_of(net.sizes[l + 1]);
    const float *from = units(l, step), *scales = down + shape.at[l] / PANEL;
    float* to = of(below, step);
    const int8_t* left = turned + shape.packed[l];
    const auto factors = [&](int64_t b) { return Factors{left + b * deep * DIGITS * BYTES, right}; };
    multiply_all<S>(shape.wide(l) / SIDE, deep, factors, [&](int64_t b, int64_t i, const S& sums) {
      const int64_t k = b * SIDE + i;
      for (int half = 0; half < 2; ++half) {
        const int64_t at = k * PANEL + half * SIDE;
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(times + half * SIDE), _mm512_set1_ps(scales[k]));
        _mm512_store_ps(to + at, where_positive(from + at, _mm512_mul_ps(sums.row(i, half), scale)));
      }
    });
  }

  // Gradients of the first layer, of four inputs at a time.
  void first_weights() const {
    const int64_t ins = net.sizes[0], between = shape.widest * PANEL;
    for (int64_t n = 0; n < net.sizes[1]; ++n) {
      const float* s = slopes + n * PANEL;
      float* row = net.d_weight[0] + n * ins;
      net.d_bias[0][n] += total(s, between);
      int64_t j = 0;
      for (; j + 4 <= ins; j += 4) {
        __m512 low[4] = {}, high[4] = {};
        for (int64_t step = 0; step < steps; ++step) {
          const __m512 a = _mm512_load_ps(s + step * between), b = _mm512_load_ps(s + step * between + SIDE);
          for (int i = 0; i < 4; ++i) {
            const float* from = x + (step * ins + j + i) * PANEL;
            low[i] = _mm512_fmadd_ps(a, _mm512_load_ps(from), low[i]);
            high[i] = _mm512_fmadd_ps(b, _mm512_load_ps(from + SIDE), high[i]);
          }
        }
        for (int i = 0; i < 4; ++i) row[j + i] += _mm512_reduce_add_ps(_mm512_add_ps(low[i], high[i]));
      }
      for (; j < ins; ++j) row[j] += dot(s, between, x + j * PANEL, ins * PANEL);
    }
  }

  // Slopes of the inputs of one panel: [inputs][32].
  void first_slopes(int64_t step, float* to) const {
    const int64_t ins = net.sizes[0];
    for (int64_t j = 0; j < ins; ++j) {
      __m512 low[4] = {}, high[4] = {};
      for (int64_t n = 0; n < net.sizes[1]; ++n) {
        const float *s = of(slopes, step) + n * PANEL, w = net.weight[0][n * ins + j];
        low[n % 4] = fma(w, _mm512_load_ps(s), low[n % 4]);
        high[n % 4] = fma(w, _mm512_load_ps(s + SIDE), high[n % 4]);
      }
      const auto all = [](const __m512* p) {
        return _mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3]));
      };
      _mm512_store_ps(to + j * PANEL, all(low));
      _mm512_store_ps(to + j * PANEL + SIDE, all(high));
    }
  }

  // From the last layer to the first.
  void go() {
    const int64_t last = net.layers - 1;
    const bool alone = net.sizes[net.layers] == 1 && last >= 2;
    if (weights && alone) last_weights_alone();
    if (weights && !alone) last_weights();
    if (!alone) last_slopes();
    for (int64_t l = last - 1; l >= 1; --l) {
      const bool so = alone && l == last - 1;
      if (weights && so) layer_weights_alone(l);
      if (weights && !so) layer_weights(l);
      layer_slopes(l, so);
      float* swap = slopes;
      slopes = below;
      below = swap;
    }
    if (weights) first_weights();
  }
};

}  // namespace
}  // namespace hone
