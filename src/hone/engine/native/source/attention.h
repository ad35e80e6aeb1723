// Attention of one token over its own pages, in a fixed order: scores position by position, then one softmax, then the
// values from the first position to the last. All query heads of a key head read a key once.
//
// A page's keys have positions as lanes. In float32 they are [head][16] and values are [16][head]. In bfloat16 a 32-bit
// word holds two numbers, so that widening takes one operation for each: keys are [head / 2][16][2], and the values of
// a position are words of feature i and feature i + LANES, for every 2 * LANES features.
#pragma once
#include "engine.h"
#include "vec.h"

namespace hone {
namespace HONE_ISA {

constexpr int PAGE_VECTORS = PAGE_TOKENS / LANES;
constexpr int SUMS = LANES == 16 ? 16 : 8;  // registers for running sums

// Features i and i + 1 (i even) of the keys at positions u * LANES ...
HONE_INLINE void load_keys(const float* keys, int i, int u, vf& even, vf& odd) {
  even = load(keys + i * PAGE_TOKENS + u * LANES);
  odd = load(keys + (i + 1) * PAGE_TOKENS + u * LANES);
}
HONE_INLINE void load_keys(const bf16* keys, int i, int u, vf& even, vf& odd) {
  const vu words = *reinterpret_cast<const vu*>(keys + i * PAGE_TOKENS + 2 * u * LANES);
  even = low_half(words);
  odd = high_half(words);
}

// 2 * LANES features of a position's value.
HONE_INLINE void load_values(const float* value, vf& first, vf& second) {
  first = load(value);
  second = load(value + LANES);
}
HONE_INLINE void load_values(const bf16* value, vf& first, vf& second) {
  const vu words = *reinterpret_cast<const vu*>(value);
  first = low_half(words);
  second = high_half(words);
}

// Where a block's values begin.
template <class KV>
constexpr int values_from(int head) {
  return head * PAGE_TOKENS + (sizeof(KV) > 1 ? 0 : PAGE_TOKENS * int(sizeof(float)));
}

// The key and the value of position `at` of a page.
HONE_INLINE void keep(const float* key, const float* value, int head, int at, float* block) {
  for (int i = 0; i < head; ++i) block[i * PAGE_TOKENS + at] = key[i];
  float* values = block + head * PAGE_TOKENS + at * head;
  for (int i = 0; i < head; i += LANES) store(values + i, load(value + i));
}
HONE_INLINE void keep(const float* key, const float* value, int head, int at, bf16* block) {
  for (int i = 0; i < head; i += LANES) {
    alignas(64) uint32_t word[LANES];
    *reinterpret_cast<vu*>(word) = rounded(load(key + i));
    for (int j = 0; j < LANES; j += 2) {
      const uint32_t pair = word[j] | word[j + 1] << 16;
      __builtin_memcpy(block + (i + j) * PAGE_TOKENS + 2 * at, &pair, 4);
    }
  }
  bf16* values = block + head * PAGE_TOKENS + at * head;
  for (int i = 0; i < head; i += 2 * LANES)
    *reinterpret_cast<vu*>(values + i) = rounded(load(value + i)) | rounded(load(value + i + LANES)) << 16;
}

// Fetches BYTES into the second cache, where more of them are on their way at a time, or into the first.
template <int BYTES, class KV>
HONE_INLINE void fetch(const KV* from, bool first = false) {
#pragma GCC unroll 4
  for (int line = 0; line < BYTES; line += 64) {
    const char* at = reinterpret_cast<const char*>(from) + line;
    if (first)
      __builtin_prefetch(at, 0, 3);
    else
      __builtin_prefetch(at, 0, 2);
  }
}

// What one (token, key head) reads: blocks of the pages that hold what it sees, and positions skip .. count - 1 in them.
template <class KV>
struct Past {
  const Engine* engine;
  const int32_t* pages;
  int layer, kv_head, count, skip = 0;

