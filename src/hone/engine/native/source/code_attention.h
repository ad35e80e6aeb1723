// Attention over keys and values that are codes of 8 bits, each with a scale of its position. Queries and the weights
// of positions are coded in 16 bits on the way, so that what is stored is nearly all that is lost.
//
// A block of a page is: keys [head / 4][16][4], 128 more than they count; their scales [16]; values
// [16 / 4][head][4]; their scales [16]. A word holds four features of a key, or four positions of a value.
#pragma once
#include "attention.h"
#include "code_blocks.h"

namespace hone {
namespace HONE_ISA {

struct CodedBlock {
  uint8_t* at;
  int head;
  uint8_t* keys() const { return at; }
  float* key_scales() const { return reinterpret_cast<float*>(at + head * PAGE_TOKENS); }
  uint8_t* values() const { return at + values_from<uint8_t>(head); }
  float* value_scales() const { return reinterpret_cast<float*>(values() + head * PAGE_TOKENS); }
};

// The key and the value of position `at` of a page. Threads write bytes of one word at a time: never a whole word.
HONE_INLINE void keep(const float* key, const float* value, int head, int at, uint8_t* block) {
  const CodedBlock to = {block, head};
  alignas(64) uint8_t codes[MOST_CODED_HEAD];
  to.key_scales()[at] = encode_row(key, head, codes);
  for (int i = 0; i < head; i += 4) __builtin_memcpy(to.keys() + i * PAGE_TOKENS + 4 * at, codes + i, 4);
  to.value_scales()[at] = encode_row(value, head, codes);
  uint8_t* values = to.values() + at / 4 * 4 * head + at % 4;
  for (int i = 0; i < head; ++i) values[4 * i] = codes[i] ^ 0x80;
}

HONE_INLINE CodedBlock block_in(const Past<uint8_t>& past, int page) {
  return {const_cast<uint8_t*>(past.keys(page)), past.engine->dims.head};
}

// Queries in 16 bits, in planes of bytes, or (AVX2) in pairs: words of features i and i + 2, and of i + 1 and i + 3.
template <int HEADS>
struct CodedQueries {
  alignas(64) uint8_t upper[HEADS][MOST_CODED_HEAD], lower[HEADS][MOST_CODED_HEAD];  // signed
#if defined(HONE_WIDENS_CODES)
  int16_t pairs[HEADS][MOST_CODED_HEAD];
#endif
  uint32_t offset[HEADS];  // what the 128 of each key's feature adds to a sum
  float scale[HEADS];

  CodedQueries(const float* q, int head, float factor) {
    for (int h = 0; h < HEADS; ++h) {
      scale[h] = encode_wide_row(q + h * head, head, upper[h], lower[h]) * factor;
      int32_t all = 0;
      for (int i = 0; i < head; ++i) {
        upper[h][i] ^= 0x80;
        lower[h][i] ^= 0x80;
        const int code = 256 * int8_t(upper[h][i]) + int8_t(lower[h][i]);
#if defined(HONE_WIDENS_CODES)
        pairs[h][i / 4 * 4 + i % 2 * 2 + i / 2 % 2] = int16_t(code);
#endif
        all += code;
      }
      offset[h] = 128u * uint32_t(all);
    }
  }
};

// Sums of queries' codes times keys' codes, modulo 2^32.
template <int HEADS, int PAGES>
struct CodeSums {
#if defined(HONE_WIDENS_CODES)
  vi sums[HEADS][PAGES][PAGE_VECTORS] = {};  // a query's 16 bits at once: half of the products

  inline __attribute__((always_inline)) void add(const CodedQueries<HEADS>& q, int i, vu keys, int page, int u) {
    const Halves wide = unsigned_halves(keys);
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; ++h) {
      const Halves query = {spread_word(q.pairs[h] + i), spread_word(q.pairs[h] + i + 2)};
      sums[h][page][u] = dot(sums[h][page][u], wide, query);
    }
  }
  vu whole(int h, int page, int u) const { return reinterpret_cast<vu>(sums[h][page][u]); }
#else
  vi upper[HEADS][PAGES][PAGE_VECTORS] = {}, lower[HEADS][PAGES][PAGE_VECTORS] = {};

  inline __attribute__((always_inline)) void add(const CodedQueries<HEADS>& q, int i, vu keys, int page, int u) {
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; ++h) {
      upper[h][page][u] = dot(upper[h][page][u], keys, spread_word(q.upper[h] + i));
      lower[h][page][u] = dot(lower[h][page][u], keys, spread_word(q.lower[h] + i));
    }
  }
  vu whole(int h, int page, int u) const {
    return (reinterpret_cast<vu>(upper[h][page][u]) << 8) + reinterpret_cast<vu>(lower[h][page][u]);
  }
#endif
};

