// A mixture of experts: the router's choice for each token, its rows sorted by expert, and the sum of their outputs.
//
// A token's experts are added in the order in which they were chosen, and a row of a product does not depend on its
// neighbours (gemm.h): so neither does the result.
#pragma once
#include "gemm.h"

namespace hone {
namespace HONE_ISA {

// Probabilities of all experts for a normalised token `x`: softmax(router x), in float32; zeros up to `end`.
template <class A>
HONE_INLINE void router_probabilities(const Dims& d, const A* x, const float* router, float* p, int end) {
  const int experts = d.shape.experts;
  const vi lanes = lane_numbers();
  float most = -__builtin_inff();
  for (int i = 0; i < experts; ++i, router += d.hidden) {
    Sixteen total;
    for (int f = 0; f < d.hidden; f += 16)
      for (int u = 0; u < PARTS; ++u)
        total.part[u] = fma(load(x + f + u * LANES), load(router + f + u * LANES), total.part[u]);
    p[i] = sum(total);
    most = p[i] > most ? p[i] : most;
  }
  Sixteen total;
  for (int first = 0; first < end; first += 16)
    for (int u = 0; u < PARTS; ++u) {
      const int i = first + u * LANES;
      const vf weight = lanes < experts - i ? exp(load(p + i) - spread(most)) : vf{};
      store(p + i, weight);
      total.part[u] = total.part[u] + weight;
    }
  const vf all = spread(sum(total));
  for (int i = 0; i < end; i += LANES) store(p + i, load(p + i) / all);
}

// The experts of a token and their weights: the largest of probability plus bias, the smaller number among equals.
template <class A>
HONE_INLINE void route(Engine& e, const Layer& layer, int number, int token, const A* x, float* p) {
  const HoneShape& s = e.dims.shape;
  const int count = s.per_token, end = round_up(s.experts, PANEL);
  float* left = p + end;  // what is left to choose from
  router_probabilities(e.dims, x, layer.router.as<float>(), p, end);
  const float* bias = layer.selection_bias.as<float>();
  for (int i = 0; i < s.experts; ++i) left[i] = bias ? p[i] + bias[i] : p[i];
  int32_t* chosen = e.work.chosen.data() + int64_t(token) * count;
  float* gate = e.work.gate.data() + int64_t(token) * count;
  float all = 0;
  for (int j = 0; j < count; ++j) {
    int best = 0;
    for (int i = 1; i < s.experts; ++i) best = left[i] > left[best] ? i : best;
    left[best] = -__builtin_inff();
    chosen[j] = best;
    gate[j] = p[best];
    all += gate[j];
  }
  for (int j = 0; j < count; ++j) {
    gate[j] = s.normalise_gates ? gate[j] / all : gate[j];
    const int64_t at = (int64_t(token) * s.layers + number) * count + j;
    if (s.experts > 255)
      static_cast<uint16_t*>(e.work.pass->routing)[at] = uint16_t(chosen[j]);
    else
      static_cast<uint8_t*>(e.work.pass->routing)[at] = uint8_t(chosen[j]);
  }
}

// Places of all (token, choice) pairs, those of one expert side by side and in the order of the tokens.
static void sort_by_expert(Work& work, int experts) {
  work.first.assign(size_t(experts) + 1, 0);
  for (int32_t expert : work.chosen) ++work.first[expert + 1];
  for (int i = 0; i < experts; ++i) work.first[i + 1] += work.first[i];
  std::vector<int32_t>& next = work.next;
  next.assign(work.first.begin(), work.first.end() - 1);
  for (size_t i = 0; i < work.chosen.size(); ++i) {
    work.place[i] = next[work.chosen[i]]++;
    work.source[work.place[i]] = int32_t(i);
  }
}

// The rows of each expert times its own weight; `finish_of(first)` takes the sums of rows from `first` on.
template <class Left, class FinishOf>
static void multiply_experts(Engine& e, const std::vector<Linear>& linears, const Left& left,
                             const FinishOf& finish_of) {
  const std::vector<int32_t>& first = e.work.first;
  const int experts = int(linears.size());
  int expert = 0, begin = 0;  // tasks before this expert's
  for (int task = pool_take(e.pool, 1);; task = pool_take(e.pool, 1)) {
    int blocks = 0, tasks = 0;
    for (; expert < experts; begin += tasks, ++expert) {
      const int rows = first[expert + 1] - first[expert];
      blocks = rows ? row_blocks(e, linears[expert], rows, left.tile_rows(e)) : 0;
      tasks = linears[expert].panels * blocks;
      if (task < begin + tasks) break;
    }
    if (expert == experts) break;
    const int row = first[expert], rows = first[expert + 1] - row;
    multiply_task(e, linears[expert], left.below(row), rows, blocks, task - begin, finish_of(row));
  }
  pool_barrier(e.pool);
}

HONE_INLINE void copy_features(const float* from, float* to, int count) {
  for (int i = 0; i < count; i += LANES) store(to + i, load(from + i));
}
HONE_INLINE void copy_features(const bf16* from, bf16* to, int count) {
  __builtin_memcpy(to, from, size_t(count) * sizeof(bf16));
}

// x += sum_j gate_j expert_j(normed), for all rows.
template <class A>
static void run_experts(Engine& e, const Layer& layer, int number, const A* normed, int rows, int thread) {
  const Dims& d = e.dims;
  Work& work = e.work;
  const int count = d.shape.per_token;
  float* p = e.scratch[thread].route.as<float>();
  A *gathered = e.gathered.as<A>(), *inner = e.inner.as<A>();
  float *out = e.expert_out.as<float>(), *x = e.x.as<float>();
  for_rows(e, rows, [&](int t) { route(e, layer, number, t, normed + int64_t(t) * d.hidden, p); });
  if (thread == 0) sort_by_expert(work, d.shape.experts);
  pool_barrier(e.pool);
  for_rows(e, rows * count, [&](int place) {
    copy_features(normed + int64_t(work.source[place] / count) * d.hidden, gathered + int64_t(place) * d.hidden,
                  d.hidden);
  });
  const auto product = [&](const std::vector<Linear>& linears, const A* a, int width, const auto& finish_of) {
    if constexpr (MAY_BE_CODED<A>)
      if (d.shape.int8) return multiply_experts(e, linears, encoded(e, a, width, rows * count), finish_of);
    multiply_experts(e, linears, Rows<A>{a, width}, finish_of);
  };
  product(layer.expert_gate_up, gathered, d.hidden,
          [&](int row) { return GatedSilu<A>{inner + int64_t(row) * d.inner, d.inner}; });
  product(layer.expert_down, inner, d.inner,
          [&](int row) { return Store{out + int64_t(row) * d.hidden, d.hidden}; });
  for_rows(e, rows, [&](int t) {
    const int32_t* place = work.place.data() + int64_t(t) * count;
    const float* gate = work.gate.data() + int64_t(t) * count;
    for (int f = 0; f < d.hidden; f += LANES) {
      vf total = load(out + int64_t(place[0]) * d.hidden + f) * spread(gate[0]);
      for (int j = 1; j < count; ++j)
        total = fma(load(out + int64_t(place[j]) * d.hidden + f), spread(gate[j]), total);
      float* to = x + int64_t(t) * d.hidden + f;
      store(to, load(to) + total);
    }
  });
}

}  // namespace HONE_ISA
}  // namespace hone
