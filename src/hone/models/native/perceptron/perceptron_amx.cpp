// A perceptron of rectified units, forwards and backwards, float32 in and out, by products of bfloat16 pieces.
//
// Floor, for a hidden layer of 256 units on 256 units: 33.6 million multiplications and additions a pass and 256 rows,
// six times that in bfloat16: 91 us at 2,200 GFLOP/s. A network of one output needs half of it backwards: the slope of
// its last hidden layer is a scalar per row, times a weight per unit, times zero or one, and that last factor alone goes
// into the products, exactly, as one piece.
//
// Every row's outputs depend on that row alone. Gradients add up over rows 256 at a time, in their order.
#include <cstring>

#include "layout.h"

namespace hone {
namespace {

constexpr int PANELS = 8;  // whose gradients are summed in tiles
constexpr int64_t PADDED_INPUTS = MOST_INPUTS;

enum Place { WEIGHTS, TURNED, RIGHT, LEFT, SLOPES, BELOW, INPUTS, OUTPUTS };  // rooms

struct Shape {
  const Perceptron& net;
  int64_t hidden = 0;  // padded units of all hidden layers
  int64_t at[MOST_LAYERS + 1] = {}, packed[MOST_LAYERS + 1] = {};
  int64_t widest = 0;

  explicit Shape(const Perceptron& n) : net(n) {
    for (int64_t l = 1; l < net.layers; ++l) {
      at[l] = hidden * PANEL;
      hidden += padded(net.sizes[l]);
      widest = widest > padded(net.sizes[l]) ? widest : padded(net.sizes[l]);
      packed[l + 1] = packed[l] + (l + 1 < net.layers ? 3 * wide(l) * wide(l + 1) : 0);
    }
    HONE_CHECK(net.layers >= 2 && net.layers <= MOST_LAYERS);
    HONE_CHECK(net.sizes[0] <= MOST_INPUTS && net.sizes[net.layers] <= MOST_OUTPUTS);
  }
  int64_t wide(int64_t l) const { return padded(net.sizes[l]); }
  int64_t pieces() const { return packed[net.layers]; }  // numbers of all packed weights
  template <class T>
  T* units(T* tape, int64_t panel, int64_t l) const {
    return tape + panel * hidden * PANEL + at[l];
  }
};

// ------------------------------------------------------------------------------------------------ forwards

inline void rectify(float* row, float bias) {
  const __m512 zero = _mm512_setzero_ps(), offset = _mm512_set1_ps(bias);
  // NaN stays NaN: max takes its second operand then.
  _mm512_store_ps(row, _mm512_max_ps(zero, _mm512_add_ps(_mm512_load_ps(row), offset)));
  _mm512_store_ps(row + SIDE, _mm512_max_ps(zero, _mm512_add_ps(_mm512_load_ps(row + SIDE), offset)));
}

// The first layer: few inputs.
void enter(const Perceptron& net, const float* x, float* units) {
  const int64_t ins = net.sizes[0], outs = net.sizes[1];
  for (int64_t n = 0; n < outs; ++n) {
    const float* w = net.weight[0] + n * ins;
    __m512 low = _mm512_setzero_ps(), high = low;
    for (int64_t j = 0; j < ins; ++j) {
      low = fma(w[j], _mm512_load_ps(x + j * PANEL), low);
      high = fma(w[j], _mm512_load_ps(x + j * PANEL + SIDE), high);
    }
    _mm512_store_ps(units + n * PANEL, low);
    _mm512_store_ps(units + n * PANEL + SIDE, high);
    rectify(units + n * PANEL, net.bias[0][n]);
  }
  std::memset(units + outs * PANEL, 0, (padded(outs) - outs) * PANEL * sizeof(float));
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

// ------------------------------------------------------------------------------------------------ backwards

// One block of up to PANELS panels on its way back.
struct Block {
  const Shape& shape;
  const Perceptron& net;
  int64_t steps;        // panels
  const float* tape;    // of the first one
  const float* x;       // [steps][inputs][32]
  const float* slope;   // [steps][outputs][32]
  const bf16* turned;   // packed weights
  float* slopes;        // [steps][widest][32], of the layer gone through
  float* below;         // the same, of the layer before it
  bool weights;

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

  // Gradients of layer l, whose outputs have `slopes`, or, `alone`, the last layer's one output's weights and ones.
  void layer_weights(int64_t l, bool alone) const {
    const int64_t outs = net.sizes[l + 1], ins = net.sizes[l], wide = shape.wide(l);
    bf16* right = reinterpret_cast<bf16*>(room(RIGHT, shape.widest * PANEL * PANELS * 3 / 2));
    bf16* left = reinterpret_cast<bf16*>(room(LEFT, shape.widest * PANEL * PANELS * 3 / 2));
    const float* top = alone ? net.weight[l + 1] : nullptr;
    for (int64_t step = 0; step < steps; ++step) {
      lay_rows_turned(units(l, step), alone ? slope + step * PANEL : nullptr, wide, step, steps, right);
      if (alone)
        lay_rows_of_ones(units(l + 1, step), shape.wide(l + 1), step, steps, left);
      else
        lay_rows(of(slopes, step), shape.wide(l + 1), step, steps, left);
    }
    for (int64_t n = 0; n < outs; n += 32)
      for (int64_t k = 0; k < ins; k += 32) {
        alignas(64) float sums[32 * 32];
        if (alone)
          multiply<1, 3>(left + n / 32 * steps * 2 * TILE, right + k / 32 * steps * 6 * TILE, steps, sums, 32);
        else
          multiply<3, 3>(left + n / 32 * steps * 6 * TILE, right + k / 32 * steps * 6 * TILE, steps, sums, 32);
        for (int64_t i = 0; i < 32 && n + i < outs; ++i) {
          const float scale = top ? top[n + i] : 1.0f;
          float* row = net.d_weight[l] + (n + i) * ins + k;
          for (int half = 0; half < 32; half += 16) {
            const __mmask16 there = first(ins - k - half);
            const __m512 had = _mm512_maskz_loadu_ps(there, row + half);
            _mm512_mask_storeu_ps(row + half, there, fma(scale, _mm512_load_ps(sums + i * 32 + half), had));
          }
        }
      }
    for (int64_t n = 0; n < outs; ++n) net.d_bias[l][n] += top ? top[n] * held(l + 1, n) : slope_total(n);
  }

  float slope_total(int64_t n) const { return total(slopes + n * PANEL, shape.widest * PANEL); }
  // Sum of the one output's slope where unit n is positive.
  float held(int64_t l, int64_t n) const {
    return over([&](int64_t step, __m512& low, __m512& high) {
      const float *unit = units(l, step) + n * PANEL, *s = slope + step * PANEL;
      low = _mm512_add_ps(low, where_positive(unit, _mm512_load_ps(s)));
      high = _mm512_add_ps(high, where_positive(unit + SIDE, _mm512_load_ps(s + SIDE)));
    });
  }

  // `below`: slopes of layer l's inputs, which are hidden units.
  void layer_slopes(int64_t l, bool alone) const {
    const int64_t outs = shape.wide(l + 1), wide = shape.wide(l);
    const bf16* left = turned + shape.packed[l];
    bf16* right = reinterpret_cast<bf16*>(room(RIGHT, shape.widest * PANEL * PANELS * 3 / 2));
    for (int64_t step = 0; step < steps; ++step) {
      float* to = of(below, step);
      if (alone)
        lay_ones(units(l + 1, step), outs, right);
      else
        lay_units(of(slopes, step), outs, right);
      const float* s = slope + step * PANEL;
      for (int64_t k = 0; k < wide; k += 32) {
        if (alone)
          multiply<3, 1>(left + k * outs * 3, right, outs / 32, to + k * PANEL, PANEL);
        else
          multiply<3, 3>(left + k * outs * 3, right, outs / 32, to + k * PANEL, PANEL);
        for (int64_t i = k; i < k + 32; ++i)
          for (int half = 0; half < PANEL; half += SIDE) {
            float* at = to + i * PANEL + half;
            const __m512 x = _mm512_load_ps(at);
            const __m512 scaled = alone ? _mm512_mul_ps(x, _mm512_load_ps(s + half)) : x;
            _mm512_store_ps(at, where_positive(units(l, step) + i * PANEL + half, scaled));
          }
      }
    }
  }

  // Gradients of the first layer.
  void first_weights() const {
    const int64_t ins = net.sizes[0], between = shape.widest * PANEL;
    for (int64_t n = 0; n < net.sizes[1]; ++n) {
      const float* s = slopes + n * PANEL;
      net.d_bias[0][n] += total(s, between);
      for (int64_t j = 0; j < ins; ++j) net.d_weight[0][n * ins + j] += dot(s, between, x + j * PANEL, ins * PANEL);
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
    if (weights) last_weights();
    if (!alone) last_slopes();
    for (int64_t l = last - 1; l >= 1; --l) {
      const bool so = alone && l == last - 1;
      if (weights) layer_weights(l, so);
      layer_slopes(l, so);
      float* swap = slopes;
      slopes = below;
      below = swap;
    }
    if (weights) first_weights();
  }
};

}  // namespace

void forward_amx(const Perceptron& net, const Forward& a) {
  const Shape shape(net);
  bf16* weights = reinterpret_cast<bf16*>(room(WEIGHTS, shape.pieces() / 2 + 1));
  bf16* right = reinterpret_cast<bf16*>(room(RIGHT, shape.widest * PANEL * PANELS * 3 / 2));
  float* x = room(INPUTS, PADDED_INPUTS * PANEL * PANELS);
  float* y = room(OUTPUTS, MOST_OUTPUTS * PANEL * PANELS);
  float* tape = a.tape ? a.tape : room(SLOPES, shape.hidden * PANEL);
  for (int64_t l = 1; l + 1 < net.layers; ++l) {
    HONE_CHECK(shape.packed[l + 1] <= shape.pieces());
    lay_weights(net.weight[l], net.sizes[l + 1], net.sizes[l], weights + shape.packed[l]);
  }
  tiles::enter();
  for (int64_t row = 0; row < a.rows; row += PANEL) {
    const int64_t count = a.rows - row < PANEL ? a.rows - row : PANEL;
    const int64_t at = a.tape ? row / PANEL : 0;
    stand(a.x + row * net.sizes[0], count, net.sizes[0], x);
    enter(net, x, shape.units(tape, at, 1));
    for (int64_t l = 1; l + 1 < net.layers; ++l) {
      const int64_t ins = shape.wide(l), outs = shape.wide(l + 1);
      float* to = shape.units(tape, at, l + 1);
      lay_units(shape.units(tape, at, l), ins, right);
      for (int64_t n = 0; n < outs; n += 32) {
        multiply<3, 3>(weights + shape.packed[l] + n * ins * 3, right, ins / 32, to + n * PANEL, PANEL);
        for (int64_t i = n; i < n + 32; ++i) rectify(to + i * PANEL, i < net.sizes[l + 1] ? net.bias[l][i] : 0.0f);
      }
    }
    leave(net, shape.units(tape, at, net.layers - 1), y);
    lie(y, count, net.sizes[net.layers], a.y + row * net.sizes[net.layers]);
  }
  tiles::leave();
}

void backward_amx(const Perceptron& net, const Backward& a) {
  const Shape shape(net);
  const int64_t last = net.layers - 1, ins = net.sizes[0], outs = net.sizes[net.layers];
  bf16* turned = reinterpret_cast<bf16*>(room(TURNED, shape.pieces() / 2 + 1));
  float* slopes = room(SLOPES, shape.widest * PANEL * PANELS);
  float* below = room(BELOW, shape.widest * PANEL * PANELS);
  float* x = room(INPUTS, PADDED_INPUTS * PANEL * PANELS);
  float* slope = room(OUTPUTS, MOST_OUTPUTS * PANEL * PANELS);
  for (int64_t l = 1; l < last; ++l) {
    const bool alone = outs == 1 && l == last - 1;
    lay_turned(net.weight[l], alone ? net.weight[last] : nullptr, net.sizes[l + 1], net.sizes[l],
               turned + shape.packed[l]);
  }
  tiles::enter();
  for (int64_t row = 0; row < a.rows; row += PANEL * PANELS) {
    const int64_t rest = a.rows - row, steps = rest > PANEL * PANELS ? PANELS : (rest + PANEL - 1) / PANEL;
    const auto count = [&](int64_t step) { return rest - step * PANEL < PANEL ? rest - step * PANEL : PANEL; };
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t begin = row + step * PANEL;
      stand(a.x + begin * ins, count(step), ins, x + step * ins * PANEL);
      stand(a.slope + begin * outs, count(step), outs, slope + step * outs * PANEL);
    }
    Block block{shape, net, steps, shape.units(a.tape, row / PANEL, 1), x, slope, turned, slopes, below, a.weights};
    block.go();
    if (!a.d_x) continue;
    for (int64_t step = 0; step < steps; ++step) {
      alignas(64) float panel[MOST_INPUTS * PANEL];
      block.first_slopes(step, panel);
      lie(panel, count(step), ins, a.d_x + (row + step * PANEL) * ins);
    }
  }
  tiles::leave();
}

}  // namespace hone