// Scores of HEADS queries against PAGES pages from `first` on; lanes are positions.
template <int HEADS, int PAGES>
HONE_INLINE void coded_page_scores(const Reading<uint8_t>& reading, int first, const CodedQueries<HEADS>& q,
                                   float* scores, int64_t stride) {
  const Past<uint8_t>& past = reading.now;
  const bool first_cache = past.engine->fetches_to_first_cache;
  CodedBlock blocks[PAGES];
  const uint8_t* ahead[PAGES];
  for (int page = 0; page < PAGES; ++page) {
    blocks[page] = block_in(past, first + page);
    ahead[page] = reading.ahead_of_keys(first + page);
    fetch<1>(ahead[page] + past.engine->dims.head * PAGE_TOKENS, first_cache);  // scales
    fetch<1>(blocks[page].value_scales(), first_cache);
  }
  CodeSums<HEADS, PAGES> sums;
  for (int i = 0; i < past.engine->dims.head; i += 4) {
#pragma GCC unroll 4
    for (int page = 0; page < PAGES; ++page) {
      fetch<4 * PAGE_TOKENS>(ahead[page] + i * PAGE_TOKENS, first_cache);
#pragma GCC unroll 4
      for (int u = 0; u < PAGE_VECTORS; ++u)
        sums.add(q, i, *reinterpret_cast<const vu*>(blocks[page].keys() + i * PAGE_TOKENS + 4 * u * LANES), page, u);
    }
  }
  for (int h = 0; h < HEADS; ++h)
    for (int page = 0; page < PAGES; ++page)
      for (int u = 0; u < PAGE_VECTORS; ++u) {
        const vf sum = __builtin_convertvector(reinterpret_cast<vi>(sums.whole(h, page, u) - q.offset[h]), vf);
        store(scores + h * stride + (first + page) * PAGE_TOKENS + u * LANES,
              sum * load(blocks[page].key_scales() + u * LANES) * spread(q.scale[h]));
      }
}

template <int HEADS, int PAGES>
HONE_INLINE void coded_scores(const Reading<uint8_t>& reading, int page, int end, const CodedQueries<HEADS>& q,
                              float* scores, int64_t stride) {
  for (; page + PAGES <= end; page += PAGES) coded_page_scores<HEADS, PAGES>(reading, page, q, scores, stride);
  if constexpr (PAGES > 1) coded_scores<HEADS, PAGES / 2>(reading, page, end, q, scores, stride);
}

// Weights of positions times the scales of their values, as codes of 16 bits [2][stride]; returns what a code counts.
HONE_INLINE float encode_shares(const Past<uint8_t>& past, float* shares, int64_t stride, uint8_t* codes) {
  const vi lanes = lane_numbers();
  for (int first = 0; first < past.count; first += PAGE_TOKENS) {
    const float* scales = block_in(past, first / PAGE_TOKENS).value_scales();
    for (int i = 0; i < PAGE_TOKENS; i += LANES) {
      const vf product = load(shares + first + i) * load(scales + i);
      store(shares + first + i, lanes < past.count - first - i ? product : vf{});
    }
  }
  const int end = round_up(past.count, PAGE_TOKENS);
  const Coding coding(largest(shares, end), 65535);
  for (int i = 0; i < end; i += LANES) {
    const vu word = encode(load(shares + i), coding.inverse, 0);
    store_bytes(codes + i, word >> 8);
    store_bytes(codes + stride + i, word);
  }
  return coding.scale;
}

// Codes of the shares of one head, four positions at a time.
struct ShareCodes {
  const uint8_t* at;
  int64_t stride;
#if defined(HONE_WIDENS_CODES)
  // Widened, as each word is read for every feature: words of positions 0 and 2 of four, then those of 1 and 3.
  static void widen(uint8_t* at, int64_t stride) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(at);
    uint32_t *even = reinterpret_cast<uint32_t*>(at + 2 * stride), *odd = even + stride / 2;
    for (int64_t i = 0; i < stride / 2; ++i) {
      even[i] = words[i] & 0x00ff00ff;
      odd[i] = words[i] >> 8 & 0x00ff00ff;
    }
  }
  Halves four(int64_t place) const { return {spread_word(at + 2 * stride + place), spread_word(at + 4 * stride + place)}; }
  static constexpr int BYTES = 6;  // of a position
#else
  static void widen(uint8_t*, int64_t) {}
  vu four(int64_t place) const { return spread_word(at + place); }
  static constexpr int BYTES = 2;
#endif
  auto upper(int position) const { return four(position); }
  auto lower(int position) const { return four(stride + position); }
};

