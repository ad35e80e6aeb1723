// Linear layers: tiles of rows times panels of 32 output features, accumulated over the inputs in one fixed order.
//
// A row's sum runs over k = 0, 1, 2 ... whatever tile it stands in, so that it does not depend on its neighbours.
#pragma once
#include "engine.h"
#include "vec.h"

namespace hone {
namespace HONE_ISA {

constexpr int TILE_ROWS = LANES == 16 ? 12 : 6;  // 2 accumulators a row, and what is multiplied, fill the registers
constexpr int TASK_ROWS = 96;

template <int ROWS>
static void tile(const float* a, int64_t stride, const float* panel, int k, float* c, const Ahead& ahead) {
  for (int column = 0; column < PANEL; column += 2 * LANES) {
    vf sums[ROWS][2] = {};
    const float* b = panel + column;
    for (int i = 0; i < k; ++i, b += PANEL) {
      ahead.fetch(i);
      const vf left = load(b), right = load(b + LANES);
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; ++row) {
        const vf x = spread(a[row * stride + i]);
        sums[row][0] = fma(x, left, sums[row][0]);
        sums[row][1] = fma(x, right, sums[row][1]);
      }
    }
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) {
      store(c + row * PANEL + column, sums[row][0]);
      store(c + row * PANEL + column + LANES, sums[row][1]);
    }
  }
}

// For processors without products of bfloat16: the same pairs, widened.
template <int ROWS>
static void tile(const bf16* a, int64_t stride, const bf16* panel, int k, float* c, const Ahead& ahead) {
  for (int column = 0; column < PANEL; column += LANES) {
    vf sums[ROWS] = {};
    const bf16* b = panel + 2 * column;
    for (int i = 0; i < k; i += 2, b += 2 * PANEL) {
      ahead.fetch(i / 2);
      const vu pairs = *reinterpret_cast<const vu*>(b);
      const vf even = low_half(pairs), odd = high_half(pairs);
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; ++row) {
        sums[row] = fma(spread(widen(a[row * stride + i])), even, sums[row]);
        sums[row] = fma(spread(widen(a[row * stride + i + 1])), odd, sums[row]);
      }
    }
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) store(c + row * PANEL + column, sums[row]);
  }
}

template <class A>
static void any_tile(const A* a, int64_t stride, int rows, const A* panel, int k, float* c, const Ahead& ahead) {
  switch (rows) {
#define HONE_ROWS(n) \
  case n:            \
    return tile<n>(a, stride, panel, k, c, ahead);
    HONE_ROWS(1)
    HONE_ROWS(2)
    HONE_ROWS(3)
    HONE_ROWS(4) HONE_ROWS(5) HONE_ROWS(6)
#if HONE_LANES == 16
        HONE_ROWS(7) HONE_ROWS(8) HONE_ROWS(9) HONE_ROWS(10) HONE_ROWS(11) HONE_ROWS(12)
#endif
#undef HONE_ROWS
  }
}

HONE_INLINE void run_tile(const Engine&, const float* a, int64_t stride, int rows, const float* panel, int k, float* c,
                          const Ahead& ahead) {
  any_tile(a, stride, rows, panel, k, c, ahead);
}
HONE_INLINE void run_tile(const Engine& e, const bf16* a, int64_t stride, int rows, const bf16* panel, int k, float* c,
                          const Ahead& ahead) {
  e.kernels->tile_bf16(a, stride, rows, panel, k, c, ahead);
}
HONE_INLINE int tile_rows(const Engine&, const float*) { return TILE_ROWS; }
HONE_INLINE int tile_rows(const Engine& e, const bf16*) { return e.kernels->tile_bf16_rows; }

// What becomes of a tile of sums `c` [rows][32], of the features from 32 * panel on.
struct Store {
  float* out;
  int64_t stride;
  void operator()(const float* c, int r, int panel) const {
    float* to = out + r * stride + panel * PANEL;
    for (int i = 0; i < PANEL; i += LANES) store(to + i, load(c + i));
  }
};

