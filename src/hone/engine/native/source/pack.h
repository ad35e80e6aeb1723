// The trainer's weights, laid out in panels of 32 output features for the tiles of gemm.h.
#pragma once
#include "codes.h"

namespace hone {
namespace HONE_ISA {

constexpr int DEEP = 16;  // inputs that are read along the trainer's rows and turned around in the cache

// The trainer's row of each of a panel's features; -1: padding.
HONE_INLINE void find_origin(const Source& source, int panel, int* origin) {
  for (int j = 0; j < PANEL; ++j) {
    const int half = PANEL / 2, row = source.gated ? panel * half + j % half : panel * PANEL + j;
    const int at = row % source.row_pad, chunk = row / source.row_pad;
    const int kept = source.gated ? source.rows / 2 : source.rows;
    const int from = at < source.row_chunk ? chunk * source.row_chunk + at : kept;
    origin[j] = from < kept ? from + (source.gated && j >= half ? kept : 0) : -1;
  }
}

// DEEP numbers of one of the trainer's rows.
template <class T>
struct Stretch {
  const T* at;
  int real;  // how many are there, the rest being zeros

  // Inputs k .. of row `origin`. Column chunks are padded to 32.
  Stretch(const Source& source, int origin, int k) {
    const int into = k % source.column_pad, from = k / source.column_pad * source.column_chunk + into;
    const int chunk = source.column_chunk - into, left = source.columns - from;
    real = origin < 0 ? 0 : (chunk < left ? chunk : left);
    at = static_cast<const T*>(source.weight->data) + size_t(origin < 0 ? 0 : origin) * source.columns + from;
  }

  template <class A>
  void copy(A* to) const {
    if (real >= DEEP)
      for (int i = 0; i < DEEP; i += LANES) store(to + i, load(at + i));
    else
      for (int i = 0; i < DEEP; ++i) narrow(i < real ? widen(at[i]) : 0.0f, to + i);
  }
};

// [PANEL][DEEP] elements, as columns of words of 32 bits.
template <class A>
HONE_INLINE void turn_words(const A (*part)[DEEP], A* to) {
  constexpr int WORDS = DEEP * int(sizeof(A)) / 4;
  uint32_t words[PANEL][WORDS], turned[WORDS][PANEL];
  __builtin_memcpy(words, part, sizeof(words));
  for (int i = 0; i < WORDS; ++i)
    for (int j = 0; j < PANEL; ++j) turned[i][j] = words[j][i];
  __builtin_memcpy(to, turned, sizeof(turned));
}

// One panel of `linear`, from the trainer's weight [rows, columns] in its own type.
template <class T, class A>
static void pack_panel(Linear& linear, const Source& source, int panel) {
  int origin[PANEL];
  find_origin(source, panel, origin);
  A* out = linear.weight.as<A>() + size_t(panel) * linear.k * PANEL;
  alignas(64) A part[PANEL][DEEP];
  for (int k = 0; k < linear.k; k += DEEP) {
    for (int j = 0; j < PANEL; ++j) Stretch<T>(source, origin[j], k).copy(part[j]);
    turn_words(part, out + size_t(k) * PANEL);
  }
}

// The same in codes, with the scale of each feature, and what the 128 of its inputs adds to its sum.
template <class T>
static void pack_codes(Linear& linear, const Source& source, int panel) {
  int origin[PANEL];
  find_origin(source, panel, origin);
  const bool wide = linear.planes == 2;
  const size_t plane = size_t(linear.panels) * linear.k * PANEL;
  int8_t* out = linear.weight.as<int8_t>() + size_t(panel) * linear.k * PANEL;
  int32_t *offset = linear.offset.as<int32_t>() + panel * PANEL, *lower_offset = offset + linear.panels * PANEL;
  alignas(64) int8_t upper[PANEL][DEEP], lower[PANEL][DEEP];
  alignas(64) float numbers[DEEP];
  Coding coding[PANEL];
  for (int j = 0; j < PANEL; ++j) {
    float most = 0;
    for (int k = 0; k < linear.k; k += DEEP) {
      Stretch<T>(source, origin[j], k).copy(numbers);
      const float here = largest(numbers, DEEP);
      most = here <= most ? most : here;  // what is not a number is kept
      if (most != most) break;
    }
    coding[j] = Coding(most, wide ? MOST_WIDE_CODE : MOST_CODE);
    linear.scale.as<float>()[panel * PANEL + j] = coding[j].scale;
    offset[j] = 0;
    if (wide) lower_offset[j] = 0;
  }
  for (int k = 0; k < linear.k; k += DEEP) {
    for (int j = 0; j < PANEL; ++j) {
      Stretch<T>(source, origin[j], k).copy(numbers);
      for (int i = 0; i < DEEP; i += LANES) {
        const vu word = encode(load(numbers + i), coding[j].inverse, wide ? 128 : 0);
        store_bytes(upper[j] + i, wide ? word >> 8 : word);
        if (wide) store_bytes(lower[j] + i, word ^ 0x80);
      }
      for (int i = 0; i < DEEP; ++i) offset[j] += 128 * upper[j][i];
      for (int i = 0; wide && i < DEEP; ++i) lower_offset[j] += 128 * lower[j][i];
    }
    turn_words(upper, out + size_t(k) * PANEL);
    if (wide) turn_words(lower, out + plane + size_t(k) * PANEL);
  }
}

static void pack_bias(Linear& linear, const Source& source, int panel) {
  int origin[PANEL];
  find_origin(source, panel, origin);
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

// Where a panel of a low-rank update has other numbers than zeros: layers that share one input have columns of their own.
static void find_range(Linear& linear, int panel) {
  const float* weight = linear.weight.as<float>() + size_t(panel) * linear.k * PANEL;
  Range range = {linear.k, 0};
  for (int k = 0; k < linear.k; ++k)
    for (int j = 0; j < PANEL; ++j)
      if (weight[k * PANEL + j] != 0.0f) {
        range.first = k < range.first ? k : range.first;
        range.last = k + 1;
      }
  linear.ranges[panel] = range.first < range.last ? range : Range{0, 0};
}

static void pack(Engine& e, Linear& linear, const Source& source, int panel) {
  if (linear.blocks) return pack_bias(linear, source, panel);
  const size_t element = linear.planes ? linear.planes : e.dims.number;
  HONE_CHECK(panel < linear.panels && size_t(linear.panels) * linear.k * PANEL * element <= linear.weight.bytes);
  if (linear.bias.data) pack_bias(linear, source, panel);
  if (linear.planes)
    source.weight->bfloat16 ? pack_codes<bf16>(linear, source, panel) : pack_codes<float>(linear, source, panel);
  else if (e.dims.number == sizeof(bf16))
    source.weight->bfloat16 ? pack_panel<bf16, bf16>(linear, source, panel)
                            : pack_panel<float, bf16>(linear, source, panel);
  else
    source.weight->bfloat16 ? pack_panel<bf16, float>(linear, source, panel)
                            : pack_panel<float, float>(linear, source, panel);
  if (!linear.ranges.empty()) find_range(linear, panel);
}

}  // namespace HONE_ISA
}  // namespace hone
