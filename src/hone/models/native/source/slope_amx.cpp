// The gradient of a linear layer's weight, g^T x, of bfloat16 numbers and with sums in float32, by AMX tiles.
//
// A tile of sums is 16 outputs by 16 inputs, and adds up over pairs of tokens from the first to the last, 32 tokens
// with each product: its value depends on no other tile and on no thread. A stretch of tokens is done with before the
// next: x of it is laid out in pairs of tokens, and stays in the cache for all tasks; g is laid out and turned by the
// task that owns its outputs.
#include <immintrin.h>

#include <cstring>

#include "kernels.h"

namespace hone {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};  // the palette has 8 tiles
};

// In static memory: compilers take _tile_loadconfig to read no more than the first bytes of a local.
const TileConfig CONFIG;

constexpr int SIDE = 16, DEEP = 2 * SIDE;     // of a tile: outputs or inputs, and tokens
constexpr int TILE = SIDE * DEEP;             // numbers in it
constexpr int64_t STEPS = SLOPE_ROOM / DEEP;  // of a stretch of tokens
constexpr int64_t LINE = SIDE * 4;            // bytes

// Members of two tokens side by side: [16] words, of `low` and `high` [16].
inline __m512i pairs(const bf16* low, const bf16* high) {
  const auto words = [](const bf16* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  return _mm512_or_si512(words(low), _mm512_slli_epi32(words(high), 16));
}

// 32 rows of 32 columns of a matrix that ends at row `rows`: where they lie, or a copy with zeros past its end.
struct Block {
  const bf16* at;
  int64_t stride;
  bf16 copy[DEEP][DEEP];

  Block(const void* matrix, int64_t rows, int64_t width, int64_t row, int64_t column)
      : at(static_cast<const bf16*>(matrix) + row * width + column), stride(width) {
    if (row + DEEP <= rows) return;
    std::memset(copy, 0, sizeof copy);
    for (int64_t i = 0; row + i < rows; ++i) std::memcpy(copy[i], at + i * stride, sizeof copy[i]);
    at = copy[0];
    stride = DEEP;
  }
  __m512i words(int pair, int half) const {
    const bf16* low = at + 2 * pair * stride + half * SIDE;
    return pairs(low, low + stride);
  }
};

// [16][16] words, turned.
void turn(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

// Step `step` of a stretch that begins at token `begin`: 32 tokens of x, as tiles [ins / 32][steps][2][16 pairs][16].
void lay(const HoneSlope& a, int64_t begin, int64_t steps, int64_t step) {
  for (int64_t i = 0; i < a.ins; i += DEEP) {
    const Block block(a.x, a.tokens, a.ins, begin + step * DEEP, i);
    bf16* to = static_cast<bf16*>(a.room) + (i / DEEP * steps + step) * 2 * TILE;
    for (int half = 0; half < 2; ++half, to += TILE)
      for (int pair = 0; pair < SIDE; ++pair) _mm512_storeu_si512(to + pair * DEEP, block.words(pair, half));
  }
}

// 32 tokens from `begin` on of 32 outputs of g, as tiles [2][16 outputs][16 pairs].
void lay_turned(const HoneSlope& a, int64_t begin, int64_t output, bf16* to) {
  const Block block(a.g, a.tokens, a.outs, begin, output);
  __m512i words[2][SIDE];
  for (int pair = 0; pair < SIDE; ++pair)
    for (int half = 0; half < 2; ++half) words[half][pair] = block.words(pair, half);
  for (int half = 0; half < 2; ++half, to += TILE) {
    turn(words[half]);
    for (int i = 0; i < SIDE; ++i) _mm512_store_si512(to + i * DEEP, words[half][i]);
  }
}

// Sums of 32 outputs by 32 inputs go on over `steps` of 32 tokens.
void multiply(const bf16* left, const bf16* right, int64_t steps, float* c, int64_t width, bool add) {
  float* below = c + SIDE * width;
  if (add) {
    _tile_loadd(0, c, width * 4);
    _tile_loadd(1, c + SIDE, width * 4);
    _tile_loadd(2, below, width * 4);
    _tile_loadd(3, below + SIDE, width * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; ++step, left += 2 * TILE, right += 2 * TILE) {
    _tile_loadd(4, left, LINE);
    _tile_loadd(6, right, LINE);
    _tile_loadd(7, right + TILE, LINE);
    _tile_loadd(5, left + TILE, LINE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, width * 4);
  _tile_stored(1, c + SIDE, width * 4);
  _tile_stored(2, below, width * 4);
  _tile_stored(3, below + SIDE, width * 4);
}

// What a stretch adds to all inputs of 32 outputs.
void outputs(const HoneSlope& a, int64_t begin, int64_t steps, int64_t first) {
  alignas(64) bf16 left[2 * TILE * STEPS];
  for (int64_t step = 0; step < steps; ++step) lay_turned(a, begin + step * DEEP, first, left + step * 2 * TILE);
  const bf16* right = static_cast<const bf16*>(a.room);
  _tile_loadconfig(&CONFIG);
  for (int64_t i = 0; i < a.ins; i += DEEP, right += steps * 2 * TILE)
    multiply(left, right, steps, a.out + first * a.ins + i, a.ins, begin > 0);
  _tile_release();
}

}  // namespace

void slope_amx(const HoneSlope& a) {
  HONE_CHECK(a.tokens > 0 && a.outs % DEEP == 0 && a.ins % DEEP == 0);
  for (int64_t begin = 0; begin < a.tokens; begin += STEPS * DEEP) {
    const int64_t rest = (a.tokens - begin + DEEP - 1) / DEEP, steps = rest < STEPS ? rest : STEPS;
    for_tasks(a.threads, steps, [&](int64_t step) { lay(a, begin, steps, step); });
    for_tasks(a.threads, a.outs / DEEP, [&](int64_t n) { outputs(a, begin, steps, n * DEEP); });
  }
}

}  // namespace hone
