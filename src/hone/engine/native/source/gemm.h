// Linear layers: tiles of rows times panels of 32 output features, accumulated over the inputs in one fixed order.
//
// A row's sum runs over k = 0, 1, 2 ... whatever tile it stands in, so that it does not depend on its neighbours.
#pragma once
#include "codes.h"

namespace hone {
namespace HONE_ISA {

constexpr int TILE_ROWS = LANES == 16 ? 12 : 6;  // 2 accumulators a row, and what is multiplied, fill the registers
constexpr int TASK_ROWS = 96;

// With ADD to what stands in `c`.
template <int ROWS, bool ADD = false>
static void tile(const float* a, int64_t stride, const float* panel, int k, float* c, const Ahead& ahead) {
  for (int column = 0; column < PANEL; column += 2 * LANES) {
    vf sums[ROWS][2] = {};
    if (ADD) {
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; ++row) {
        sums[row][0] = load(c + row * PANEL + column);
        sums[row][1] = load(c + row * PANEL + column + LANES);
      }
    }
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

constexpr int WIDENED = HONE_LANES == 8 ? 64 : 128;  // inputs of a tile's rows that are widened at once

// For processors without products of bfloat16: the same numbers, widened. The rows are, before, for all of a panel.
template <int ROWS>
static void tile(const bf16* a, int64_t stride, const bf16* panel, int k, float* c, const Ahead& ahead) {
  alignas(64) float wide[ROWS][WIDENED];
  for (int from = 0; from < k; from += WIDENED) {
    const int count = k - from < WIDENED ? k - from : WIDENED;
    for (int row = 0; row < ROWS; ++row)
      for (int i = 0; i < count; i += LANES) store(wide[row] + i, load(a + row * stride + from + i));
    for (int column = 0; column < PANEL; column += 2 * LANES) {
      vf sums[ROWS][2] = {};
      if (from) {
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row) {
          sums[row][0] = load(c + row * PANEL + column);
          sums[row][1] = load(c + row * PANEL + column + LANES);
        }
      }
      const bf16* b = panel + int64_t(from) * PANEL + 2 * column;
      for (int i = 0; i < count; i += 2, b += 2 * PANEL) {
        ahead.fetch((from + i) / 2);
        const vu* words = reinterpret_cast<const vu*>(b);
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; ++odd) {
          const vf left = odd ? high_half(words[0]) : low_half(words[0]);
          const vf right = odd ? high_half(words[1]) : low_half(words[1]);
#pragma GCC unroll 12
          for (int row = 0; row < ROWS; ++row) {
            const vf x = spread(wide[row][i + odd]);
            sums[row][0] = fma(x, left, sums[row][0]);
            sums[row][1] = fma(x, right, sums[row][1]);
          }
        }
      }
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; ++row) {
        store(c + row * PANEL + column, sums[row][0]);
        store(c + row * PANEL + column + LANES, sums[row][1]);
      }
    }
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

template <int MOST>
static void add_rows(const float* a, int64_t stride, int rows, const float* panel, int k, float* c,
                     const Ahead& ahead) {
  if constexpr (MOST > 1)
    if (rows < MOST) return add_rows<MOST - 1>(a, stride, rows, panel, k, c, ahead);
  tile<MOST, true>(a, stride, panel, k, c, ahead);
}

#if HONE_LANES == 8
#define HONE_WIDE_TILES 1
constexpr int WIDE_TILE_ROWS = 64;  // with 64 inputs: 16 KiB of rows, 8 of a panel and 8 of sums fill the first cache
constexpr int MOST_ROWS = WIDE_TILE_ROWS;

// With six rows in the registers, widening a panel for each of them takes a quarter of the time: here it is widened in
// the first cache, WIDENED inputs at once, for all rows of a larger tile. Sums are those of `tile`, to the bit.
static void wide_tile(const bf16* a, int64_t stride, int rows, const bf16* panel, int k, float* c, const Ahead& ahead) {
  if (rows <= TILE_ROWS) return any_tile(a, stride, rows, panel, k, c, ahead);
  alignas(64) float left[WIDE_TILE_ROWS][WIDENED], right[WIDENED][PANEL];
  __builtin_memset(c, 0, size_t(rows) * PANEL * sizeof(float));
  const int parts = (rows + TILE_ROWS - 1) / TILE_ROWS;
  const Ahead nothing = {reinterpret_cast<const char*>(left), 0};
  for (int from = 0; from < k; from += WIDENED) {
    const int count = k - from < WIDENED ? k - from : WIDENED;
    for (int row = 0; row < rows; ++row)
      for (int i = 0; i < count; i += LANES) store(left[row] + i, load(a + row * stride + from + i));
    const vu* words = reinterpret_cast<const vu*>(panel + int64_t(from) * PANEL);
    for (int i = 0; i < count; i += 2, words += PANEL / LANES) {
      ahead.fetch((from + i) / 2);
#pragma GCC unroll 4
      for (int u = 0; u < PANEL / LANES; ++u) {
        store(right[i] + u * LANES, low_half(words[u]));
        store(right[i + 1] + u * LANES, high_half(words[u]));
      }
    }
    for (int part = 0; part < parts; ++part) {
      const int first = rows * part / parts, last = rows * (part + 1) / parts;
      add_rows<TILE_ROWS>(left[first], WIDENED, last - first, right[0], count, c + first * PANEL, nothing);
    }
  }
}
#else
constexpr int MOST_ROWS = MOST_TILE_ROWS;
#endif

HONE_INLINE void run_tile(const Engine&, const float* a, int64_t stride, int rows, const float* panel, int k, float* c,
                          const Ahead& ahead) {
  any_tile(a, stride, rows, panel, k, c, ahead);
}
HONE_INLINE void run_tile(const Engine& e, const bf16* a, int64_t stride, int rows, const bf16* panel, int k, float* c,
                          const Ahead& ahead) {
  e.kernels->tile_bf16(a, stride, rows, panel, k, c, ahead);
}

// What stands on the left of a product: rows of numbers, or their codes.
template <class A>
struct Rows {
  const A* at;
  int64_t stride;
  static constexpr int BYTES = sizeof(A);  // of a weight

