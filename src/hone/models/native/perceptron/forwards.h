// One panel on its way through the layers.
#pragma once
#include <cstring>

#include "shape.h"

namespace hone {
namespace {

// NaN stays NaN: max takes its second operand then.
inline __m512 rectified(__m512 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }

// The first layer: few inputs. Up to eight of them stay in registers (INS), or as many as there are (0).
template <int INS>
void enter(const Perceptron& net, const float* x, float* units) {
  const int64_t ins = INS ? INS : net.sizes[0], outs = net.sizes[1];
  __m512 seen[2][INS ? INS : 1];
  for (int64_t j = 0; j < INS; ++j)
    for (int half = 0; half < 2; ++half) seen[half][j] = _mm512_load_ps(x + j * PANEL + half * SIDE);
  for (int64_t n = 0; n < outs; ++n) {
    const float* w = net.weight[0] + n * ins;
    __m512 sum[2] = {};
    for (int64_t j = 0; j < ins; ++j)
      for (int half = 0; half < 2; ++half)
        sum[half] = fma(w[j], INS ? seen[half][INS ? j : 0] : _mm512_load_ps(x + j * PANEL + half * SIDE), sum[half]);
    const __m512 bias = _mm512_set1_ps(net.bias[0][n]);
    for (int half = 0; half < 2; ++half)
      _mm512_store_ps(units + n * PANEL + half * SIDE, rectified(_mm512_add_ps(sum[half], bias)));
  }
  std::memset(units + outs * PANEL, 0, (padded(outs) - outs) * PANEL * sizeof(float));
}

using Enter = void (*)(const Perceptron&, const float*, float*);
constexpr Enter ENTER[] = {enter<0>, enter<1>, enter<2>, enter<3>, enter<4>, enter<5>, enter<6>, enter<7>, enter<8>};

// Layer l of the panels of a block of rows, whose weights are `left` and `down`.
void pass(const Shape& shape, int64_t l, const int8_t* left, const float* down, int8_t* right, float* tape) {
  const int64_t ins = shape.wide(l), outs = shape.net.sizes[l + 1], steps = steps_of(ins);
  alignas(64) float by[PANEL];
  lay_units(tape + shape.at[l], ins, MOST_UNSIGNED, right, by);
  using S = Sums<3, 3, true>;
  const auto of = [&](int64_t block) { return Factors{left + block * steps * DIGITS * BYTES, right}; };
  multiply_all<S>(shape.wide(l + 1) / SIDE, steps, of, [&](int64_t block, int64_t i, const S& sums) {
    const int64_t n = block * SIDE + i;
    const __m512 bias = _mm512_set1_ps(n < outs ? shape.net.bias[l][n] : 0.0f);
    for (int half = 0; half < 2; ++half) {
      const __m512 sum = _mm512_mul_ps(sums.row(i, half), _mm512_load_ps(by + half * SIDE));
      _mm512_store_ps(tape + shape.at[l + 1] + n * PANEL + half * SIDE, rectified(fma(down[n], sum, bias)));
    }
  });
}

// The last layer: few outputs. Four sums each, of every fourth unit.
void leave(const Perceptron& net, const float* units, float* y) {
  const int64_t l = net.layers - 1, ins = net.sizes[l];
  for (int64_t o = 0; o < net.sizes[net.layers]; ++o) {
    const float* w = net.weight[l] + o * ins;
    __m512 low[4] = {}, high[4] = {};
    for (int64_t n = 0; n < ins; ++n) {
      low[n % 4] = fma(w[n], _mm512_load_ps(units + n * PANEL), low[n % 4]);
      high[n % 4] = fma(w[n], _mm512_load_ps(units + n * PANEL + SIDE), high[n % 4]);
    }
    const __m512 bias = _mm512_set1_ps(net.bias[l][o]);
    const auto all = [&](const __m512* s) {
      return _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3])), bias);
    };
    _mm512_store_ps(y + o * PANEL, all(low));
    _mm512_store_ps(y + o * PANEL + SIDE, all(high));
  }
}

}  // namespace
}  // namespace hone
