// A perceptron's two passes: what the caller hands over, and how its memory is laid out.
//
// Rows (decisions of a batch) are taken a panel at a time: [features][rows of the panel]. A tape is the panels of all
// hidden layers, one panel of rows after the other, in the order of the instruction set that wrote it.
#pragma once
#include <cstddef>

#include "basics.h"

namespace hone {

constexpr int MOST_LAYERS = 8;   // of weights
constexpr int MOST_INPUTS = 128, MOST_OUTPUTS = 32;

struct Perceptron {
  int64_t layers;                        // of weights: hidden layers and one
  int64_t sizes[MOST_LAYERS + 1];        // inputs, hidden ..., outputs
  const float* weight[MOST_LAYERS];      // [out, in]
  const float* bias[MOST_LAYERS];        // [out]
  float* d_weight[MOST_LAYERS];
  float* d_bias[MOST_LAYERS];
  int64_t tanh;                          // hidden units: 1 tanh, 0 rectified (all that AMX does)
  int64_t rounded;                       // 1: hidden layers multiply bfloat16 numbers (rounded.h)
};

struct Forward {
  int64_t rows;
  const float* x;  // [rows, inputs]
  float* tape;     // or null: nobody goes back
  float* y;        // [rows, outputs]
};

struct Backward {
  int64_t rows;
  const float* x;
  const float* tape;
  const float* slope;  // [rows, outputs], the derivative by y
  float* d_x;          // [rows, inputs], or null
  bool weights;        // whether their gradients are added to
};

// A minibatch of PPO: rows, what they are credited with, and where the loss's parts go.
struct Clipped {
  int64_t rows;
  const float* x;          // [rows, inputs]
  const int64_t* choice;   // [rows] numbers from `start` on, or null: then samples of a Gaussian
  const uint8_t* legal;    // [rows, outputs], or null: all
  const float* sample;     // [rows, outputs]
  const float* log_std;    // [outputs]
  const float* precision;  // [outputs] 1 / std
  float* d_log_std;
  const float* logp;       // [rows] of the behaviour policy
  const float* advantage;  // [rows]
  const float* target;     // [rows]
  const float* weight;     // one number, of every row
  float* loss;             // [rows] written, as are the next
  float* now;              // log-probability
  float* nats;             // entropy
  float* value;
  int64_t start;
  float low, high, value_weight, entropy_weight;
  float volume;            // of the Gaussian's samples: log |d action / d sample|
};

// Of each instruction set.
namespace avx2 {
void forward(const Perceptron& net, const Forward& a);
void backward(const Perceptron& net, const Backward& a);
void clipped(const Perceptron& actor, const Perceptron& critic, const Clipped& a);
}  // namespace avx2
namespace avx512 {
void forward(const Perceptron& net, const Forward& a);
void backward(const Perceptron& net, const Backward& a);
void clipped(const Perceptron& actor, const Perceptron& critic, const Clipped& a);
}  // namespace avx512
namespace avx512_bf16 {  // of rounded numbers alone
void forward(const Perceptron& net, const Forward& a);
void backward(const Perceptron& net, const Backward& a);
}  // namespace avx512_bf16
namespace amx {
void forward(const Perceptron& net, const Forward& a);
void backward(const Perceptron& net, const Backward& a);
void rounded_forward(const Perceptron& net, const Forward& a);
void rounded_backward(const Perceptron& net, const Backward& a);
}  // namespace amx

// Memory that is kept for the next call, of at least `floats`.
float* room(int place, size_t floats);

}  // namespace hone
