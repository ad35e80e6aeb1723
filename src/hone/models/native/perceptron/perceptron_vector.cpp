// A perceptron of rectified or tanh units, forwards and backwards, by float32 products in vector registers. Compiled once
// for each instruction set that has fused multiplications.
//
// Floor, for a hidden layer of 256 units on 256 units: 16.8 million fused operations a product and 256 rows, at 32 a
// cycle with AVX-512 and 16 with AVX2: 0.18 and 0.33 ms at 3 GHz. One product a layer forwards, two backwards.
//
// Rows are taken two registers at a time, a panel: [features][PANEL rows]. Every product is sums of a number of the
// left factor, spread, times a line of the right one. In the first two products of a layer the lines are of panels, and
// weights are read where they lie; in gradients of weights, which sum over rows, they are rows of turned inputs.
//
// Every row's outputs depend on that row alone. Gradients add up over rows 256 at a time, in their order.
#include <algorithm>
#include <cstring>

#include "perceptron.h"
#include "vec.h"

namespace hone {
namespace HONE_ISA {

constexpr int PANEL = 2 * LANES, ROWS = 256, MOST_PANELS = ROWS / PANEL;
constexpr int HEIGHT = LANES == 16 ? 12 : 6;  // sums of two registers each that stay in registers

constexpr int FEW = 2;  // outputs

enum Room { UNITS, SLOPES, BELOW, INPUTS, OUTPUTS, LINES };

// Left factor: number (i, d) at first[i * across + d * along]; `parts` of them one after the other, `between` apart.
struct Left {
  const float* first;
  int64_t across, along, depth;
  int64_t parts = 1, between = 0;
};

// Sums over d of left(i, d) * right[d], a line of V registers, for i < N: [N][V registers], onto what is there if
// `more`.
template <int N, int V>
void add_up(const Left& left, const float* right, bool more, float* to) {
  constexpr int GROUPS = (N + 2) / 3;
  vf sums[N][V] = {};
  const float* groups[GROUPS];
  for (int g = 0; g < GROUPS; ++g) groups[g] = left.first + g * 3 * left.across;
  const int64_t next_part = left.between - left.depth * left.along;
  for (int64_t part = 0; part < left.parts; ++part) {
    for (int64_t d = 0; d < left.depth; ++d, right += V * LANES) {
      vf line[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) line[v] = load(right + v * LANES);
#pragma GCC unroll 12
      for (int i = 0; i < N; ++i) {
        const vf number = spread(groups[i / 3][i % 3 * left.across]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[i][v] = fma(number, line[v], sums[i][v]);
      }
#pragma GCC unroll 4
      for (int g = 0; g < GROUPS; ++g) groups[g] += left.along;
    }
    for (int g = 0; g < GROUPS; ++g) groups[g] += next_part;
  }
#pragma GCC unroll 12
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      float* at = to + (i * V + v) * LANES;
      store(at, more ? load(at) + sums[i][v] : sums[i][v]);
    }
}

using AddUp = void (*)(const Left&, const float*, bool, float*);
template <int V>
constexpr AddUp ADD_UP[] = {add_up<1, V>, add_up<2, V>, add_up<3, V>,  add_up<4, V>,  add_up<5, V>,  add_up<6, V>,
#if HONE_LANES == 16
                            add_up<7, V>, add_up<8, V>, add_up<9, V>, add_up<10, V>, add_up<11, V>, add_up<12, V>
#endif
};

// The product for i < count, handed over line by line: take(i, line of V registers). Long sums of one part are taken in
// pieces, which rounds less; the shorter, the fewer sums there are to hide the additions' delay.
template <int V, class Take>
HONE_INLINE void multiply(const Left& left, int64_t count, const float* right, Take take) {
  alignas(64) float sums[HEIGHT * V * LANES];
  const int64_t piece = left.parts > 1 ? left.depth : count < HEIGHT ? 16 : 128;
  for (int64_t i = 0; i < count; i += HEIGHT) {
    const int64_t lines = std::min<int64_t>(HEIGHT, count - i);
    for (int64_t d = 0; d < left.depth; d += piece) {
      Left some = left;
      some.first += i * left.across + d * left.along;
      some.depth = std::min(piece, left.depth - d);
      ADD_UP<V>[lines - 1](some, right + d * V * LANES, d > 0, sums);
    }
    for (int64_t k = 0; k < lines; ++k) take(i + k, sums + k * V * LANES);
  }
}

// Where the units of hidden layers lie: [panels][layers][units][PANEL].
struct Shape {
  const Perceptron& net;
  int64_t hidden = 0, widest = 0, at[MOST_LAYERS + 1] = {};