  Past(const Engine& e, int number, int token, int head)
      : engine(&e), pages(e.work.pass->pages + int64_t(e.work.pass->sequence[token]) * e.work.pass->most_pages),
        layer(number), kv_head(head), count(e.work.pass->positions[token] + 1) {
    const int window = e.layers[number].window;
    if (!window || window >= count) return;
    const int first = (count - window) / PAGE_TOKENS;  // a page that it sees some of
    pages += first;
    count -= first * PAGE_TOKENS;
    skip = count - window;
  }
  int held() const { return (count + PAGE_TOKENS - 1) / PAGE_TOKENS; }  // pages
  const KV* keys(int page) const { return block_of<KV>(*engine, pages[page], layer, kv_head); }
  const KV* values(int page) const { return keys(page) + values_from<KV>(engine->dims.head); }
};

// Pages between what is read and what is fetched: 16 KiB of a head of 64 features hide what memory takes to answer.
template <class KV>
constexpr int AHEAD = 16 / sizeof(KV);

// What a thread reads, page after page: all keys, all values, and then those of its likely next (token, key head).
template <class KV>
struct Reading {
  Past<KV> now, near, far;  // what is fetched belongs to `near` and then to `far`: neighbours are about as long as `now`
  int start;                // place in `near` of what is fetched first

