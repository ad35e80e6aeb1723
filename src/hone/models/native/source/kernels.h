// The plain C interface of the trainer's kernels: what library.py mirrors, field by field; and the table of one
// instruction set.
//
// A tensor is contiguous. Its type is a number: FLOAT or BFLOAT. Results depend neither on the number of threads nor on
// which of them does what: work is cut into tasks by its shape alone, and partial sums are added in the tasks' order.
#pragma once
#include <cstddef>
#include <cstdint>

#include "basics.h"

extern "C" {

// stream = x + delta;  out = stream * r * weight,  r = (mean(stream^2) + eps)^-1/2.
struct HoneNorm {
  int64_t rows, width;
  int32_t stream_type, delta_type, out_type, threads;  // the weight is of the stream's type
  float eps;
  const void *x, *weight;
  const void* delta;  // or null: nothing is added, and `stream` is not written
  void *stream, *out;
  float* r;  // [rows]
};

// d_stream = d_above + r (g w - s r^2 mean(g w s)), the gradient of both x and delta.
struct HoneNormBack {
  int64_t rows, width;
  int32_t stream_type, delta_type, out_type, threads;
  const void *stream, *weight, *g;
  const float* r;
  const void* d_above;  // or null: nobody reads the stream itself
  void* d_stream;
  void* d_delta;   // or null: not wanted, or `d_stream` serves
  float* partial;  // [blocks, width] room for the weight's gradient, or null
  float* d_weight;
};

// out = silu(gate) * up, of rows [gate, up].
struct HoneGate {
  int64_t rows, width;  // of `out`
  int32_t type, threads;
  const void* gate_up;
  const void* g;  // backward: the gradient of `out`
  void* out;      // backward: [rows, 2 width]
};

// Causal attention of packed texts, from what the linear layer before it wrote: heads are normed and turned on the way.
struct HoneAttention {
  int32_t heads, kv_heads, head_dim, type, threads;
  int32_t tasks;            // rows of texts that read the same trunk
  const int64_t* first;     // [tasks + 1]: the texts of each, its trunk (which may be empty) before the others
  const int64_t *at, *len;  // [texts] tokens that are a text's own
  const void* qkv;          // [T, (heads + 2 kv_heads) head_dim]
  const float* turns;       // [T, head_dim / 2, 2] cosines and sines
  const void *q_norm, *k_norm;  // [head_dim] of type norm_type, or null
  int32_t norm_type;
  float eps;
  void* mixed;         // [T, heads head_dim]; backward: its gradient
  float* shares;       // [T, heads, 2]: the largest score of each query, and one over the sum of the exp of the others
  void* d_qkv;         // backward
  float* partial;      // backward: [tasks, kv_heads, 2, head_dim] room for the gradients of the norms, or null
  float* d_norms;      // backward: [2, head_dim]
};

// out = g^T x, of bfloat16 numbers: the gradient of a linear layer's weight.
struct HoneSlope {
  int64_t tokens, outs, ins;  // widths are multiples of 32
  int32_t threads;
  const void *g, *x;  // [tokens, outs], [tokens, ins]
  void* room;         // [SLOPE_ROOM, ins] bfloat16
  float* out;         // [outs, ins]
};

// out = left right + bias + out, of numbers that are rounded to bfloat16, or of float32 numbers as they are. Rows of each
// lie `stride` numbers apart.
struct HoneProduct {
  int64_t rows, columns, depth;
  int64_t left_stride, right_stride, out_stride;
  int32_t left_depth_first;   // left is [depth, rows], not [rows, depth]
  int32_t right_depth_first;  // right is [depth, columns], not [columns, depth]
  int32_t add, threads;       // add: `out` has what the sums go on from, and there is no bias
  int32_t rounded;            // to bfloat16; else there have to be tiles
  int32_t left_half, right_half;  // the factor is of bfloat16 numbers
  const void *left, *right;
  const float* bias;  // [columns], or null
  float* out;         // [rows, columns]
};

// Rows of a weight in codes (models/language/quantised_linear.py), as numbers.
struct HoneBlocks {
  int64_t rows, groups;         // groups of 32 inputs
  int32_t bits, type, threads;  // `type`: of `out`
  const uint8_t* blocks;
  const int64_t* place;  // [rows] outputs by their places in the blocks
  void* out;             // [rows, 32 groups]
};

}  // extern "C"

namespace hone {

enum Type { FLOAT, BFLOAT };
constexpr int BLOCK = 64;  // rows that one task of a norm takes
constexpr int SLOPE_ROOM = 512;  // tokens

struct Kernels {
  void (*norm)(const HoneNorm&);
  void (*norm_back)(const HoneNormBack&);
  void (*gate)(const HoneGate&);
  void (*gate_back)(const HoneGate&);
  void (*attend)(const HoneAttention&);
  void (*attend_back)(const HoneAttention&);
  void (*decode)(const HoneBlocks&);
};

// Calls task(context, number) for each number below `count`, on up to `threads` threads. No order is promised.
void spread_tasks(int threads, int64_t count, void (*task)(const void* context, int64_t number), const void* context);

template <class F>
static inline void for_tasks(int threads, int64_t count, const F& f) {
  spread_tasks(threads, count, [](const void* context, int64_t n) { (*static_cast<const F*>(context))(n); }, &f);
}

// Memory of the calling thread that only grows; what was in it is lost when it does. There are two, by number.
float* scratch(size_t floats, int number = 0);

}  // namespace hone