  explicit Shape(const Perceptron& n) : net(n) {
    HONE_CHECK(net.layers >= 2 && net.layers <= MOST_LAYERS);
    HONE_CHECK(net.sizes[0] <= MOST_INPUTS && net.sizes[net.layers] <= MOST_OUTPUTS);
    for (int64_t l = 1; l < net.layers; ++l) {
      at[l] = hidden * PANEL;
      hidden += net.sizes[l];
      widest = std::max(widest, net.sizes[l]);
    }
  }
  template <class T>
  T* units(T* tape, int64_t panel, int64_t l) const {
    return tape + panel * hidden * PANEL + at[l];
  }
};

// Rows [count <= PANEL, width] -> [width][PANEL], zeros past their end; and back.
void to_panel(const float* rows, int64_t count, int64_t width, float* panel) {
  std::memset(panel, 0, width * PANEL * sizeof(float));
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < width; ++j) panel[j * PANEL + i] = rows[i * width + j];
}
void from_panel(const float* panel, int64_t count, int64_t width, float* rows) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < width; ++j) rows[i * width + j] = panel[j * PANEL + i];
}

// x P(x^2) / Q(x^2), a minimax fit on [-9, 9] with a relative error of 6.7e-9; that of the sums in float32 is 3e-7.
// Beyond it tanh is 1 to float32. What is not a number stays so.
HONE_INLINE vf tanh_of(vf x) {
  constexpr float P[] = {1.0f,           0.13084006f,    3.1039526e-3f,  1.1154272e-5f,
                         -2.0225086e-8f, 5.2778851e-11f, -8.488559e-14f};
  constexpr float Q[] = {1.0f, 0.46417335f, 2.4495164e-2f, 2.5461402e-4f};
  const vf near = larger(spread(-9.0f), smaller(spread(9.0f), x)), square = near * near;
  vf above = spread(P[6]), below = spread(Q[3]);
#pragma GCC unroll 6
  for (int i = 5; i >= 0; --i) above = fma(above, square, spread(P[i]));
#pragma GCC unroll 3
  for (int i = 2; i >= 0; --i) below = fma(below, square, spread(Q[i]));
  return larger(spread(-1.0f), smaller(spread(1.0f), near * above / below));
}

// Layer l of one panel: weights [outs, ins] times its inputs, and the biases.
void pass(const Perceptron& net, int64_t l, const float* from, float* to) {
  const int64_t ins = net.sizes[l], outs = net.sizes[l + 1];
  const bool hidden = l + 1 < net.layers, curved = hidden && net.tanh;
  const vf least = spread(hidden ? 0.0f : -__builtin_inff());
  multiply<2>({net.weight[l], ins, 1, ins}, outs, from, [&](int64_t n, const float* line) {
    const vf bias = spread(net.bias[l][n]);
    for (int v = 0; v < 2; ++v) {  // what is not a number stays so
      const vf sum = load(line + v * LANES) + bias;
      store(to + n * PANEL + v * LANES, curved ? tanh_of(sum) : larger(least, sum));
    }
  });
}

// One block of up to 256 rows on its way back.
struct Block {
  const Shape& shape;
  const Perceptron& net;
  int64_t panels;
  const float* tape;   // of the first one
  const float* x;      // [panels][inputs][PANEL]
  const float* slope;  // [panels][outputs][PANEL]
  float* slopes;       // [panels][widest][PANEL], of the layer gone through
  float* below;        // the same, of the layer before it

