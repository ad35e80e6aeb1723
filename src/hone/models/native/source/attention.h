// Causal attention of texts that may share a trunk, one (row of texts, key head) at a time, all scores of a tile of
// queries in the cache at once. A branch reads its trunk's keys where they lie: they are laid out once.
#pragma once
#include <cstring>

#include "heads.h"
#include "products.h"

namespace hone {
namespace HONE_ISA {

constexpr int QUERIES = 4 * TILE;  // of a text whose scores are kept for the gradient of its keys

static void clear(float* from, const float* to) {
  for (; from < to; ++from) *from = 0.0f;
}

// The same, a register at a time: up to LANES - 1 numbers past the end too.
static void wipe(float* from, const float* to) {
  for (; from < to; from += LANES) store(from, vf{});
}

HONE_INLINE vf first_lanes(vf x, int64_t count) { return lane_numbers() < int32_t(count) ? x : vf{}; }

// scores [keys] -> their softmax, zeros up to `end`; and `share`: the largest score, and one over the sum.
static void soften(float* scores, int64_t keys, int64_t end, float* share) {
  vf top = spread(scores[0]);
  int64_t j = 0;
  for (; j + LANES <= keys; j += LANES) top = larger(load(scores + j), top);
  float most = maximum(top);
  for (; j < keys; ++j) most = scores[j] > most ? scores[j] : most;
  wipe(scores + keys, scores + end);
  vf sums = {};
  for (j = 0; j < keys; j += LANES) {
    vf p = exp(load(scores + j) - spread(most));
    if (j + LANES > keys) p = first_lanes(p, keys - j);
    store(scores + j, p);
    sums += p;
  }
  share[0] = most;
  share[1] = 1.0f / sum(sums);
  for (j = 0; j < keys; j += LANES) store(scores + j, load(scores + j) * spread(share[1]));
}

// The same softmax p, and of the gradient d of it that of the scores: p (d - sum p d); zeros up to `end`.
static void harden(float* scores, float* d, int64_t keys, int64_t end, const float* share) {
  wipe(scores + keys, scores + end);
  wipe(d + keys, d + end);
  const vf most = spread(share[0]), by = spread(share[1]);
  vf dots = {};
  for (int64_t j = 0; j < keys; j += LANES) {
    vf p = exp(load(scores + j) - most) * by;
    if (j + LANES > keys) p = first_lanes(p, keys - j);
    store(scores + j, p);
    dots = fma(p, load(d + j), dots);
  }
  const vf dot = spread(sum(dots));
  for (int64_t j = 0; j < keys; j += LANES) store(d + j, load(scores + j) * (load(d + j) - dot));
}

constexpr int SIDE = 16;  // of a block that is turned

// [count, SIDE] -> [SIDE, count], in rows that have room for SIDE; what is past `count` is zeros.
static void turn_block(const float* from, int64_t from_row, int count, float* to, int64_t to_row) {
#if defined(__AVX512F__)
  __m512 r[SIDE], t[SIDE];
#pragma GCC unroll 16
  for (int i = 0; i < SIDE; ++i) r[i] = i < count ? _mm512_loadu_ps(from + i * from_row) : _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int i = 0; i < SIDE; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  const auto low = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto high = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
#pragma GCC unroll 4
  for (int i = 0; i < SIDE; i += 4) {
    r[i] = low(t[i], t[i + 2]);
    r[i + 1] = high(t[i], t[i + 2]);
    r[i + 2] = low(t[i + 1], t[i + 3]);
    r[i + 3] = high(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    _mm512_storeu_ps(to + i * to_row, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
    _mm512_storeu_ps(to + (i + 8) * to_row, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
  }
#else
  for (int i = 0; i < SIDE; ++i)
    for (int j = 0; j < SIDE; ++j) to[i * to_row + j] = j < count ? from[j * from_row + i] : 0.0f;
#endif
}

template <class T>
struct Attention {
  const HoneAttention& a;
  int task, kv_head;
  int n, wide, group;           // features of a head, and padded; query heads of a key head
  int64_t longest, keys_row;    // positions of the longest text, padded; stride of what is laid out by feature
  int64_t trunk;                // tokens of the trunk
  int64_t scores_row;

  Attention(const HoneAttention& a_, int task_, int kv_head_) : a(a_), task(task_), kv_head(kv_head_) {
    n = a.head_dim;
    wide = round_up(n, PAD);
    group = a.heads / a.kv_heads;
    int64_t most = 0;
    trunk = a.len[a.first[task]];
    for (int64_t t = a.first[task] + 1; t < a.first[task + 1]; ++t) most = a.len[t] > most ? a.len[t] : most;
    longest = round_up(int(trunk + most), PAD);
    keys_row = longest + SIDE;  // no power of two: its rows would fall on each other in the cache
    scores_row = longest + 3 * PAD;
  }

  int64_t before(int64_t text) const { return text == a.first[task] ? 0 : trunk; }
  const T* row(int64_t token) const {
    return static_cast<const T*>(a.qkv) + token * (a.heads + 2 * a.kv_heads) * n;
  }
  T* d_row(int64_t token) const { return static_cast<T*>(a.d_qkv) + token * (a.heads + 2 * a.kv_heads) * n; }
  T* mixed(int64_t token, int head) const { return static_cast<T*>(a.mixed) + (token * a.heads + head) * n; }
  int key_at() const { return (a.heads + kv_head) * n; }
  int value_at() const { return (a.heads + a.kv_heads + kv_head) * n; }
  Head query(int64_t token) const {
    return {a.turns + token * n, a.q_norm, a.norm_type, a.eps, 1.0f / std::sqrt(float(n)), n};
  }
  Head key(int64_t token) const { return {a.turns + token * n, a.k_norm, a.norm_type, a.eps, 1.0f, n}; }

  // Rows [count <= SIDE, wide] -> columns of [wide, keys_row].
  void stand(const float* from, int count, float* to) const {
    for (int i = 0; i < n; i += SIDE) turn_block(from + i, wide, count, to + i * keys_row, keys_row);
  }

  float* share(int64_t token, int head) const { return a.shares + (token * a.heads + head) * 2; }

  // Products of `rows` queries or rows like them, the first of which sees `seen` keys before its own -> their columns.
  int64_t meet(const float* queries, int rows, int64_t seen, const float* keys, float* scores) const {
    const int64_t columns = round_up(int(seen + rows), PAD);
    strip({queries, wide, 1}, rows, keys, keys_row, columns, n, scores, scores_row, false);
    return columns;
  }

  void forward() const {
    float* keys = scratch(size_t(wide) * keys_row + (longest + 2 * TILE + SIDE) * wide + TILE * scores_row);
    float *values = keys + wide * keys_row, *queries = values + longest * wide, *out = queries + TILE * wide;
    float *some = out + TILE * wide, *scores = some + SIDE * wide;
    for (int64_t text = a.first[task]; text < a.first[task + 1]; ++text) {
      const int64_t at = a.at[text], len = a.len[text], skip = before(text);
      for (int64_t i = 0; i < len; i += SIDE) {
        const int count = int(len - i < SIDE ? len - i : SIDE);
        for (int64_t k = 0; k < count; ++k) {
          key(at + i + k).take(row(at + i + k) + key_at(), some + k * wide);
          move(row(at + i + k) + value_at(), values + (skip + i + k) * wide, n);
        }
        stand(some, count, keys + skip + i);
      }
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (int64_t i = 0; i < len; i += TILE) {
          const int rows = int(len - i < TILE ? len - i : TILE);
          for (int r = 0; r < rows; ++r) query(at + i + r).take(row(at + i + r) + head * n, queries + r * wide);
          const int64_t columns = meet(queries, rows, skip + i, keys, scores);
          for (int r = 0; r < rows; ++r)
            soften(scores + r * scores_row, skip + i + r + 1, columns + PAD, share(at + i + r, head));
          strip({scores, scores_row, 1}, rows, values, wide, wide, skip + i + rows, out, wide, false);
          for (int r = 0; r < rows; ++r) move(out + r * wide, mixed(at + i + r, head), n);
        }
    }
  }

  // Room for the gradient's way.
  struct Room {
    float *keys, *values;                       // [wide, keys_row]
    float *key_rows, *d_keys, *d_values;        // [longest, wide]
    float *queries, *above, *d_queries, *some;  // [QUERIES, wide], [SIDE, wide]
    float *weights, *d_scores;                  // [QUERIES, scores_row]
  };

  Room room() const {
    const size_t stood = size_t(wide) * keys_row, lain = size_t(longest) * wide, block = size_t(QUERIES) * wide;
    const size_t scored = size_t(QUERIES) * scores_row;
    Room m;
    const size_t side = size_t(SIDE) * wide;
    float* at = scratch(2 * stood + 3 * lain + 3 * block + side + 2 * scored);
    float** const places[] = {&m.keys,    &m.values,    &m.key_rows, &m.d_keys,  &m.d_values, &m.queries,
                              &m.above,   &m.d_queries, &m.some,     &m.weights, &m.d_scores};
    const size_t sizes[] = {stood, stood, lain, lain, lain, block, block, block, side, scored, scored};
    for (int i = 0; i < 11; at += sizes[i++]) *places[i] = at;
    return m;
  }

  void backward() const {
    const Room m = room();
    float* sums = a.partial ? a.partial + (size_t(task) * a.kv_heads + kv_head) * 2 * n : nullptr;
    if (sums) clear(sums, sums + 2 * n);
    for (int64_t text = a.first[task]; text < a.first[task + 1]; ++text) {
      const int64_t at = a.at[text], len = a.len[text], skip = before(text);
      for (int64_t i = 0; i < len; i += SIDE) {
        const int count = int(len - i < SIDE ? len - i : SIDE);
        float* lain = m.key_rows + (skip + i) * wide;
        for (int64_t k = 0; k < count; ++k) {
          key(at + i + k).take(row(at + i + k) + key_at(), lain + k * wide);
          move(row(at + i + k) + value_at(), m.some + k * wide, n);
        }
        stand(lain, count, m.keys + skip + i);
        stand(m.some, count, m.values + skip + i);
      }
      clear(m.d_keys + skip * wide, m.d_keys + (skip + len) * wide);
      clear(m.d_values + skip * wide, m.d_values + (skip + len) * wide);
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (int64_t i = 0; i < len; i += QUERIES)
          block(m, text, head, i, int(len - i < QUERIES ? len - i : QUERIES), sums);
      if (text != a.first[task]) give_keys(m, at, len, skip, sums);
    }
    give_keys(m, a.at[a.first[task]], trunk, 0, sums);  // all have read it
  }

  void give_keys(const Room& m, int64_t at, int64_t len, int64_t skip, float* sums) const {
    for (int64_t i = 0; i < len; ++i) {
      T* out = d_row(at + i);
      const T* x = row(at + i);
      key(at + i).give(m.d_keys + (skip + i) * wide, x + key_at(), out + key_at(), sums ? sums + n : nullptr);
      move(m.d_values + (skip + i) * wide, out + value_at(), n);
    }
  }

  // Gradients of up to QUERIES queries of a text, and what they add to those of the keys and values they read.
  void block(const Room& m, int64_t text, int head, int64_t begin, int count, float* sums) const {
    const int64_t at = a.at[text] + begin, skip = before(text) + begin;
    for (int r = 0; r < count; ++r) {
      query(at + r).take(row(at + r) + head * n, m.queries + r * wide);
      move(mixed(at + r, head), m.above + r * wide, n);
    }
    for (int r = 0; r < count; r += TILE) {
      const int rows = count - r < TILE ? count - r : TILE;
      float *weights = m.weights + r * scores_row, *d_scores = m.d_scores + r * scores_row;
      const int64_t columns = meet(m.queries + r * wide, rows, skip + r, m.keys, weights), end = columns + PAD;
      meet(m.above + r * wide, rows, skip + r, m.values, d_scores);
      for (int i = 0; i < rows; ++i) {
        float *p = weights + i * scores_row, *d = d_scores + i * scores_row;
        harden(p, d, skip + r + i + 1, end, share(at + r + i, head));
      }
      strip({d_scores, scores_row, 1}, rows, m.key_rows, wide, wide, skip + r + rows, m.d_queries, wide, false);
      for (int i = 0; i < rows; ++i)
        query(at + r + i).give(m.d_queries + i * wide, row(at + r + i) + head * n, d_row(at + r + i) + head * n, sums);
    }
    for (int64_t j = 0; j < skip + count; j += TILE) {
      const int rows = int(skip + count - j < TILE ? skip + count - j : TILE);
      const int64_t r = j > skip ? (j - skip) / TILE * TILE : 0;  // queries before it do not see key j
      const float *queries = m.queries + r * wide, *above = m.above + r * wide, *from = m.weights + r * scores_row + j;
      const float* d_from = m.d_scores + r * scores_row + j;
      strip({from, 1, scores_row}, rows, above, wide, wide, count - r, m.d_values + j * wide, wide, true);
      strip({d_from, 1, scores_row}, rows, queries, wide, wide, count - r, m.d_keys + j * wide, wide, true);
    }
  }
};

template <class T>
static void attend_of(const HoneAttention& a) {
  for_tasks(a.threads, int64_t(a.tasks) * a.kv_heads, [&](int64_t number) {
    Attention<T>(a, int(number / a.kv_heads), int(number % a.kv_heads)).forward();
  });
}

template <class T>
static void attend_back_of(const HoneAttention& a) {
  for_tasks(a.threads, int64_t(a.tasks) * a.kv_heads, [&](int64_t number) {
    Attention<T>(a, int(number / a.kv_heads), int(number % a.kv_heads)).backward();
  });
  if (!a.partial) return;
  const int n = 2 * a.head_dim;
  for (int i = 0; i < n; ++i) {
    a.d_norms[i] = 0.0f;
    for (int64_t part = 0; part < int64_t(a.tasks) * a.kv_heads; ++part) a.d_norms[i] += a.partial[part * n + i];
  }
}

static void attend(const HoneAttention& a) { a.type == BFLOAT ? attend_of<bf16>(a) : attend_of<float>(a); }
static void attend_back(const HoneAttention& a) {
  a.type == BFLOAT ? attend_back_of<bf16>(a) : attend_back_of<float>(a);
}

}  // namespace HONE_ISA
}  // namespace hone
