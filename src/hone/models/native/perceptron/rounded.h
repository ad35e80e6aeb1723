// Both passes of a perceptron of rectified units whose hidden layers multiply numbers rounded to bfloat16, and add up in
// float32. Factors are rounded to nearest even: weights, units, and the loss's derivatives by them. First and last layer,
// biases, sums and what the caller reads stay float32.
//
// `Product` multiplies tiles: left [steps][2][16][16 words] times right [steps][2][16 words][16], words of two numbers,
// i and 16 + i of the 32 inner ones of a step.
//
// Floor, for a hidden layer of 256 units on 256 units: 33.6 million multiplications and additions a pass and 256 rows,
// 16 us at the 2,100 billion a second that a core's tiles do at best.
#pragma once
#include "backwards.h"
#include "forwards.h"

namespace hone {
namespace {

// Numbers in words, `low` in the lower halves.
inline __m512i rounded_words(__m512 low, __m512 high) {
  alignas(64) static const uint16_t PAIRS[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i in_order = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  return _mm512_permutexvar_epi16(_mm512_load_si512(PAIRS), in_order);
}

struct RoundedWeights {
  const float* w;  // [outs, ins]
  int64_t outs, ins;

  __m512 at(int64_t n, int64_t k) const {
    return _mm512_maskz_loadu_ps(n < outs ? first(ins - k) : 0, w + n * ins + k);
  }
  // Left tiles [outs / 32][ins / 32][2].
  void lay(bf16* to) const {
    for (int64_t n = 0; n < padded(outs); ++n)
      for (int64_t k = 0; k < padded(ins); k += DEEP)
        put(to + ((n / 32 * padded(ins) + k) / 16 + n % 32 / 16) * TILE + n % 16 * DEEP,
            rounded_words(at(n, k), at(n, k + 16)));
  }
  // The same turned: left tiles [ins / 32][outs / 32][2].
  void lay_turned(bf16* to) const {
    for (int64_t k = 0; k < padded(ins); k += SIDE)
      for (int64_t n = 0; n < padded(outs); n += DEEP) {
        __m512i words[SIDE];
        for (int i = 0; i < SIDE; ++i) words[i] = rounded_words(at(n + i, k), at(n + 16 + i, k));
        turn(words);
        bf16* tile = to + ((k / 32 * padded(outs) + n) / 16 + k % 32 / 16) * TILE;
        for (int i = 0; i < SIDE; ++i) put(tile + i * DEEP, words[i]);
      }
  }
};

// A panel as right tiles that are summed over its units: [units / 32][2 halves of the rows].
void lay_rounded_units(const float* panel, int64_t units, bf16* to) {
  for (int64_t k = 0; k < units; k += DEEP)
    for (int half = 0; half < 2; ++half, to += TILE)
      for (int64_t i = 0; i < SIDE; ++i) {
        const float* at = panel + (k + i) * PANEL + half * SIDE;
        put(to + i * DEEP, rounded_words(_mm512_load_ps(at), _mm512_load_ps(at + SIDE * PANEL)));
      }
}

inline __m512i rounded_rows(const float* unit) {
  return rounded_words(_mm512_load_ps(unit), _mm512_load_ps(unit + SIDE));
}

// A panel as step `step` of `steps` that are summed over its rows: left tiles [units / 32][steps][2].
void lay_rounded_rows(const float* panel, int64_t units, int64_t step, int64_t steps, bf16* to) {
  for (int64_t k = 0; k < units; ++k)
    put(to + ((k / 32 * steps + step) * 2 + k % 32 / 16) * TILE + k % 16 * DEEP, rounded_rows(panel + k * PANEL));
}

// The same, turned, as right tiles: [units / 32][steps][2 halves of the units].
void lay_rounded_rows_turned(const float* panel, int64_t units, int64_t step, int64_t steps, bf16* to) {
  for (int64_t k = 0; k < units; k += SIDE) {
    __m512i words[SIDE];
    for (int i = 0; i < SIDE; ++i) words[i] = rounded_rows(panel + (k + i) * PANEL);
    turn(words);
    bf16* tile = to + ((k / 32 * steps + step) * 2 + k % 32 / 16) * TILE;
    for (int i = 0; i < SIDE; ++i) put(tile + i * DEEP, words[i]);
  }
}

// 32 by 32 sums at a time, handed over by lines of 16: take(row, column, sums).
template <class Product, class Take>
void multiply_rounded(const bf16* left, int64_t rows, const bf16* right, int64_t columns, int64_t steps, Take take) {
  for (int64_t n = 0; n < rows; n += 32)
    for (int64_t k = 0; k < columns; k += 32) {
      alignas(64) float sums[32 * 32];
      Product::multiply(left + n / 32 * steps * 2 * TILE, right + k / 32 * steps * 2 * TILE, steps, sums);
      for (int64_t i = 0; i < 32; ++i)
        for (int64_t j = 0; j < 32; j += SIDE) take(n + i, k + j, _mm512_load_ps(sums + i * 32 + j));
    }
}

template <class Product>
void rounded_forward(const Perceptron& net, const Forward& a) {
  const Shape shape(net);
  bf16* weights = reinterpret_cast<bf16*>(room(WEIGHTS, shape.bytes() / 4 + 1));
  bf16* right = reinterpret_cast<bf16*>(room(RIGHT, shape.widest * PANEL));
  float* x = room(INPUTS, PADDED_INPUTS * PANEL);
  float* y = room(OUTPUTS, MOST_OUTPUTS * PANEL);
  float* tape = a.tape ? a.tape : room(SLOPES, shape.hidden * PANEL);
  for (int64_t l = 1; l + 1 < net.layers; ++l)
    RoundedWeights{net.weight[l], net.sizes[l + 1], net.sizes[l]}.lay(weights + shape.packed[l] / 2);
  Product::enter();
  for (int64_t row = 0; row < a.rows; row += PANEL) {
    const int64_t count = a.rows - row < PANEL ? a.rows - row : PANEL, at = a.tape ? row / PANEL : 0;
    stand(a.x + row * net.sizes[0], count, net.sizes[0], x);
    ENTER[net.sizes[0] <= 8 ? net.sizes[0] : 0](net, x, shape.units(tape, at, 1));
    for (int64_t l = 1; l + 1 < net.layers; ++l) {
      const int64_t outs = net.sizes[l + 1];
      float* to = shape.units(tape, at, l + 1);
      lay_rounded_units(shape.units(tape, at, l), shape.wide(l), right);
      multiply_rounded<Product>(weights + shape.packed[l] / 2, shape.wide(l + 1), right, PANEL, shape.wide(l) / DEEP,
                                [&](int64_t n, int64_t half, __m512 sum) {
                                  const __m512 bias = _mm512_set1_ps(n < outs ? net.bias[l][n] : 0.0f);
                                  _mm512_store_ps(to + n * PANEL + half, rectified(_mm512_add_ps(sum, bias)));
                                });
    }
    leave(net, shape.units(tape, at, net.layers - 1), y);
    lie(y, count, net.sizes[net.layers], a.y + row * net.sizes[net.layers]);
  }
  Product::leave();
}

// Gradients of layer l, and the slopes of its inputs: `block.below`.
template <class Product>
void rounded_layer(const Block& block, int64_t l, const bf16* turned) {
  const Shape& shape = block.shape;
  const Perceptron& net = block.net;
  const int64_t outs = net.sizes[l + 1], ins = net.sizes[l], wide = shape.wide(l), steps = block.steps;
  bf16* right = block.room_of<bf16>(RIGHT);
  if (block.weights) {
    bf16* left = block.room_of<bf16>(LEFT);
    for (int64_t step = 0; step < steps; ++step) {
      lay_rounded_rows(block.of(block.slopes, step), shape.wide(l + 1), step, steps, left);
      lay_rounded_rows_turned(block.units(l, step), wide, step, steps, right);
    }
    multiply_rounded<Product>(left, shape.wide(l + 1), right, wide, steps, [&](int64_t n, int64_t k, __m512 sum) {
      if (n < outs) Block::add_row(net.d_weight[l] + n * ins + k, sum, ins - k);
    });
    for (int64_t n = 0; n < outs; ++n) net.d_bias[l][n] += block.slope_total(n);
  }
  for (int64_t step = 0; step < steps; ++step) {
    const float* from = block.units(l, step);
    float* to = block.of(block.below, step);
    lay_rounded_units(block.of(block.slopes, step), shape.wide(l + 1), right);
    multiply_rounded<Product>(turned + shape.packed[l] / 2, wide, right, PANEL, shape.wide(l + 1) / DEEP,
                              [&](int64_t k, int64_t half, __m512 sum) {
                                const int64_t at = k * PANEL + half;
                                _mm512_store_ps(to + at, Block::where_positive(from + at, sum));
                              });
  }
}

template <class Product>
void rounded_backward(const Perceptron& net, const Backward& a) {
  const Shape shape(net);
  const int64_t last = net.layers - 1, ins = net.sizes[0], outs = net.sizes[net.layers];
  bf16* turned = reinterpret_cast<bf16*>(room(TURNED, shape.bytes() / 4 + 1));
  float* slopes = room(SLOPES, shape.widest * PANEL * PANELS);
  float* below = room(BELOW, shape.widest * PANEL * PANELS);
  float* x = room(INPUTS, PADDED_INPUTS * PANEL * PANELS);
  float* slope = room(OUTPUTS, MOST_OUTPUTS * PANEL * PANELS);
  for (int64_t l = 1; l < last; ++l)
    RoundedWeights{net.weight[l], net.sizes[l + 1], net.sizes[l]}.lay_turned(turned + shape.packed[l] / 2);
  Product::enter();
  for (int64_t row = 0; row < a.rows; row += PANEL * PANELS) {
    const int64_t rest = a.rows - row, steps = rest > PANEL * PANELS ? PANELS : (rest + PANEL - 1) / PANEL;
    const auto count = [&](int64_t step) { return rest - step * PANEL < PANEL ? rest - step * PANEL : PANEL; };
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t begin = row + step * PANEL;
      stand(a.x + begin * ins, count(step), ins, x + step * ins * PANEL);
      stand(a.slope + begin * outs, count(step), outs, slope + step * outs * PANEL);
    }
    const float* tape = shape.units(a.tape, row / PANEL, 1);
    Block block{shape, net, steps, tape, x, slope, nullptr, nullptr, slopes, below, a.weights, row > 0, nullptr};
    if (a.weights) block.last_weights();
    block.last_slopes();
    for (int64_t l = last - 1; l >= 1; --l) {
      rounded_layer<Product>(block, l, turned);
      float* swap = block.slopes;
      block.slopes = block.below;
      block.below = swap;
    }
    if (a.weights) block.first_weights();
    for (int64_t step = 0; step < steps && a.d_x; ++step) {
      alignas(64) float panel[MOST_INPUTS * PANEL];
      block.first_slopes(step, panel);
      lie(panel, count(step), ins, a.d_x + (row + step * PANEL) * ins);
    }
  }
  Product::leave();
}

}  // namespace
}  // namespace hone