// VECTORS registers of the values' features from `feature` on, for HEADS heads; `scale`: what a sum counts.
template <int HEADS, int VECTORS>
HONE_INLINE void mix_codes(const Reading<uint8_t>& reading, int feature, const uint8_t* codes, int64_t stride,
                           const float* scale, float* out) {
  const Past<uint8_t>& past = reading.now;
  const int head = past.engine->dims.head;
  const bool first_cache = past.engine->fetches_to_first_cache;
  vi upper[HEADS][VECTORS] = {}, lower[HEADS][VECTORS] = {};
  for (int first = 0; first < past.count; first += PAGE_TOKENS) {
    const uint8_t* values = block_in(past, first / PAGE_TOKENS).values() + 4 * feature;
    const uint8_t* ahead = reading.ahead_of_values(first / PAGE_TOKENS) + 4 * feature;
    for (int i = 0; i < PAGE_TOKENS && first + i < past.count; i += 4) {
      fetch<4 * VECTORS * LANES>(ahead + i * head, first_cache);
      SignedCodes four[VECTORS];
#pragma GCC unroll 4
      for (int u = 0; u < VECTORS; ++u)
        four[u] = signed_codes(*reinterpret_cast<const vu*>(values + i * head + 4 * u * LANES));
#pragma GCC unroll 4
      for (int h = 0; h < HEADS; ++h) {
        const ShareCodes share = {codes + ShareCodes::BYTES * h * stride, stride};
        const auto high = share.upper(first + i), low = share.lower(first + i);
#pragma GCC unroll 4
        for (int u = 0; u < VECTORS; ++u) {
          upper[h][u] = dot(upper[h][u], high, four[u]);
          lower[h][u] = dot(lower[h][u], low, four[u]);
        }
      }
    }
  }
  for (int h = 0; h < HEADS; ++h)
    for (int u = 0; u < VECTORS; ++u) {
      const vf high = __builtin_convertvector(upper[h][u], vf), low = __builtin_convertvector(lower[h][u], vf);
      store(out + h * head + feature + u * LANES, fma(high, spread(256), low) * spread(scale[h]));
    }
}

template <int HEADS>
static void attend_coded_heads(const Reading<uint8_t>& reading, const float* q, float factor, Scratch& scratch,
                               int64_t stride, float* out) {
#if defined(HONE_WIDENS_CODES)
  constexpr int PAGES = 4 / HEADS;
#else
  constexpr int PAGES = LANES == 16 ? (HEADS == 4 ? 2 : 4) : (HEADS == 1 ? 2 : 1);
#endif
  constexpr int WIDE = SUMS / (2 * HEADS), VECTORS = WIDE > 4 ? 4 : (WIDE < 1 ? 1 : WIDE);
  float* scores = scratch.scores.as<float>();
  uint8_t* codes = scratch.shares.as<uint8_t>();
  const Past<uint8_t>& past = reading.now;
  const CodedQueries<HEADS> queries(q, past.engine->dims.head, factor);
  coded_scores<HEADS, PAGES>(reading, 0, past.held(), queries, scores, stride);
  float scale[HEADS];
  for (int h = 0; h < HEADS; ++h) {
    const float total = soften_scores(scores + h * stride, past.skip, past.count, past.engine->dims.shape.score_cap);
    uint8_t* at = codes + ShareCodes::BYTES * h * stride;
    scale[h] = encode_shares(past, scores + h * stride, stride, at) / total;
    ShareCodes::widen(at, stride);
  }
  const int head = past.engine->dims.head;
  int feature = 0;
  for (; feature + VECTORS * LANES <= head; feature += VECTORS * LANES)
    mix_codes<HEADS, VECTORS>(reading, feature, codes, stride, scale, out);
  for (; feature < head; feature += LANES) mix_codes<HEADS, 1>(reading, feature, codes, stride, scale, out);
}

// Token `token` of the pass, all query heads of one key head: into `mixed`.
static void attend_codes(Engine& e, int layer, int token, int kv_head, int thread) {
  const Dims& d = e.dims;
  const Reading<uint8_t> reading(e, layer, token, kv_head);
  const float* q = e.qkv.as<float>() + int64_t(token) * d.qkv + kv_head * d.group * d.head;
  const int64_t place = int64_t(token) * d.mixed + kv_head * d.group * d.head;
  Scratch& scratch = e.scratch[thread];
  const int64_t stride = reading.now.held() * PAGE_TOKENS;
  HONE_CHECK(scratch.shares.bytes >= size_t(4 * ShareCodes::BYTES * stride));
  const float factor = 1.0f / __builtin_sqrtf(float(d.shape.head_dim));
  const bool half = d.number == sizeof(bf16);
  alignas(64) float wide[4 * MOST_CODED_HEAD];
  for (int h = 0, heads = 0; h < d.group; h += heads) {
    const float* queries = q + h * d.head;
    float* out = half ? wide : e.mixed.as<float>() + place + h * d.head;
    heads = d.group - h >= 4 ? 4 : (d.group - h >= 2 ? 2 : 1);
    if (heads == 4)
      attend_coded_heads<4>(reading, queries, factor, scratch, stride, out);
    else if (heads == 2)
      attend_coded_heads<2>(reading, queries, factor, scratch, stride, out);
    else
      attend_coded_heads<1>(reading, queries, factor, scratch, stride, out);
    for (int i = 0; half && i < heads * d.head; i += LANES)
      store(e.mixed.as<bf16>() + place + h * d.head + i, load(wide + i));
  }
}

#if defined(HONE_WIDENS_CODES)
constexpr CodeKernels CODE_KERNELS = {wide_code_tile, MOST_TILE_ROWS, multiply_blocks, BLOCK_ROWS, attend_codes};
#else
constexpr CodeKernels CODE_KERNELS = {any_code_tile<CODE_ROWS>, CODE_ROWS, multiply_blocks, BLOCK_ROWS, attend_codes};
#endif

}  // namespace HONE_ISA
}  // namespace hone