  static int64_t panel_bytes(const Engine&, const Linear& linear) { return int64_t(linear.k) * PANEL * BYTES; }
  static const char* weights(const Linear& linear) { return linear.weight.as<char>(); }
  static int64_t asks(const Linear& linear) { return int64_t(linear.k) * BYTES / 4; }  // for what comes next

  Rows below(int row) const { return {at + row * stride, stride}; }
  int tile_rows(const Engine& e) const {
    return sizeof(A) == sizeof(float) ? TILE_ROWS : e.kernels->tile_bf16_rows;
  }
  // Sums of `count` rows from `from` on, times a panel: c [count][32].
  void sums(const Engine& e, const Linear& linear, int panel, int from, int count, float* c, const Ahead& ahead) const {
    const A* weight = linear.weight.as<A>() + size_t(panel) * linear.k * PANEL;
    run_tile(e, at + from * stride, stride, count, weight, linear.k, c, ahead);
    if (!linear.bias.data) return;
    const float* bias = linear.bias.as<float>() + panel * PANEL;
    for (int i = 0; i < count * PANEL; i += LANES) store(c + i, load(c + i) + load(bias + i % PANEL));
  }
};

// The same, and to the sums of each row those of its adapter's update: `low` [rows][low_stride] is its middle.
struct AdaptedRows {
  Rows<float> rows;
  const std::vector<AdapterRows>& adapted;
  int update;
  const float* low;
  int64_t low_stride;

  static int64_t panel_bytes(const Engine& e, const Linear& linear) { return Rows<float>::panel_bytes(e, linear); }
  static const char* weights(const Linear& linear) { return Rows<float>::weights(linear); }
  static int64_t asks(const Linear& linear) { return Rows<float>::asks(linear); }
  int tile_rows(const Engine& e) const { return rows.tile_rows(e); }

