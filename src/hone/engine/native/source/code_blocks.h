// Products of activations in codes with weights in blocks of codes (blocks.h), both with a scale of each 32 inputs.
//
// Weights are the unsigned bytes here, and activations the signed ones; sums begin at what takes the ZERO of the weights'
// codes off again: it times the sum of the activations' codes, negated. Sums over 32 inputs are whole numbers, exact in
// any order; they are added in float32 block by block, so that bits are the same on every instruction set that has a
// fused multiply-add.
#pragma once
#include "blocks.h"
#include "codes.h"

namespace hone {
namespace HONE_ISA {

// Rows of a tile: sums of whole numbers, two in each plane, and two of float32.
constexpr int BLOCK_ROWS = LANES == 16 ? 6 : 2;

// Codes of one row, 32 by 32, of 8 bits or of 16 in two planes, for weights of `bits`; `count` is a multiple of 32.
HONE_INLINE void encode_blocks(const float* x, int count, int planes, int bits, uint8_t* upper, uint8_t* lower,
                               float* scale, int32_t* begin) {
  const float most = planes == 2 ? MOST_WIDE_CODE : MOST_CODE, zero = 12582912.0f;  // 1.5 * 2^23
  for (int i = 0; i < count; i += GROUP) {
    const Coding coding(largest(x + i, GROUP), most);
    vf total = {};
    for (int j = i; j < i + GROUP; j += LANES) {
      const vf rounded = fma(load(x + j), spread(coding.inverse), spread(zero));
      total = total + (rounded - spread(zero));
      const vu word = reinterpret_cast<vu>(rounded);
      if (planes == 2) {
        store_bytes(upper + j, (word + 128) >> 8);
        store_bytes(lower + j, word);
      } else {
        store_bytes(upper + j, word);
      }
    }
    scale[i / GROUP] = coding.scale;
    begin[i / GROUP] = -int32_t(sum(total)) * (1 << (bits - 1));
  }
}

template <int BITS, int PLANES, int ROWS>
static void tile_blocks(const BlockRows& rows, int from, const uint8_t* panel, int groups, float* c,
                        const Ahead& ahead) {
  typedef BlockOf<BITS> Block;
  constexpr int HALF = GROUP / 2;  // outputs whose codes are the lower halves of bytes, or come first
  for (int part = 0; part < HALF; part += LANES) {
    vf out[ROWS][2] = {};
    const uint8_t* block = panel;
    for (int group = 0; group < groups; ++group, block += Block::BYTES) {
      const int64_t first = from * (rows.stride / GROUP) + group;
      vi sums[ROWS][PLANES][2] = {};
#pragma GCC unroll 6
      for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half)
          sums[row][PLANES - 1][half] = rows.begin[first + row * (rows.stride / GROUP)] - vi{};
      const uint8_t* codes = rows.codes + from * rows.stride + group * GROUP;
#pragma GCC unroll 8
      for (int i = 0; i < GROUP / 4; ++i) {
        ahead.fetch(group * (GROUP / 4) + i);
        const uint8_t* words = block + i * Block::WORDS + 4 * part;
        const vu first = *reinterpret_cast<const vu_there*>(words);
        vu left = first & 0x0f0f0f0f, right = first >> 4 & 0x0f0f0f0f;
        if (BITS == 8) {
          left = first;
          right = *reinterpret_cast<const vu_there*>(words + 4 * HALF);
        }
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
          for (int plane = 0; plane < PLANES; ++plane) {
            const vu x = spread_word(codes + row * rows.stride + plane * rows.plane + 4 * i);
            sums[row][plane][0] = dot(sums[row][plane][0], left, x);
            sums[row][plane][1] = dot(sums[row][plane][1], right, x);
          }
      }
      const vf left = load_halves(block + Block::SCALES + 2 * part);
      const vf right = load_halves(block + Block::SCALES + 2 * (HALF + part));
#pragma GCC unroll 6
      for (int row = 0; row < ROWS; ++row) {
        const vf scale = spread(rows.scale[first + row * (rows.stride / GROUP)]);
        for (int half = 0; half < 2; ++half) {
          vi whole = sums[row][0][half];
          if (PLANES == 2) whole = (whole << 8) + sums[row][PLANES - 1][half];
          const vf by = scale * (half ? right : left);
          out[row][half] = fma(__builtin_convertvector(whole, vf), by, out[row][half]);
        }
      }
    }
    for (int row = 0; row < ROWS; ++row)
      for (int half = 0; half < 2; ++half) store(c + row * PANEL + half * HALF + part, out[row][half]);
  }
}

template <int BITS, int PLANES, int MOST>
static void block_rows(const BlockRows& rows, int from, int count, const uint8_t* panel, int groups, float* c,
                       const Ahead& ahead) {
  if constexpr (MOST > 1)
    if (count < MOST) return block_rows<BITS, PLANES, MOST - 1>(rows, from, count, panel, groups, c, ahead);
  tile_blocks<BITS, PLANES, MOST>(rows, from, panel, groups, c, ahead);
}

static void multiply_blocks(const BlockRows& rows, int from, int count, const uint8_t* panel, int groups, int bits,
                            float* c, const Ahead& ahead) {
  HONE_CHECK(count <= BLOCK_ROWS && groups * GROUP <= rows.stride);
  const bool wide = rows.planes == 2;
  if (bits == 4)
    wide ? block_rows<4, 2, BLOCK_ROWS>(rows, from, count, panel, groups, c, ahead)
         : block_rows<4, 1, BLOCK_ROWS>(rows, from, count, panel, groups, c, ahead);
  else
    wide ? block_rows<8, 2, BLOCK_ROWS>(rows, from, count, panel, groups, c, ahead)
         : block_rows<8, 1, BLOCK_ROWS>(rows, from, count, panel, groups, c, ahead);
}

}  // namespace HONE_ISA
}  // namespace hone
