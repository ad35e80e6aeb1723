// A perceptron of rectified units, forwards and backwards, float32 in and out, by products of bytes (digits.h).
//
// A panel is [features][32 rows], features padded to a multiple of 32 by zeros.
//
// Floor, for a hidden layer of 256 units on 256 units: 33.6 million multiplications and additions a pass and 256 rows,
// six times that in bytes: 31 us at the 6,500 billion a second that a core's tiles do of them alone. A network of one
// output needs half of it each way back: the slope of its last hidden layer is a scalar per row, times a weight per
// unit, times zero or one, and that last factor alone goes into the products, exactly, as one byte. In all other layers
// a slope is taken back by eight products of bytes, and gradients of weights are products of bfloat16 pieces, which are
// as exact whatever sizes slopes have (pieces.h).
//
// Every row's outputs depend on that row alone. Gradients add up over rows 256 at a time, in their order.
#include "rounded.h"

namespace hone {
namespace {

struct TileProduct {
  static void enter() { tiles::enter(); }
  static void leave() { tiles::leave(); }

  // c [32][32].
  static void multiply(const bf16* left, const bf16* right, int64_t steps, float* c) {
    constexpr int64_t STEP_BYTES = 2 * tiles::TILE_BYTES;
    __asm__ volatile("" ::: "memory");  // compilers do not know that a tile is loaded from what was just stored
    tiles::zero_sums<2>();
    tiles::multiply<2>({left, LINE, tiles::TILE_BYTES, STEP_BYTES, 0}, {right, LINE, tiles::TILE_BYTES, STEP_BYTES, 0},
                       steps, tiles::Nothing());
    tiles::store_sums<2>(c, 2 * LINE);
  }
};

}  // namespace

void amx::rounded_forward(const Perceptron& net, const Forward& a) { hone::rounded_forward<TileProduct>(net, a); }
void amx::rounded_backward(const Perceptron& net, const Backward& a) { hone::rounded_backward<TileProduct>(net, a); }

void amx::forward(const Perceptron& net, const Forward& a) {
  const Shape shape(net);
  int8_t* weights = reinterpret_cast<int8_t*>(room(WEIGHTS, shape.bytes() / 4 + 1));
  int8_t* right = reinterpret_cast<int8_t*>(room(RIGHT, shape.widest * PANEL * PANELS * 3 / 2));
  float* down = room(SCALES, shape.hidden);
  float* x = room(INPUTS, PADDED_INPUTS * PANEL * PANELS);
  float* y = room(OUTPUTS, MOST_OUTPUTS * PANEL * PANELS);
  float* tape = a.tape ? a.tape : room(SLOPES, shape.hidden * PANEL);
  for (int64_t l = 1; l + 1 < net.layers; ++l) {
    HONE_CHECK(shape.packed[l + 1] <= shape.bytes());
    float* scales = down + shape.at[l + 1] / PANEL;
    lay_weights(net.weight[l], net.sizes[l + 1], net.sizes[l], weights + shape.packed[l], scales);
  }
  tiles::enter();
  for (int64_t row = 0; row < a.rows; row += PANEL) {
    const int64_t count = a.rows - row < PANEL ? a.rows - row : PANEL;
    const int64_t at = a.tape ? row / PANEL : 0;
    stand(a.x + row * net.sizes[0], count, net.sizes[0], x);
    ENTER[net.sizes[0] <= 8 ? net.sizes[0] : 0](net, x, shape.units(tape, at, 1));
    for (int64_t l = 1; l + 1 < net.layers; ++l)
      pass(shape, l, weights + shape.packed[l], down + shape.at[l + 1] / PANEL, right, shape.units(tape, at, 0));
    leave(net, shape.units(tape, at, net.layers - 1), y);
    lie(y, count, net.sizes[net.layers], a.y + row * net.sizes[net.layers]);
  }
  tiles::leave();
}

void amx::backward(const Perceptron& net, const Backward& a) {
  const Shape shape(net);
  const int64_t last = net.layers - 1, ins = net.sizes[0], outs = net.sizes[net.layers];
  const bool alone = outs == 1 && last >= 2;
  float* gathered = room(GATHERED, alone ? shape.wide(last) * shape.wide(last - 1) : 1);
  int8_t* turned = reinterpret_cast<int8_t*>(room(TURNED, shape.bytes() / 4 + 1));
  float* down = room(SCALES_OF_TURNED, shape.hidden);
  float* slopes = room(SLOPES, shape.widest * PANEL * PANELS);
  float* below = room(BELOW, shape.widest * PANEL * PANELS);
  float* x = room(INPUTS, PADDED_INPUTS * PANEL * PANELS);
  float* slope = room(OUTPUTS, MOST_OUTPUTS * PANEL * PANELS);
  for (int64_t l = 1; l < last; ++l) {
    lay_turned(net.weight[l], alone && l == last - 1 ? net.weight[last] : nullptr, net.sizes[l + 1], net.sizes[l],
               turned + shape.packed[l], down + shape.at[l] / PANEL);
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
    const float* tape = shape.units(a.tape, row / PANEL, 1);
    Block block{shape, net, steps, tape, x, slope, turned, down, slopes, below, a.weights, row > 0, gathered};
    block.go();
    if (alone && a.weights && rest <= PANEL * PANELS) block.add_gathered(last - 1);
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
