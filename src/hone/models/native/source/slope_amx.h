// The gradient of a linear layer's weight, g^T x, of bfloat16 numbers and with sums in float32, by AMX tiles.
//
// A tile of sums is 16 outputs by 16 inputs, and adds up over pairs of tokens from the first to the last, 32 tokens
// with each product: its value depends on no other tile and on no thread. A stretch of tokens is done with before the
// next: x of it is laid out in pairs of tokens, and stays in the second-level cache for all tasks, so a stretch is
// shorter where x is wide; g is laid out and turned by the task that owns its outputs, half of a stretch at a time in
// the first-level cache.
#pragma once
#include <cstring>

#include "kernels.h"
#include "tiles.h"

namespace hone {
namespace {

constexpr int64_t STEPS = SLOPE_ROOM / tiles::DEEP;  // of the longest stretch of tokens
constexpr int64_t NEAR = 8;                          // steps of 32 outputs and 32 inputs that are multiplied at once
constexpr int64_t LAID = int64_t(1) << 19;           // numbers of x that are laid out at once: 1 MiB

// 32 rows of 32 columns of a matrix that ends at row `rows`: where they lie, or a copy with zeros past its end.
struct Block {
  const bf16* at;
  int64_t stride;
  bf16 copy[tiles::DEEP][tiles::DEEP];

  Block(const void* matrix, int64_t rows, int64_t width, int64_t row, int64_t column)
      : at(static_cast<const bf16*>(matrix) + row * width + column), stride(width) {
    if (row + tiles::DEEP <= rows) return;
    std::memset(copy, 0, sizeof copy);
    for (int64_t i = 0; row + i < rows; ++i) std::memcpy(copy[i], at + i * stride, sizeof copy[i]);
    at = copy[0];
    stride = tiles::DEEP;
  }
  __m512i words(int pair, int half) const {
    const bf16* low = at + 2 * pair * stride + half * tiles::SIDE;
    return tiles::pairs(low, low + stride);
  }
};

// Step `step` of a stretch that begins at token `begin`: 32 tokens of x, as tiles [ins / 32][steps][2][16 pairs][16].
void lay(const HoneSlope& a, int64_t begin, int64_t steps, int64_t step) {
  for (int64_t i = 0; i < a.ins; i += tiles::DEEP) {
    const Block block(a.x, a.tokens, a.ins, begin + step * tiles::DEEP, i);
    bf16* to = static_cast<bf16*>(a.room) + (i / tiles::DEEP * steps + step) * 2 * tiles::TILE;
    for (int half = 0; half < 2; ++half, to += tiles::TILE)
      for (int pair = 0; pair < tiles::SIDE; ++pair)
        _mm512_storeu_si512(to + pair * tiles::DEEP, block.words(pair, half));
  }
}

// 32 tokens from `begin` on of 32 outputs of g, as tiles [2][16 outputs][16 pairs].
void lay_turned(const HoneSlope& a, int64_t begin, int64_t output, bf16* to) {
  const Block block(a.g, a.tokens, a.outs, begin, output);
  __m512i words[2][tiles::SIDE];
  for (int pair = 0; pair < tiles::SIDE; ++pair)
    for (int half = 0; half < 2; ++half) words[half][pair] = block.words(pair, half);
  for (int half = 0; half < 2; ++half, to += tiles::TILE) {
    tiles::turn(words[half]);
    for (int i = 0; i < tiles::SIDE; ++i) _mm512_store_si512(to + i * tiles::DEEP, words[half][i]);
  }
}

// Two tiles for each step, one beside the other.
tiles::Side pair_of(const bf16* at) {
  return {at, tiles::LINE, tiles::TILE_BYTES, 2 * tiles::TILE_BYTES, 0};
}

// Sums of 32 outputs by 32 inputs go on over `steps` of 32 tokens.
void multiply(const bf16* left, const bf16* right, int64_t steps, float* c, int64_t width, bool add) {
  if (add)
    tiles::load_sums<2>(c, width * 4);
  else
    tiles::zero_sums<2>();
  tiles::multiply<2>(pair_of(left), pair_of(right), steps, tiles::Nothing{});
  tiles::store_sums<2>(c, width * 4);
}

// What a stretch adds to all inputs of 32 outputs.
void outputs(const HoneSlope& a, int64_t begin, int64_t steps, int64_t first) {
  alignas(64) bf16 left[2 * tiles::TILE * STEPS];
  for (int64_t step = 0; step < steps; ++step)
    lay_turned(a, begin + step * tiles::DEEP, first, left + step * 2 * tiles::TILE);
  tiles::enter();
  for (int64_t step = 0; step < steps; step += NEAR) {
    const int64_t count = steps - step < NEAR ? steps - step : NEAR, skip = step * 2 * tiles::TILE;
    const bf16* right = static_cast<const bf16*>(a.room) + skip;
    for (int64_t i = 0; i < a.ins; i += tiles::DEEP, right += steps * 2 * tiles::TILE)
      multiply(left + skip, right, count, a.out + first * a.ins + i, a.ins, begin + step > 0);
  }
  tiles::leave();
}

}  // namespace

void slope_amx(const HoneSlope& a) {
  HONE_CHECK(a.tokens > 0 && a.outs % tiles::DEEP == 0 && a.ins % tiles::DEEP == 0);
  const int64_t fit = LAID / a.ins / tiles::DEEP, most = fit > STEPS ? STEPS : fit > NEAR / 2 ? fit : NEAR / 2;
  for (int64_t begin = 0; begin < a.tokens; begin += most * tiles::DEEP) {
    const int64_t rest = (a.tokens - begin + tiles::DEEP - 1) / tiles::DEEP, steps = rest < most ? rest : most;
    for_tasks(a.threads, steps, [&](int64_t step) { lay(a, begin, steps, step); });
    for_tasks(a.threads, a.outs / tiles::DEEP, [&](int64_t n) { outputs(a, begin, steps, n * tiles::DEEP); });
  }
}

}  // namespace hone