struct Add {  // to the residual stream
  float* out;
  int64_t stride;
  void operator()(const float* c, int r, int panel) const {
    float* to = out + r * stride + panel * PANEL;
    for (int i = 0; i < PANEL; i += LANES) store(to + i, load(to + i) + load(c + i));
  }
};

template <class A>
struct GatedSilu {  // silu(gate) * up: 16 gates, then their 16 ups
  A* out;
  int64_t stride;
  void operator()(const float* c, int r, int panel) const {
    A* to = out + r * stride + panel * (PANEL / 2);
    for (int i = 0; i < PANEL / 2; i += LANES) {
      const vf gate = load(c + i), up = load(c + PANEL / 2 + i);
      store(to + i, gate / (spread(1.0f) + exp(-gate)) * up);
    }
  }
};

constexpr int TASK_TOKENS = 4;  // rows that a thread takes at once where a row is little work

template <class Do>
HONE_INLINE void for_rows(Engine& e, int rows, const Do& act) {
  for (int first = pool_take(e.pool, TASK_TOKENS); first < rows; first = pool_take(e.pool, TASK_TOKENS))
    for (int row = first; row < rows && row < first + TASK_TOKENS; ++row) act(row);
  pool_barrier(e.pool);
}

// Blocks that `rows` rows of a product are cut into; of few panels more, so that every thread finds a task.
HONE_INLINE int row_blocks(const Engine& e, const Linear& linear, int rows, int most) {
  const int threads = pool_threads(e.pool), finest = (rows + most - 1) / most;
  const int wanted = (2 * threads + linear.panels - 1) / linear.panels, least = (rows + TASK_ROWS - 1) / TASK_ROWS;
  return least > wanted ? least : (wanted < finest ? wanted : finest);
}

// Task number `task` of a product of `rows` rows: a panel of one of its `blocks`.
template <class A, class Finish>
HONE_INLINE void multiply_task(Engine& e, const Linear& linear, const A* a, int64_t stride, int rows, int blocks,
                               int task, const Finish& finish) {
  const int most = tile_rows(e, a), threads = pool_threads(e.pool);
  alignas(64) float c[MOST_TILE_ROWS * PANEL];
  const int panel = task / blocks, block = task % blocks;
  const int first = int64_t(rows) * block / blocks, last = int64_t(rows) * (block + 1) / blocks;
  const A* weight = linear.weight.as<A>() + size_t(panel) * linear.k * PANEL;
  const float* bias = linear.bias.data ? linear.bias.as<float>() + panel * PANEL : nullptr;
  const int tiles = (last - first + most - 1) / most, likely = panel + (threads + blocks - 1) / blocks;
  // A tile asks for its share of the panel that comes next, a little with every product.
  const int share = tiles > 2 ? (4 * PANEL + tiles - 1) / tiles : 64;
  const int64_t asks = int64_t(linear.k) * int64_t(sizeof(A)) / 4;
  const char* next = reinterpret_cast<const char*>(linear.weight.as<A>() + size_t(likely) * linear.k * PANEL);
  const bool known = likely < linear.panels;
  for (int t = 0; t < tiles; ++t) {
    const int from = first + (last - first) * t / tiles, to = first + (last - first) * (t + 1) / tiles;
    HONE_CHECK(from < to && to - from <= most && to <= rows);
    const Ahead ahead =
        known ? Ahead{next + t * asks * share, share} : Ahead{reinterpret_cast<const char*>(weight), 0};
    run_tile(e, a + from * stride, stride, to - from, weight, linear.k, c, ahead);
    for (int row = from; row < to; ++row) {
      float* sums = c + (row - from) * PANEL;
      if (bias)
        for (int i = 0; i < PANEL; i += LANES) store(sums + i, load(sums + i) + load(bias + i));
      finish(sums, row, panel);
    }
  }
}