  // What layer l reads, and how far apart panels are.
  const float* inputs(int64_t l) const { return l ? shape.units(tape, 0, l) : x; }
  int64_t inputs_between(int64_t l) const { return (l ? shape.hidden : net.sizes[0]) * PANEL; }
  // Slopes of layer l's sums.
  const float* outputs(int64_t l) const { return l + 1 < net.layers ? slopes : slope; }
  int64_t outputs_between(int64_t l) const {
    return (l + 1 < net.layers ? shape.widest : net.sizes[net.layers]) * PANEL;
  }

  // `below`: slopes of the sums of the hidden units that layer l reads: those of the units, times 1 - unit^2 for tanh,
  // and zero where a rectified unit was.
  void layer_slopes(int64_t l) const {
    const int64_t ins = net.sizes[l], outs = net.sizes[l + 1];
    for (int64_t p = 0; p < panels; ++p) {
      const float* units = inputs(l) + p * inputs_between(l);
      float* to = below + p * shape.widest * PANEL;
      const float* panel = outputs(l) + p * outputs_between(l);
      multiply<2>({net.weight[l], 1, ins, outs}, ins, panel, [&](int64_t k, const float* line) {
        for (int v = 0; v < 2; ++v) {
          const int64_t at = k * PANEL + v * LANES;
          const vf unit = load(units + at), up = load(line + v * LANES);
          store(to + at, net.tanh ? fma(-unit * unit, up, up) : unit <= vf{} ? vf{} : up);
        }
      });
    }
  }

  // Inputs k .. k + V registers of layer l, as rows: [panels * PANEL][V registers].
  template <int V>
  void turn_inputs(int64_t l, int64_t k, float* to) const {
    const int64_t count = std::min<int64_t>(V * LANES, net.sizes[l] - k);
    for (int64_t p = 0; p < panels; ++p, to += PANEL * V * LANES) {
      const float* from = inputs(l) + p * inputs_between(l) + k * PANEL;
      for (int64_t row = 0; row < PANEL; row += 8)
        for (int64_t i = 0; i < V * LANES; i += 8)
          turn_eight(from + i * PANEL + row, count - i, to + row * V * LANES + i, V * LANES);
    }
  }

