// The layers of a decoder, one after another: phases that threads share, with a barrier after each.
#pragma once
#include <cmath>

#include "code_attention.h"
#include "experts.h"
#include "pack.h"

namespace hone {
namespace HONE_ISA {

// x / sqrt(mean(x^2) + eps) * weight over `count` features, `padded` with zeros.
template <class A>
HONE_INLINE void rms_norm(const float* x, const float* weight, int count, int padded, float eps, A* out) {
  Sixteen squares;
  for (int i = 0; i < padded; i += 16)
    for (int u = 0; u < PARTS; ++u) {
      const vf part = load(x + i + u * LANES);
      squares.part[u] = fma(part, part, squares.part[u]);
    }
  const vf r = spread(1.0f / __builtin_sqrtf(sum(squares) / float(count) + eps));
  for (int i = 0; i < padded; i += LANES) store(out + i, load(x + i) * r * load(weight + i));
}

// The same of x - mean(x); `wide` has room for it.
template <class A>
static void layer_norm(const float* x, const float* weight, int count, int padded, float eps, float* wide, A* out) {
  Sixteen total;
  for (int i = 0; i < padded; i += 16)
    for (int u = 0; u < PARTS; ++u) total.part[u] = total.part[u] + load(x + i + u * LANES);
  const vf mean = spread(sum(total) / float(count));
  const vi lanes = lane_numbers();
  for (int i = 0; i < padded; i += LANES) store(wide + i, lanes < count - i ? load(x + i) - mean : vf{});
  rms_norm(wide, weight, count, padded, eps, out);
}

// A row of the stream as a product reads it: normalised, or, without a norm, as it is.
template <class A>
static void normalise(Engine& e, const float* x, const Buffer& weight, int thread, A* out) {
  const HoneShape& s = e.dims.shape;
  const int padded = e.dims.hidden;
  if (!weight.data)
    for (int i = 0; i < padded; i += LANES) store(out + i, load(x + i));
  else if (s.centred)
    layer_norm(x, weight.as<float>(), s.hidden, padded, s.norm_eps, e.scratch[thread].row.as<float>(), out);
  else
    rms_norm(x, weight.as<float>(), s.hidden, padded, s.norm_eps, out);
}

HONE_INLINE void rotate(float* x, const float* cosine, const float* sine, int head) {
  for (int i = 0; i < head; i += LANES) {
    const vf pairs = load(x + i);
    store(x + i, fma(exchanged(pairs), load(sine + i), pairs * load(cosine + i)));
  }
}

template <class T>
HONE_INLINE void copy_row(const T* from, float* to, int count, float factor) {
  for (int i = 0; i < count; i += LANES) store(to + i, load(from + i) * spread(factor));
}

// A row of an embedding in blocks.
HONE_INLINE void copy_block_row(const Engine& e, int row, float* to, float factor) {
  const int groups = e.dims.hidden / PANEL, bits = e.dims.shape.bits;
  const int64_t bytes = bits == 4 ? BlockOf<4>::BYTES : BlockOf<8>::BYTES;
  const uint8_t* block = e.embedding_blocks + row / PANEL * groups * bytes;
  for (int group = 0; group < groups; ++group, block += bytes) {
    float* part = to + group * GROUP;
    bits == 4 ? decode_group<4>(block, row % PANEL, part) : decode_group<8>(block, row % PANEL, part);
  }
  copy_row(to, to, e.dims.hidden, factor);
}

// Queries and keys are normalised (Qwen3) and turned to their position; keys and values go to their page.
template <class KV>
static __attribute__((noinline)) void place(Engine& e, const Layer& layer, int number, int token) {
  const HonePass& pass = *e.work.pass;
  const Dims& d = e.dims;
  const int position = pass.positions[token], at = position % PAGE_TOKENS;
  const int page = pass.pages[int64_t(pass.sequence[token]) * pass.most_pages + position / PAGE_TOKENS];
  HONE_CHECK(position < e.turns_known);
  const float* cosine = e.turns.as<float>() + (int64_t(position) * e.tables + layer.table) * 2 * d.head;
  float* query = e.qkv.as<float>() + int64_t(token) * d.qkv;
  float* key = query + d.shape.heads * d.head;
  const float* value = key + d.shape.kv_heads * d.head;
  if (d.shape.norm_whole) {
    const HoneShape& s = d.shape;
    rms_norm(query, layer.q_norm.as<float>(), s.heads * s.head_dim, s.heads * d.head, s.norm_eps, query);
    rms_norm(key, layer.k_norm.as<float>(), s.kv_heads * s.head_dim, s.kv_heads * d.head, s.norm_eps, key);
  }
  const bool grows = d.shape.query_beta && position >= d.shape.query_original;
  const float growth =
      grows ? 1.0f + d.shape.query_beta * float(std::log(1.0 + position / d.shape.query_original)) : 1.0f;
  const bool by_head = layer.q_norm.data && !d.shape.norm_whole;
  for (int h = 0; h < d.shape.heads; ++h, query += d.head) {
    if (by_head) rms_norm(query, layer.q_norm.as<float>(), d.shape.head_dim, d.head, d.shape.norm_eps, query);
    rotate(query, cosine, cosine + d.head, d.head);
    if (grows)
      for (int i = 0; i < d.head; i += LANES) store(query + i, load(query + i) * spread(growth));
  }
  for (int h = 0; h < d.shape.kv_heads; ++h, key += d.head, value += d.head) {
    if (by_head) rms_norm(key, layer.k_norm.as<float>(), d.shape.head_dim, d.head, d.shape.norm_eps, key);
    rotate(key, cosine, cosine + d.head, d.head);
    keep(key, value, d.head, at, block_of<KV>(e, page, number, h));
  }
}

// Attention of one token over one key head, whatever numbers the cache holds.
template <class A, class KV>
HONE_INLINE void attend_one(Engine& e, int layer, int token, int kv_head, int thread) {
  if constexpr (sizeof(KV) > 1)
    attend<KV, A>(e, layer, token, kv_head, thread);
  else
    e.kernels->codes.attend(e, layer, token, kv_head, thread);
}

template <class A, class KV>
static void run_layer(Engine& e, int number, int thread) {
  const Layer& layer = e.layers[number];
  const Dims& d = e.dims;
  const int rows = e.work.pass->tokens_count;
  float* x = e.x.as<float>();
  A* normed = e.normed.as<A>();
  const int planes = d.shape.int8 ? 1 : 2;  // of codes beside blocks
  const auto norm = [&](const Buffer& weight) {
    for_rows(e, rows, [&](int t) {
      A* to = normed + int64_t(t) * d.hidden;
      normalise(e, x + int64_t(t) * d.hidden, weight, thread, to);
      if (d.shape.bits)
        encode_blocks_at(e, to, d.hidden, t, rows, planes);
      else if (d.shape.int8)
        encode_at(e, to, d.hidden, t, rows, false);
    });
  };
  const auto product = [&](const Linear& linear, const LowRank& update, int own, const A* a, int width,
                           const auto& finish) {
    if constexpr (MAY_BE_CODED<A>)
      if (d.shape.bits) {
        if (a != normed) for_rows(e, rows, [&](int t) { encode_blocks_at(e, a + int64_t(t) * width, width, t, rows, planes); });
        if (update.present) multiply(e, update.in, Rows<A>{a, width}, rows, Store{e.low.as<float>(), d.low});
        return multiply(e, linear, blocks_of(e, rows, planes, &update), rows, finish);
      }
    if constexpr (MAY_BE_CODED<A>)
      if (d.shape.int8)
        return multiply(e, linear, a == normed ? codes_of(e, rows) : encoded(e, a, width, rows), rows, finish);
    multiply_adapted(e, linear, e.work.adapted, number * LAYER_UPDATES + own, Rows<A>{a, width}, rows, finish);
  };
  // What attention and MLP add to the stream: normalised before, where they have a norm for it.
  const auto leave = [&](const Linear& linear, const LowRank& update, int own, const A* a, int width,
                         const Buffer& after) {
    const float factor = d.shape.residual_factor;
    if (!after.data) return product(linear, update, own, a, width, Add{x, d.hidden, factor});
    float* branch = e.branch.as<float>();
    product(linear, update, own, a, width, Store{branch, d.hidden});
    for_rows(e, rows, [&](int t) {
      float *from = branch + int64_t(t) * d.hidden, *to = x + int64_t(t) * d.hidden;
      normalise(e, from, after, thread, from);
      for (int i = 0; i < d.hidden; i += LANES) store(to + i, load(to + i) + load(from + i) * spread(factor));
    });
  };
  const auto mlp = [&] {
    if (d.shape.gelu)
      product(layer.gate_up, layer.gate_up_low, GATE_UP_UPDATE, normed, d.hidden,
              GatedGelu<A>{e.inner.as<A>(), d.inner});
    else
      product(layer.gate_up, layer.gate_up_low, GATE_UP_UPDATE, normed, d.hidden,
              GatedSilu<A>{e.inner.as<A>(), d.inner});
    leave(layer.down, layer.down_low, DOWN_UPDATE, e.inner.as<A>(), d.inner, layer.mlp_after);
  };
  norm(layer.attention_norm);
  product(layer.qkv, layer.qkv_low, QKV_UPDATE, normed, d.hidden, Store{e.qkv.as<float>(), d.qkv});
  if (d.shape.parallel) mlp();
  for_rows(e, rows, [&](int t) { place<KV>(e, layer, number, t); });
  const int heads = d.shape.kv_heads, tasks = rows * heads;
  const int taken = rows >= 4 * pool_threads(e.pool) ? heads : 1;  // neighbours in memory, where there is work for all
  for (int task = pool_take(e.pool, taken); task < tasks; task = pool_take(e.pool, taken))
    for (int i = task; i < task + taken; ++i) attend_one<A, KV>(e, number, i / heads, i % heads, thread);
  pool_barrier(e.pool);
  leave(layer.out, layer.out_low, OUT_UPDATE, e.mixed.as<A>(), d.mixed, layer.attention_after);
  if (d.shape.parallel) return;
  norm(layer.mlp_norm);
  if (d.shape.experts)
    run_experts(e, layer, number, normed, rows, thread);
  else
    mlp();
}

template <class A>
static void run_draws(Engine& e, int thread) {
  const Dims& d = e.dims;
  const Work& work = e.work;
  A* normed = e.normed.as<A>();
  for (const HiddenRows& chunk : work.chunks) {
    const int rows = chunk.last - chunk.first;
    for_rows(e, rows, [&](int r) {
      const float* x = e.x.as<float>() + int64_t(work.at[chunk.first + r]) * d.hidden;
      A* to = normed + int64_t(r) * d.hidden;
      normalise(e, x, e.final_norm, thread, to);
      if (d.shape.bits)
        encode_blocks_at(e, to, d.hidden, r, rows, 2);
      else if (d.shape.int8)
        encode_at(e, to, d.hidden, r, rows, true);
    });
    const Store finish = {e.logits.as<float>(), d.logits};
    if (MAY_BE_CODED<A> && d.shape.bits)
      multiply(e, e.head, blocks_of(e, rows, 2, nullptr), rows, finish);
    else if (MAY_BE_CODED<A> && d.shape.int8)
      multiply(e, e.head, codes_of(e, rows), rows, finish);
    else
      multiply_adapted(e, e.head, chunk.adapted, d.shape.layers * LAYER_UPDATES, Rows<A>{normed, d.hidden}, rows, finish);
    for_rows(e, chunk.last_draw - chunk.first_draw, [&](int i) {
      const int draw = work.draws[chunk.first_draw + i];
      const float* logits = e.logits.as<float>() + int64_t(work.row[draw] - chunk.first) * d.logits;
      sample(e, logits, draw, e.scratch[thread].draw);
    });
  }
}

template <class A>
static void run_pass(Engine& e, int thread) {
  const HonePass& pass = *e.work.pass;
  const int hidden = e.dims.hidden;
  const float factor = e.dims.shape.embedding_factor;
  for_rows(e, pass.tokens_count, [&](int t) {
    const int64_t from = int64_t(pass.tokens[t]) * hidden;
    float* to = e.x.as<float>() + int64_t(t) * hidden;
    if (e.dims.shape.bits)
      copy_block_row(e, pass.tokens[t], to, factor);
    else if (e.dims.shape.bfloat16)
      copy_row(e.embedding.as<bf16>() + from, to, hidden, factor);
    else
      copy_row(e.embedding.as<float>() + from, to, hidden, factor);
  });
  for (int layer = 0; layer < e.dims.shape.layers; ++layer) {
    if (e.dims.shape.cache == CACHE_INT8)
      run_layer<A, uint8_t>(e, layer, thread);
    else if (e.dims.shape.cache == CACHE_BFLOAT16 || sizeof(A) == sizeof(bf16))
      run_layer<A, bf16>(e, layer, thread);
    else
      run_layer<A, float>(e, layer, thread);
  }
  run_draws<A>(e, thread);
}

static void forward(Engine& e, int thread) {
  if (e.dims.number == sizeof(bf16))
    run_pass<bf16>(e, thread);
  else
    run_pass<float>(e, thread);
}

static bool soften(const float* logits, int vocab, float temperature, float cap, float* scaled, float* weight,
                   float* top) {
  const int end = round_up(vocab, PANEL);
  const vi lanes = lane_numbers();
  const vf by = spread(temperature), nothing = spread(-__builtin_inff());
  vf most = nothing, odd = {};
  for (int i = 0; i < end; i += LANES) {
    const vf logit = cap ? capped(load(logits + i), cap) : load(logits + i);
    const vf z = lanes < vocab - i ? logit / by : nothing;
    odd = odd + (lanes < vocab - i ? z * vf{} : vf{});  // 0 for finite numbers only
    most = larger(z, most);
    store(scaled + i, z);
  }
  *top = maximum(most);
  for (int i = 0; i < end; i += LANES)
    store(weight + i, lanes < vocab - i ? exp(load(scaled + i) - spread(*top)) : vf{});
  return sum(odd) == 0.0f;
}

}  // namespace HONE_ISA
}  // namespace hone
