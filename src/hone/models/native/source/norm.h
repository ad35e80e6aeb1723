// RMSNorm of a stream that something may be added to first (Zhang and Sennrich, 2019), and its gradient.
#pragma once
#include <cmath>

#include "rows.h"

namespace hone {
namespace HONE_ISA {

template <class S, class D, class O>
static void norm_rows(const HoneNorm& a, int64_t from, int64_t to) {
  const int64_t n = a.width;
  const S* weight = static_cast<const S*>(a.weight);
  for (int64_t row = from; row < to; ++row) {
    const S* x = static_cast<const S*>(a.x) + row * n;
    if (a.delta) {
      const D* delta = static_cast<const D*>(a.delta) + row * n;
      S* stream = static_cast<S*>(a.stream) + row * n;
      for (int64_t i = 0; i < n; i += LANES) put(stream, i, n, get(x, i, n) + get(delta, i, n));
      x = stream;
    }
    vf squares = {};
    for (int64_t i = 0; i < n; i += LANES) {
      const vf v = get(x, i, n);
      squares = fma(v, v, squares);
    }
    const float r = 1.0f / std::sqrt(sum(squares) / float(n) + a.eps);
    a.r[row] = r;
    O* out = static_cast<O*>(a.out) + row * n;
    for (int64_t i = 0; i < n; i += LANES) put(out, i, n, get(x, i, n) * spread(r) * get(weight, i, n));
  }
}

template <class S, class D, class O>
static void norm_back_rows(const HoneNormBack& a, int64_t block, int64_t from, int64_t to) {
  const int64_t n = a.width;
  const S* weight = static_cast<const S*>(a.weight);
  float* partial = a.partial ? a.partial + block * n : nullptr;
  if (partial)
    for (int64_t i = 0; i < n; ++i) partial[i] = 0.0f;
  for (int64_t row = from; row < to; ++row) {
    const S* x = static_cast<const S*>(a.stream) + row * n;
    const O* g = static_cast<const O*>(a.g) + row * n;
    const vf r = spread(a.r[row]);
    vf dots = {};
    for (int64_t i = 0; i < n; i += LANES) {
      const vf gx = get(g, i, n) * get(x, i, n) * r;
      dots = fma(gx, get(weight, i, n), dots);
      if (partial) put(partial, i, n, get(partial, i, n) + gx);
    }
    const vf dot = spread(sum(dots) / float(n));
    const S* above = a.d_above ? static_cast<const S*>(a.d_above) + row * n : nullptr;
    S* d_stream = static_cast<S*>(a.d_stream) + row * n;
    D* d_delta = a.d_delta ? static_cast<D*>(a.d_delta) + row * n : nullptr;
    for (int64_t i = 0; i < n; i += LANES) {
      vf d = (get(g, i, n) * get(weight, i, n) - get(x, i, n) * r * dot) * r;
      if (above) d += get(above, i, n);
      put(d_stream, i, n, d);
      if (d_delta) put(d_delta, i, n, d);
    }
  }
}

template <class S, class D, class O>
static void norm_of(const HoneNorm& a) {
  for_tasks(a.threads, (a.rows + BLOCK - 1) / BLOCK, [&](int64_t block) {
    const int64_t from = block * BLOCK, to = from + BLOCK < a.rows ? from + BLOCK : a.rows;
    norm_rows<S, D, O>(a, from, to);
  });
}

template <class S, class D, class O>
static void norm_back_of(const HoneNormBack& a) {
  const int64_t blocks = (a.rows + BLOCK - 1) / BLOCK, n = a.width;
  for_tasks(a.threads, blocks, [&](int64_t block) {
    const int64_t from = block * BLOCK, to = from + BLOCK < a.rows ? from + BLOCK : a.rows;
    norm_back_rows<S, D, O>(a, block, from, to);
  });
  if (!a.partial) return;
  for (int64_t i = 0; i < n; i += LANES) {
    vf total = {};
    for (int64_t block = 0; block < blocks; ++block) total += get(a.partial + block * n, i, n);
    put(a.d_weight, i, n, total);
  }
}

static void norm(const HoneNorm& a) {
  if (a.stream_type == BFLOAT) return norm_of<bf16, bf16, bf16>(a);
  if (a.delta_type == BFLOAT)
    return a.out_type == BFLOAT ? norm_of<float, bf16, bf16>(a) : norm_of<float, bf16, float>(a);
  return a.out_type == BFLOAT ? norm_of<float, float, bf16>(a) : norm_of<float, float, float>(a);
}

static void norm_back(const HoneNormBack& a) {
  if (a.stream_type == BFLOAT) return norm_back_of<bf16, bf16, bf16>(a);
  if (a.delta_type == BFLOAT)
    return a.out_type == BFLOAT ? norm_back_of<float, bf16, bf16>(a) : norm_back_of<float, bf16, float>(a);
  return a.out_type == BFLOAT ? norm_back_of<float, float, bf16>(a) : norm_back_of<float, float, float>(a);
}

}  // namespace HONE_ISA
}  // namespace hone