  // [8][8] turned; lines of `from` from the `count`th on are zeros.
  static void turn_eight(const float* from, int64_t count, float* to, int64_t width) {
    __m256 in[8], half[8];
    for (int i = 0; i < 8; ++i) in[i] = i < count ? _mm256_loadu_ps(from + i * PANEL) : _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      half[2 * i] = _mm256_unpacklo_ps(in[2 * i], in[2 * i + 1]);
      half[2 * i + 1] = _mm256_unpackhi_ps(in[2 * i], in[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
      for (int j = 0; j < 2; ++j) {
        in[i + 2 * j] = _mm256_shuffle_ps(half[i + j], half[i + j + 2], 0x44);
        in[i + 2 * j + 1] = _mm256_shuffle_ps(half[i + j], half[i + j + 2], 0xee);
      }
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_ps(to + i * width, _mm256_permute2f128_ps(in[i], in[i + 4], 0x20));
      _mm256_storeu_ps(to + (i + 4) * width, _mm256_permute2f128_ps(in[i], in[i + 4], 0x31));
    }
  }

  // Gradients of layer l's weights for V registers of its inputs from k on.
  template <int V>
  void weights_from(int64_t l, int64_t k) const {
    const int64_t ins = net.sizes[l], count = std::min<int64_t>(V * LANES, ins - k);
    float* lines = room(LINES, ROWS * PANEL);
    turn_inputs<V>(l, k, lines);
    const Left left{outputs(l), PANEL, 1, PANEL, panels, outputs_between(l)};
    multiply<V>(left, net.sizes[l + 1], lines, [&](int64_t n, const float* line) {
      float* to = net.d_weight[l] + n * ins + k;
      if (count < V * LANES) {
        for (int64_t i = 0; i < count; ++i) to[i] += line[i];
        return;
      }
      for (int v = 0; v < V; ++v) store(to + v * LANES, load(to + v * LANES) + load(line + v * LANES));
    });
  }

  // Sum over all rows of f(panel, register).
  template <class F>
  float total(F f) const {
    vf sums[2] = {};
    for (int64_t p = 0; p < panels; ++p)
      for (int v = 0; v < 2; ++v) sums[v] += f(p, v * LANES);
    return sum(sums[0] + sums[1]);
  }

  void layer_weights(int64_t l) const {
    const int64_t ins = net.sizes[l], outs = net.sizes[l + 1];
    const auto slope_of = [&](int64_t n, int64_t p, int v) {
      return load(outputs(l) + p * outputs_between(l) + n * PANEL + v);
    };
    for (int64_t n = 0; n < outs; ++n) net.d_bias[l][n] += total([&](int64_t p, int v) { return slope_of(n, p, v); });
    if (outs <= FEW) {  // not worth turning the inputs
      for (int64_t n = 0; n < outs; ++n)
        for (int64_t k = 0; k < ins; ++k)
          net.d_weight[l][n * ins + k] += total([&](int64_t p, int v) {
            return slope_of(n, p, v) * load(inputs(l) + p * inputs_between(l) + k * PANEL + v);
          });
      return;
    }
    for (int64_t k = 0; k < ins; k += PANEL) {
      if (ins - k > LANES) weights_from<2>(l, k);
      else weights_from<1>(l, k);
    }
  }

  // From the last layer to the first.
  void go(bool weights) {
    for (int64_t l = net.layers - 1; l >= 0; --l) {
      if (weights) layer_weights(l);
      if (!l) return;
      layer_slopes(l);
      std::swap(slopes, below);
    }
  }
};

// The number of rows of a panel that starts at `row`.
inline int64_t rows_of_panel(int64_t rows, int64_t row) { return std::min<int64_t>(PANEL, rows - row); }

void forward(const Perceptron& net, const Forward& a) {
  const Shape shape(net);
  float* x = room(INPUTS, MOST_INPUTS * ROWS);
  float* y = room(OUTPUTS, MOST_OUTPUTS * ROWS);
  float* tape = a.tape ? a.tape : room(UNITS, shape.hidden * PANEL);
  for (int64_t row = 0; row < a.rows; row += PANEL) {
    const int64_t count = rows_of_panel(a.rows, row), at = a.tape ? row / PANEL : 0;
    to_panel(a.x + row * net.sizes[0], count, net.sizes[0], x);
    for (int64_t l = 0; l < net.layers; ++l)
      pass(net, l, l ? shape.units(tape, at, l) : x, l + 1 < net.layers ? shape.units(tape, at, l + 1) : y);
    from_panel(y, count, net.sizes[net.layers], a.y + row * net.sizes[net.layers]);
  }
}

void backward(const Perceptron& net, const Backward& a) {
  const Shape shape(net);
  const int64_t ins = net.sizes[0], outs = net.sizes[net.layers];
  float* x = room(INPUTS, MOST_INPUTS * ROWS);
  float* slope = room(OUTPUTS, MOST_OUTPUTS * ROWS);
  float* slopes = room(SLOPES, shape.widest * ROWS);
  float* below = room(BELOW, shape.widest * ROWS);
  for (int64_t row = 0; row < a.rows; row += ROWS) {
    const int64_t rows = std::min<int64_t>(ROWS, a.rows - row), panels = (rows + PANEL - 1) / PANEL;
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t first = row + p * PANEL, count = rows_of_panel(a.rows, first);
      to_panel(a.x + first * ins, count, ins, x + p * ins * PANEL);
      to_panel(a.slope + first * outs, count, outs, slope + p * outs * PANEL);
    }
    Block block{shape, net, panels, shape.units(a.tape, row / PANEL, 1), x, slope, slopes, below};
    block.go(a.weights);
    for (int64_t p = 0; p < panels && a.d_x; ++p) {
      alignas(64) float panel[MOST_INPUTS * PANEL];
      multiply<2>({net.weight[0], 1, ins, net.sizes[1]}, ins, block.slopes + p * shape.widest * PANEL,
                  [&](int64_t j, const float* line) { std::memcpy(panel + j * PANEL, line, PANEL * sizeof(float)); });
      const int64_t first = row + p * PANEL;
      from_panel(panel, rows_of_panel(a.rows, first), ins, a.d_x + first * ins);
    }
  }
}

}  // namespace HONE_ISA
}  // namespace hone

#include "clipped.h"
