// silu(gate) * up, and its gradient: with s = sigmoid(x), d silu(x) = s (1 + x (1 - s)) (Shazeer, 2020).
#pragma once
#include "rows.h"

namespace hone {
namespace HONE_ISA {

// 1 / x to about a unit in the last place; a division keeps the unit that does it busy five times as long.
HONE_INLINE vf inverse(vf x) {
#if defined(__AVX512F__)
  const vf near = reinterpret_cast<vf>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x)));
  return fma(near, fma(-x, near, spread(1.0f)), near);
#else
  return spread(1.0f) / x;
#endif
}

HONE_INLINE vf sigmoid(vf x) { return inverse(spread(1.0f) + exp(-x)); }

template <class T>
static void gate_of(const HoneGate& a) {
  const int64_t n = a.width, blocks = (a.rows + BLOCK - 1) / BLOCK;
  for_tasks(a.threads, blocks, [&](int64_t block) {
    for (int64_t row = block * BLOCK; row < a.rows && row < (block + 1) * BLOCK; ++row) {
      const T *gate = static_cast<const T*>(a.gate_up) + 2 * row * n, *up = gate + n;
      T* out = static_cast<T*>(a.out) + row * n;
      across(n, [=](int64_t i, auto lanes) {
        const vf x = lanes.get(gate + i);
        lanes.put(out + i, x * sigmoid(x) * lanes.get(up + i));
      });
    }
  });
}

template <class T>
static void gate_back_of(const HoneGate& a) {
  const int64_t n = a.width, blocks = (a.rows + BLOCK - 1) / BLOCK;
  for_tasks(a.threads, blocks, [&](int64_t block) {
    for (int64_t row = block * BLOCK; row < a.rows && row < (block + 1) * BLOCK; ++row) {
      const T *gate = static_cast<const T*>(a.gate_up) + 2 * row * n, *up = gate + n;
      const T* g = static_cast<const T*>(a.g) + row * n;
      T *d_gate = static_cast<T*>(a.out) + 2 * row * n, *d_up = d_gate + n;
      across(n, [=](int64_t i, auto lanes) {
        const vf x = lanes.get(gate + i), s = sigmoid(x), above = lanes.get(g + i) * s, shut = spread(1.0f) - s;
        lanes.put(d_gate + i, above * lanes.get(up + i) * fma(x, shut, spread(1.0f)));
        lanes.put(d_up + i, above * x);
      });
    }
  });
}

static void gate(const HoneGate& a) { a.type == BFLOAT ? gate_of<bf16>(a) : gate_of<float>(a); }
static void gate_back(const HoneGate& a) { a.type == BFLOAT ? gate_back_of<bf16>(a) : gate_back_of<float>(a); }

}  // namespace HONE_ISA
}  // namespace hone
