// One head of one token: normed, turned by its position and scaled on the way in; and the gradient's way back.
#pragma once
#include <cmath>

#include "rows.h"

namespace hone {
namespace HONE_ISA {

// Neighbours (a, b) as the complex number a + ib, times (c + is), or its conjugate.
HONE_INLINE vf turned(vf x, vf turn, float sign) {
#if defined(__AVX512F__)
  const __m512 by = reinterpret_cast<__m512>(turn), straight = reinterpret_cast<__m512>(x);
  const __m512 cosine = _mm512_moveldup_ps(by);
  const __m512 across = _mm512_mul_ps(reinterpret_cast<__m512>(exchanged(x)), _mm512_movehdup_ps(by));
  return reinterpret_cast<vf>(sign > 0 ? _mm512_fmaddsub_ps(straight, cosine, across)
                                       : _mm512_fmsubadd_ps(straight, cosine, across));
#else
  const vi odd = lane_numbers() & 1;
  const vf other = exchanged(turn);
  const vf cosine = odd == 0 ? turn : other, sine = odd == 0 ? other * spread(-sign) : turn * spread(sign);
  return fma(x, cosine, exchanged(x) * sine);
#endif
}

template <class T>
static float norm_of_head(const T* x, int n, float eps) {
  vf squares = {};
  for (int i = 0; i < n; i += LANES) {
    const vf v = get(x, i, n);
    squares = fma(v, v, squares);
  }
  return 1.0f / std::sqrt(sum(squares) / float(n) + eps);
}

struct Head {
  const float* turn;  // [n]
  const void* norm;   // or null
  int norm_type;
  float eps, scale;
  int n;

  vf weight(int i) const {
    return norm_type == BFLOAT ? get(static_cast<const bf16*>(norm), i, n) : get(static_cast<const float*>(norm), i, n);
  }

  template <class T>
  void take(const T* x, float* out) const {
    const vf r = spread(norm ? norm_of_head(x, n, eps) : 1.0f), by = spread(scale);
    for (int i = 0; i < n; i += LANES) {
      vf v = get(x, i, n);
      if (norm) v = v * r * weight(i);
      put(out, i, n, turned(v, get(turn, i, n), 1.0f) * by);
    }
  }

  // `d` [n] is the gradient of what `take` gave, and is overwritten; `sums` [n]: the norm's gradient adds up there.
  template <class T>
  void give(float* d, const T* x, T* out, float* sums) const {
    const float r = norm ? norm_of_head(x, n, eps) : 1.0f;
    vf dots = {};
    for (int i = 0; i < n; i += LANES) {
      const vf v = turned(get(d, i, n) * spread(scale), get(turn, i, n), -1.0f);
      put(d, i, n, v);
      if (!norm) continue;
      const vf gx = v * get(x, i, n) * spread(r);
      dots = fma(gx, weight(i), dots);
      if (sums) put(sums, i, n, get(sums, i, n) + gx);
    }
    const vf dot = spread(norm ? sum(dots) / float(n) : 0.0f);
    for (int i = 0; i < n; i += LANES) {
      vf v = get(d, i, n);
      if (norm) v = (v * weight(i) - get(x, i, n) * spread(r) * dot) * spread(r);
      put(out, i, n, v);
    }
  }
};

}  // namespace HONE_ISA
}  // namespace hone