  void sums(const Engine& e, const Linear& linear, int panel, int from, int count, float* c, const Ahead& ahead) const {
    rows.sums(e, linear, panel, from, count, c, ahead);
    const Ahead nothing = {reinterpret_cast<const char*>(c), 0};
    for (const AdapterRows& part : adapted) {
      const int first = part.first > from ? part.first : from;
      const int last = part.last < from + count ? part.last : from + count;
      const LowRank& own = part.adapter->updates[update];
      if (first >= last || !own.present) continue;
      const Range& range = own.out.ranges[panel];
      const float* b = own.out.weight.as<float>() + (size_t(panel) * own.out.k + range.first) * PANEL;
      add_rows<TILE_ROWS>(low + first * low_stride + range.first, low_stride, last - first, b,
                          range.last - range.first, c + (first - from) * PANEL, nothing);
    }
  }
};

struct Codes {
  const uint8_t* at;
  const float* scale;  // what a code of each row counts
  int64_t stride, plane;
  static constexpr int BYTES = 1;

  static int64_t panel_bytes(const Engine&, const Linear& linear) { return int64_t(linear.k) * PANEL * BYTES; }
  static const char* weights(const Linear& linear) { return linear.weight.as<char>(); }
  static int64_t asks(const Linear& linear) { return int64_t(linear.k) * BYTES / 4; }  // for what comes next

  Codes below(int row) const { return {at + row * stride, scale + row, stride, plane}; }
  int tile_rows(const Engine& e) const { return e.kernels->codes.tile_rows; }

  void sums(const Engine& e, const Linear& linear, int panel, int from, int count, float* c, const Ahead& ahead) const {
    alignas(64) int32_t upper[MOST_TILE_ROWS * PANEL], lower[MOST_TILE_ROWS * PANEL], crossed[MOST_TILE_ROWS * PANEL];
    const size_t weights = size_t(linear.panels) * linear.k * PANEL;
    const int8_t* weight = linear.weight.as<int8_t>() + size_t(panel) * linear.k * PANEL;
    const int32_t* offset = linear.offset.as<int32_t>() + panel * PANEL;
    const uint8_t* a = at + from * stride;
    const TileCodes tile = e.kernels->codes.tile;
    tile(a, stride, count, weight, linear.k, upper, ahead);
    if (linear.planes == 2) {  // of the lower bytes' own product nothing is left at float32's precision
      tile(a, stride, count, weight + weights, linear.k, lower, ahead);
      tile(a + plane, stride, count, weight, linear.k, crossed, ahead);
    }
    const float* scales = linear.scale.as<float>() + panel * PANEL;
    const float* bias = linear.bias.data ? linear.bias.as<float>() + panel * PANEL : nullptr;
    for (int row = 0; row < count; ++row)
      for (int i = 0; i < PANEL; i += LANES) {
        const int place = row * PANEL + i;
        const auto whole = [&](const int32_t* sums) { return *reinterpret_cast<const vi*>(sums + place); };
        const auto load_offset = [&](const int32_t* p) { return *reinterpret_cast<const vi*>(p + i); };
        vf sum = __builtin_convertvector(whole(upper) - load_offset(offset), vf);
        if (linear.planes == 2) {
          const vi last = load_offset(offset) + load_offset(offset + linear.panels * PANEL);
          sum = fma(sum, spread(256), __builtin_convertvector(whole(lower) + whole(crossed) - last, vf)) * spread(256);
        }
        sum = sum * spread(scale[from + row]) * load(scales + i);
        store(c + place, bias ? sum + load(bias + i) : sum);
      }
  }
};

// Codes of activations that meet a weight in blocks, and the middle of the low-rank update beside it.
struct Blocks {
  BlockRows rows;
  const LowRank* update;  // or null
  const float* low;       // [rows][low_stride]
  int64_t low_stride;

