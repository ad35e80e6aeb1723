// silu(gate) * up, and its gradient: with s = sigmoid(x), d silu(x) = s (1 + x (1 - s)) (Shazeer, 2020).
#pragma once
#include "rows.h"

namespace hone {
namespace HONE_ISA {

HONE_INLINE vf sigmoid(vf x) { return spread(1.0f) / (spread(1.0f) + exp(-x)); }

template <class T>
static void gate_of(const HoneGate& a) {
  const int64_t n = a.width, blocks = (a.rows + BLOCK - 1) / BLOCK;
  for_tasks(a.threads, blocks, [&](int64_t block) {
    for (int64_t row = block * BLOCK; row < a.rows && row < (block + 1) * BLOCK; ++row) {
      const T *gate = static_cast<const T*>(a.gate_up) + 2 * row * n, *up = gate + n;
      T* out = static_cast<T*>(a.out) + row * n;
      for (int64_t i = 0; i < n; i += LANES) {
        const vf x = get(gate, i, n);
        put(out, i, n, x * sigmoid(x) * get(up, i, n));
      }
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
      for (int64_t i = 0; i < n; i += LANES) {
        const vf x = get(gate, i, n), above = get(g, i, n), s = sigmoid(x), one = spread(1.0f);
        put(d_gate, i, n, above * get(up, i, n) * s * fma(x, one - s, one));
        put(d_up, i, n, above * x * s);
      }
    }
  });
}

static void gate(const HoneGate& a) { a.type == BFLOAT ? gate_of<bf16>(a) : gate_of<float>(a); }
static void gate_back(const HoneGate& a) { a.type == BFLOAT ? gate_back_of<bf16>(a) : gate_back_of<float>(a); }

}  // namespace HONE_ISA
}  // namespace hone