  Reading(const Engine& e, int layer, int token, int kv_head)
      : now(e, layer, token, kv_head), near(now), far(now) {
    const int places = 2 * now.held(), on = AHEAD<KV> / places;
    start = AHEAD<KV> % places;
    near = after(e, layer, token, kv_head + on);
    far = after(e, layer, token, kv_head + on + 1);
  }
  static Past<KV> after(const Engine& e, int layer, int token, int kv_head) {
    const int heads = e.dims.shape.kv_heads, below = token + kv_head / heads * pool_threads(e.pool);
    return {e, layer, below < e.work.pass->tokens_count ? below : token, kv_head % heads};
  }
  // What is read AHEAD pages after place `at` of this order.
  const KV* ahead(int at) const {
    at += start;
    const bool later = at >= 2 * now.held();
    const Past<KV>& past = later ? far : near;
    const int place = later ? at - 2 * now.held() : at, held = past.held();
    return place < held ? past.keys(place) : past.values(place < 2 * held ? place - held : 0);
  }
  const KV* ahead_of_keys(int page) const { return ahead(page); }
  const KV* ahead_of_values(int page) const { return ahead(now.held() + page); }
};

// Scores of HEADS queries against PAGES pages from `first` on; lanes are positions.
template <class KV, int HEADS, int PAGES>
HONE_INLINE void page_scores(const Reading<KV>& reading, int first, const float* q, float scale, float* scores,
                             int64_t stride) {
  const Past<KV>& past = reading.now;
  const int head = past.engine->dims.head, head_dim = past.engine->dims.shape.head_dim;
  const KV *keys[PAGES], *ahead[PAGES];
  for (int page = 0; page < PAGES; ++page) {
    keys[page] = past.keys(first + page);
    ahead[page] = reading.ahead_of_keys(first + page);
  }
  vf sums[HEADS][PAGES][PAGE_VECTORS] = {};
  for (int i = 0; i < head_dim; i += 2) {
    vf even_query[HEADS], odd_query[HEADS];
    for (int h = 0; h < HEADS; ++h) {
      even_query[h] = spread(q[h * head + i]);
      odd_query[h] = spread(q[h * head + i + 1]);
    }
#pragma GCC unroll 8
    for (int page = 0; page < PAGES; ++page) {
      fetch<2 * PAGE_TOKENS * sizeof(KV)>(ahead[page] + i * PAGE_TOKENS);
#pragma GCC unroll 4
      for (int u = 0; u < PAGE_VECTORS; ++u) {
        vf even, odd;
        load_keys(keys[page], i, u, even, odd);
#pragma GCC unroll 4
        for (int h = 0; h < HEADS; ++h) {
          sums[h][page][u] = fma(even_query[h], even, sums[h][page][u]);
          sums[h][page][u] = fma(odd_query[h], odd, sums[h][page][u]);
        }
      }
    }
  }
  for (int h = 0; h < HEADS; ++h)
    for (int page = 0; page < PAGES; ++page)
      for (int u = 0; u < PAGE_VECTORS; ++u)
        store(scores + h * stride + (first + page) * PAGE_TOKENS + u * LANES, sums[h][page][u] * spread(scale));
}

// `count` pages from `page` on, at most PAGES.
template <class KV, int HEADS, int PAGES>
HONE_INLINE void few_scores(const Reading<KV>& reading, int page, int count, const float* q, float scale, float* scores,
                            int64_t stride) {
  if constexpr (PAGES > 1)
    if (count < PAGES) return few_scores<KV, HEADS, PAGES - 1>(reading, page, count, q, scale, scores, stride);
  page_scores<KV, HEADS, PAGES>(reading, page, q, scale, scores, stride);
}

// Pages in even parts of at most PAGES, to hide the latency of a page alone: a score does not depend on its part.
template <class KV, int HEADS, int PAGES>
HONE_INLINE void all_scores(const Reading<KV>& reading, int pages, const float* q, float scale, float* scores,
                            int64_t stride) {
  const int parts = (pages + PAGES - 1) / PAGES;
  for (int part = 0; part < parts; ++part) {
    const int first = int64_t(pages) * part / parts, last = int64_t(pages) * (part + 1) / parts;
    few_scores<KV, HEADS, PAGES>(reading, first, last - first, q, scale, scores, stride);
  }
}

// cap tanh(x / cap)
HONE_INLINE vf capped(vf x, float cap) {
  const vf twice = exp(x * spread(2.0f / cap));
  return spread(cap) * (spread(1.0f) - spread(2.0f) / (twice + spread(1.0f)));
}

// exp(score - maximum) in place, 0 before the first and past the last position; returns the sum.
HONE_INLINE float soften_scores(float* scores, int skip, int count, float cap) {
  const int end = round_up(count, PAGE_TOKENS), whole = count / LANES * LANES;
  const vi lanes = lane_numbers();
  if (cap)
    for (int i = 0; i < end; i += LANES) store(scores + i, capped(load(scores + i), cap));
  for (int i = 0; i < skip; ++i) scores[i] = scores[skip];
  vf top = spread(-__builtin_inff());
  for (int i = 0; i < whole; i += LANES) top = larger(load(scores + i), top);
  float most = maximum(top);
  for (int i = whole; i < count; ++i) most = scores[i] > most ? scores[i] : most;
  Sixteen total;
  for (int first = 0; first < end; first += 16)
    for (int u = 0; u < PARTS; ++u) {
      const int i = first + u * LANES;
      vf p = exp(load(scores + i) - spread(most));
      if (i >= whole) p = lanes < count - i ? p : vf{};
      if (i < skip) p = lanes < skip - i ? vf{} : p;
      store(scores + i, p);
      total.part[u] = total.part[u] + p;
    }
  return sum(total);
}

// Sums of even and odd positions apart, to hide the latency where few heads do not: on every instruction set the same.
template <int HEADS>
constexpr int chains() {
  return HEADS <= 2 ? 2 : 1;
}

// VECTORS registers of the values' features from `feature` on, for HEADS heads; divided by the sum of the weights.
template <class KV, class A, int HEADS, int VECTORS>
HONE_INLINE void mix(const Reading<KV>& reading, int feature, const float* p, int64_t stride, const float* share,
                     A* out) {
  constexpr int CHAINS = chains<HEADS>();
  const Past<KV>& past = reading.now;
  const int head = past.engine->dims.head;
  vf sums[CHAINS][HEADS][VECTORS] = {};
  const auto add = [&](int chain, const KV* value, const float* weight, const KV* ahead)
                       __attribute__((always_inline)) {
    fetch<VECTORS * LANES * sizeof(KV)>(ahead);
    vf features[VECTORS];
#pragma GCC unroll 2
    for (int u = 0; u < VECTORS; u += 2) load_values(value + u * LANES, features[u], features[u + 1]);
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; ++h) {
      const vf w = spread(weight[h * stride]);
#pragma GCC unroll 4
      for (int u = 0; u < VECTORS; ++u) sums[chain][h][u] = fma(w, features[u], sums[chain][h][u]);
    }
  };
  for (int first = 0; first < past.count; first += PAGE_TOKENS) {
    const KV* value = past.values(first / PAGE_TOKENS) + feature;
    const KV* ahead = reading.ahead_of_values(first / PAGE_TOKENS) + feature;
    const int here = past.count - first < PAGE_TOKENS ? past.count - first : PAGE_TOKENS;
    int i = 0;
    for (; i + CHAINS <= here; i += CHAINS)
#pragma GCC unroll 2
      for (int chain = 0; chain < CHAINS; ++chain) {
        const int at = i + chain;
        add(chain, value + at * head, p + first + at, ahead + at * head);
      }
    if (i < here) add(0, value + i * head, p + first + i, ahead + i * head);
  }
  for (int h = 0; h < HEADS; ++h)
    for (int u = 0; u < VECTORS; ++u) {
      const vf all = CHAINS == 2 ? sums[0][h][u] + sums[CHAINS - 1][h][u] : sums[0][h][u];
      store(out + h * head + feature + u * LANES, all * spread(share[h]));
    }
}

template <class KV, class A, int HEADS>
static void attend_heads(const Reading<KV>& reading, const float* q, float scale, float* scores, int64_t stride,
                         A* out) {
  constexpr int WIDE = SUMS / (HEADS * PAGE_VECTORS) > 1 ? SUMS / (HEADS * PAGE_VECTORS) : 1;
  constexpr int PAGES = WIDE > 8 ? 8 : WIDE;
  const Past<KV>& past = reading.now;
  all_scores<KV, HEADS, PAGES>(reading, past.held(), q, scale, scores, stride);
  float share[HEADS];
  const float cap = past.engine->dims.shape.score_cap;
  for (int h = 0; h < HEADS; ++h) share[h] = 1.0f / soften_scores(scores + h * stride, past.skip, past.count, cap);
  const int head = past.engine->dims.head;
  int feature = 0;
  if constexpr (4 * HEADS * chains<HEADS>() <= SUMS)
    for (; feature + 4 * LANES <= head; feature += 4 * LANES)
      mix<KV, A, HEADS, 4>(reading, feature, scores, stride, share, out);
  for (; feature + 2 * LANES <= head; feature += 2 * LANES)
    mix<KV, A, HEADS, 2>(reading, feature, scores, stride, share, out);
}

// Token `token` of the pass, all query heads of one key head: into `mixed`.
template <class KV, class A>
static void attend(Engine& e, int layer, int token, int kv_head, int thread) {
  const Dims& d = e.dims;
  const Reading<KV> reading(e, layer, token, kv_head);
  const float* q = e.qkv.as<float>() + int64_t(token) * d.qkv + kv_head * d.group * d.head;
  A* out = e.mixed.as<A>() + int64_t(token) * d.mixed + kv_head * d.group * d.head;
  float* scores = e.scratch[thread].scores.as<float>();
  const int64_t stride = reading.now.held() * PAGE_TOKENS;
  HONE_CHECK(e.scratch[thread].scores.bytes >= size_t(4 * stride) * sizeof(float));
  const float scale = 1.0f / __builtin_sqrtf(float(d.shape.head_dim));
  int h = 0;
  for (; h + 4 <= d.group; h += 4)
    attend_heads<KV, A, 4>(reading, q + h * d.head, scale, scores, stride, out + h * d.head);
  for (; h + 2 <= d.group; h += 2)
    attend_heads<KV, A, 2>(reading, q + h * d.head, scale, scores, stride, out + h * d.head);
  for (; h < d.group; ++h) attend_heads<KV, A, 1>(reading, q + h * d.head, scale, scores, stride, out + h * d.head);
}

}  // namespace HONE_ISA
}  // namespace hone