  int tile_rows(const Engine& e) const { return e.kernels->codes.block_rows; }
  void sums(const Engine& e, const Linear& linear, int panel, int from, int count, float* c, const Ahead& ahead) const {
    const int groups = linear.k / PANEL, bits = e.dims.shape.bits;
    const uint8_t* blocks = linear.blocks + panel * panel_bytes(e, linear);
    e.kernels->codes.blocks(rows, from, count, blocks, groups, bits, c, ahead);
    if (update) {
      const Range& range = update->out.ranges[panel];
      const float* b = update->out.weight.as<float>() + (size_t(panel) * update->out.k + range.first) * PANEL;
      const Ahead nothing = {reinterpret_cast<const char*>(c), 0};
      add_rows<TILE_ROWS>(low + from * low_stride + range.first, low_stride, count, b, range.last - range.first, c,
                          nothing);
    }
    if (!linear.bias.data) return;
    const float* bias = linear.bias.as<float>() + panel * PANEL;
    for (int i = 0; i < count * PANEL; i += LANES) store(c + i, load(c + i) + load(bias + i % PANEL));
  }
  int64_t panel_bytes(const Engine& e, const Linear& linear) const {
    return linear.k / PANEL * int64_t(PANEL * PANEL * e.dims.shape.bits / 8 + 2 * PANEL);
  }
  static const char* weights(const Linear& linear) { return reinterpret_cast<const char*>(linear.blocks); }
  static int64_t asks(const Linear& linear) { return linear.k / 4; }
};

// What becomes of a tile of sums `c` [rows][32], of the features from 32 * panel on.
struct Store {
  float* out;
  int64_t stride;
  void operator()(const float* c, int r, int panel) const {
    float* to = out + r * stride + panel * PANEL;
    for (int i = 0; i < PANEL; i += LANES) store(to + i, load(c + i));
  }
};

struct Add {  // to the residual stream, times a factor
  float* out;
  int64_t stride;
  float factor;
  void operator()(const float* c, int r, int panel) const {
    float* to = out + r * stride + panel * PANEL;
    for (int i = 0; i < PANEL; i += LANES) store(to + i, load(to + i) + load(c + i) * spread(factor));
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

template <class A>
struct GatedGelu {  // the same with gelu(x) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
  A* out;
  int64_t stride;
  void operator()(const float* c, int r, int panel) const {
    A* to = out + r * stride + panel * (PANEL / 2);
    for (int i = 0; i < PANEL / 2; i += LANES) {
      const vf gate = load(c + i), up = load(c + PANEL / 2 + i);
      const vf inner = fma(gate * gate * gate, spread(0.044715f), gate) * spread(-1.5957691216057308f);
      store(to + i, gate / (spread(1.0f) + exp(inner)) * up);
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

template <class A>
constexpr bool MAY_BE_CODED = sizeof(A) == sizeof(float);  // activations that are coded are float32 before

// Codes of rows of activations, ready for a product; with `wide` of 16 bits.
HONE_INLINE void encode_at(Engine& e, const float* x, int count, int row, int64_t rows, bool wide) {
  uint8_t* codes = e.codes.as<uint8_t>() + int64_t(row) * e.dims.codes;
  float* scale = e.code_scale.as<float>() + row;
  *scale = wide ? encode_wide_row(x, count, codes, codes + rows * e.dims.codes) : encode_row(x, count, codes);
}
HONE_INLINE void encode_at(Engine&, const bf16*, int, int, int64_t, bool) {}
HONE_INLINE Codes codes_of(const Engine& e, int64_t rows) {
  return {e.codes.as<uint8_t>(), e.code_scale.as<float>(), e.dims.codes, rows * e.dims.codes};
}
// The same beside blocks.
HONE_INLINE void encode_blocks_at(Engine& e, const float* x, int count, int row, int64_t rows, int planes) {
  const int64_t stride = e.dims.codes, groups = stride / PANEL;
  uint8_t* codes = e.codes.as<uint8_t>() + row * stride;
  encode_blocks(x, count, planes, e.dims.shape.bits, codes, codes + rows * stride,
                e.code_scale.as<float>() + row * groups, e.code_begin.as<int32_t>() + row * groups);
}
HONE_INLINE void encode_blocks_at(Engine&, const bf16*, int, int, int64_t, int) {}
HONE_INLINE Blocks blocks_of(const Engine& e, int64_t rows, int planes, const LowRank* update) {
  const BlockRows coded = {e.codes.as<uint8_t>(), e.dims.codes, rows * e.dims.codes, e.code_scale.as<float>(),
                           e.code_begin.as<int32_t>(), planes};
  return {coded, update && update->present ? update : nullptr, e.low.as<float>(), e.dims.low};
}
template <class A>
static Codes encoded(Engine& e, const A* a, int width, int rows) {
  for_rows(e, rows, [&](int row) { encode_at(e, a + int64_t(row) * width, width, row, rows, false); });
  return codes_of(e, rows);
}

// Blocks that `rows` rows of a product are cut into; of few panels more, so that every thread finds a task.
HONE_INLINE int row_blocks(const Engine& e, const Linear& linear, int rows, int most) {
  const int threads = pool_threads(e.pool), finest = (rows + most - 1) / most;
  const int wanted = (2 * threads + linear.panels - 1) / linear.panels, least = (rows + TASK_ROWS - 1) / TASK_ROWS;
  return least > wanted ? least : (wanted < finest ? wanted : finest);
}

// Task number `task` of a product of `rows` rows: a panel of one of its `blocks`.
template <class Left, class Finish>
HONE_INLINE void multiply_task(Engine& e, const Linear& linear, const Left& left, int rows, int blocks, int task,
                               const Finish& finish) {
  const int most = left.tile_rows(e), threads = pool_threads(e.pool);
  alignas(64) float c[MOST_ROWS * PANEL];
  const int panel = task / blocks, block = task % blocks;
  const int first = int64_t(rows) * block / blocks, last = int64_t(rows) * (block + 1) / blocks;
  const int64_t panel_bytes = left.panel_bytes(e, linear);
  const int tiles = (last - first + most - 1) / most, likely = panel + (threads + blocks - 1) / blocks;
  // A tile asks for its share of the panel that comes next, a little with every product.
  const int share = tiles > 2 ? (4 * PANEL + tiles - 1) / tiles : 64;
  const int64_t asks = left.asks(linear);
  const char *weights = left.weights(linear), *next = weights + likely * panel_bytes;
  const bool known = likely < linear.panels;
  for (int t = 0; t < tiles; ++t) {
    const int from = first + (last - first) * t / tiles, to = first + (last - first) * (t + 1) / tiles;
    HONE_CHECK(from < to && to - from <= most && to <= rows);
    const Ahead ahead = known ? Ahead{next + t * asks * share, share} : Ahead{weights + panel * panel_bytes, 0};
    left.sums(e, linear, panel, from, to - from, c, ahead);
    for (int row = from; row < to; ++row) finish(c + (row - from) * PANEL, row, panel);
  }
}

// `left` [rows, linear.k] times the layer's weight. Tasks are panels of blocks of rows, handed to whoever is free.
template <class Left, class Finish>
static void multiply(Engine& e, const Linear& linear, const Left& left, int rows, const Finish& finish) {
  const int blocks = row_blocks(e, linear, rows, left.tile_rows(e)), tasks = linear.panels * blocks;
  for (int task = pool_take(e.pool, 1); task < tasks; task = pool_take(e.pool, 1))
    multiply_task(e, linear, left, rows, blocks, task, finish);
  pool_barrier(e.pool);
}

// The middles of the updates of rows that have an adapter. Tasks are panels of parts of rows.
HONE_INLINE void multiply_low(Engine& e, const std::vector<AdapterRows>& adapted, int update, const Rows<float>& rows) {
  const int most = rows.tile_rows(e), parts = int(adapted.size());
  alignas(64) float c[MOST_ROWS * PANEL];
  const Ahead nothing = {reinterpret_cast<const char*>(c), 0};
  for (int task = pool_take(e.pool, 1); task < parts; task = pool_take(e.pool, 1)) {
    const AdapterRows& part = adapted[task];
    const LowRank& own = part.adapter->updates[update];
    const Store finish = {e.low.as<float>(), e.adapter_low};
    for (int panel = 0; own.present && panel < own.in.panels; ++panel)
      for (int from = part.first; from < part.last; from += most) {
        const int count = part.last - from < most ? part.last - from : most;
        rows.sums(e, own.in, panel, from, count, c, nothing);
        for (int row = 0; row < count; ++row) finish(c + row * PANEL, from + row, panel);
      }
  }
  pool_barrier(e.pool);
}

// A product of numbers, each row with its adapter's update, if it has one. Those of bfloat16 have none.
template <class A, class Finish>
static void multiply_adapted(Engine& e, const Linear& linear, const std::vector<AdapterRows>& adapted, int update,
                             const Rows<A>& rows, int count, const Finish& finish) {
  if constexpr (MAY_BE_CODED<A>)
    if (!adapted.empty()) {
      multiply_low(e, adapted, update, rows);
      return multiply(e, linear, AdaptedRows{rows, adapted, update, e.low.as<float>(), e.adapter_low}, count, finish);
    }
  multiply(e, linear, rows, count, finish);
}

}  // namespace HONE_ISA
}  // namespace hone
