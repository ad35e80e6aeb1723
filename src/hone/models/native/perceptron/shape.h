// Where the units, weights and slopes of a perceptron lie.
#pragma once
#include "layout.h"

namespace hone {
namespace {

constexpr int PANELS = 8;  // whose gradients are summed in tiles
constexpr int64_t PADDED_INPUTS = MOST_INPUTS;

enum Place {  // rooms
  WEIGHTS, TURNED, RIGHT, LEFT, SLOPES, BELOW, INPUTS, OUTPUTS, SCALES, SCALES_OF_TURNED, SCALES_OF_ROWS, GATHERED
};

struct Shape {
  const Perceptron& net;
  int64_t hidden = 0;  // padded units of all hidden layers
  int64_t at[MOST_LAYERS + 1] = {}, packed[MOST_LAYERS + 1] = {};  // `packed`: in bytes
  int64_t widest = 0;

  explicit Shape(const Perceptron& n) : net(n) {
    for (int64_t l = 1; l < net.layers; ++l) {
      at[l] = hidden * PANEL;
      hidden += padded(net.sizes[l]);
      widest = widest > padded(net.sizes[l]) ? widest : padded(net.sizes[l]);
      packed[l + 1] = packed[l] + (l + 1 < net.layers ? DIGITS * deep(l) * deep(l + 1) : 0);
    }
    HONE_CHECK(net.layers >= 2 && net.layers <= MOST_LAYERS);
    HONE_CHECK(net.sizes[0] <= MOST_INPUTS && net.sizes[net.layers] <= MOST_OUTPUTS);
  }
  int64_t wide(int64_t l) const { return padded(net.sizes[l]); }
  int64_t deep(int64_t l) const { return steps_of(net.sizes[l]) * STEP; }
  int64_t bytes() const { return packed[net.layers]; }  // of all packed weights
  template <class T>
  T* units(T* tape, int64_t panel, int64_t l) const {
    return tape + panel * hidden * PANEL + at[l];
  }
};

}  // namespace
}  // namespace hone