// `a` [rows, linear.k] times the layer's weight. Tasks are panels of blocks of rows, handed to whoever is free.
template <class A, class Finish>
static void multiply(Engine& e, const Linear& linear, const A* a, int64_t stride, int rows, const Finish& finish) {
  const int blocks = row_blocks(e, linear, rows, tile_rows(e, a)), tasks = linear.panels * blocks;
  for (int task = pool_take(e.pool, 1); task < tasks; task = pool_take(e.pool, 1))
    multiply_task(e, linear, a, stride, rows, blocks, task, finish);
  pool_barrier(e.pool);
}

// One panel of `linear`, from the trainer's weight [rows, columns] in its own type.
template <class T, class A>
static void pack_panel(Linear& linear, const Source& source, int panel) {
  const T* weight = static_cast<const T*>(source.weight->data);
  A* out = linear.weight.as<A>() + size_t(panel) * linear.k * PANEL;
  int origin[PANEL];  // the trainer's row of each of the panel's features; -1: padding
  for (int j = 0; j < PANEL; ++j) {
    const int half = PANEL / 2, row = source.gated ? panel * half + j % half : panel * PANEL + j;
    const int at = row % source.row_pad, chunk = row / source.row_pad;
    const int kept = source.gated ? source.rows / 2 : source.rows;
    const int from = at < source.row_chunk ? chunk * source.row_chunk + at : kept;
    origin[j] = from < kept ? from + (source.gated && j >= half ? kept : 0) : -1;
  }
  // Blocks of inputs, read along the trainer's rows and turned around in the cache. Column chunks are padded to 32.
  constexpr int DEEP = 16, WORDS = DEEP * int(sizeof(A)) / 4;
  alignas(64) A part[PANEL][DEEP];
  for (int k = 0; k < linear.k; k += DEEP) {
    const int at = k % source.column_pad, from = k / source.column_pad * source.column_chunk + at;
    const int left = source.column_chunk - at < source.columns - from ? source.column_chunk - at : source.columns - from;
    for (int j = 0; j < PANEL; ++j) {
      const T* row = weight + size_t(origin[j] < 0 ? 0 : origin[j]) * source.columns + from;
      const int real = origin[j] < 0 ? 0 : left;
      if (real >= DEEP)
        for (int i = 0; i < DEEP; i += LANES) store(part[j] + i, load(row + i));
      else
        for (int i = 0; i < DEEP; ++i) narrow(i < real ? widen(row[i]) : 0.0f, part[j] + i);
    }
    uint32_t words[PANEL][WORDS];
    __builtin_memcpy(words, part, sizeof(words));
    uint32_t* to = reinterpret_cast<uint32_t*>(out + size_t(k) * PANEL);
    for (int i = 0; i < WORDS; ++i)
      for (int j = 0; j < PANEL; ++j) to[i * PANEL + j] = words[j][i];
  }
  if (!linear.bias.data) return;
  for (int j = 0; j < PANEL; ++j) {
    const HoneTensor* bias = source.bias;
    float* to = linear.bias.as<float>() + panel * PANEL + j;
    if (origin[j] < 0)
      *to = 0.0f;
    else
      *to = bias->bfloat16 ? widen(static_cast<const bf16*>(bias->data)[origin[j]])
                           : static_cast<const float*>(bias->data)[origin[j]];
  }
}

static void pack(Engine& e, Linear& linear, const Source& source, int panel) {
  HONE_CHECK(panel < linear.panels &&
             size_t(linear.panels) * linear.k * PANEL * (e.dims.shape.bfloat16 ? 2 : 4) <= linear.weight.bytes);
  if (e.dims.shape.bfloat16)
    source.weight->bfloat16 ? pack_panel<bf16, bf16>(linear, source, panel)
                            : pack_panel<float, bf16>(linear, source, panel);
  else
    source.weight->bfloat16 ? pack_panel<bf16, float>(linear, source, panel)
                            : pack_panel<float, float>(linear, source, panel);
}

}  // namespace HONE_ISA
}  // namespace hone
