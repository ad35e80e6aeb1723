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
      across(n, [=](int64_t i, auto lanes) { lanes.put(stream + i, lanes.get(x + i) + lanes.get(delta + i)); });
      x = stream;
    }
    vf squares = {};
    across(n, [=, &squares](int64_t i, auto lanes) {
      const vf v = lanes.get(x + i);
      squares = fma(v, v, squares);
    });
    const float r = 1.0f / std::sqrt(sum(squares) / float(n) + a.eps);
    a.r[row] = r;
    O* out = static_cast<O*>(a.out) + row * n;
    across(n, [=](int64_t i, auto lanes) {
      lanes.put(out + i, lanes.get(x + i) * spread(r) * lanes.get(weight + i));
    });
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
    across(n, [=, &dots](int64_t i, auto lanes) {
      const vf gx = lanes.get(g + i) * lanes.get(x + i) * r;
      dots = fma(gx, lanes.get(weight + i), dots);
      if (partial) lanes.put(partial + i, lanes.get(partial + i) + gx);
    });
    const vf dot = spread(sum(dots) / float(n));
    const S* above = a.d_above ? static_cast<const S*>(a.d_above) + row * n : nullptr;
    S* d_stream = static_cast<S*>(a.d_stream) + row * n;
    D* d_delta = a.d_delta ? static_cast<D*>(a.d_delta) + row * n : nullptr;
    across(n, [=](int64_t i, auto lanes) {
      vf d = (lanes.get(g + i) * lanes.get(weight + i) - lanes.get(x + i) * r * dot) * r;
      if (above) d += lanes.get(above + i);
      lanes.put(d_stream + i, d);
      if (d_delta) lanes.put(d_delta + i, d);
    });
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
