// Blocks of codes of 4 or 8 bits, 32 inputs of 32 outputs with a scale of 16 bits for each output: the layout of
// models/language/quantised_linear.py. A code counts its value less ZERO, times the scale.
#pragma once
#include "vec.h"

namespace hone {
namespace HONE_ISA {

constexpr int GROUP = 32;  // inputs of a block, and outputs

template <int BITS>
struct BlockOf {
  static constexpr int ZERO = 1 << (BITS - 1);
  static constexpr int WORDS = BITS == 4 ? 64 : 128;  // bytes of four inputs
  static constexpr int SCALES = GROUP / 4 * WORDS;    // where the scales begin
  static constexpr int BYTES = SCALES + 2 * GROUP;
};

// Numbers of 16 bits (IEEE), those below the normal range included.
HONE_INLINE vf load_halves(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#else
#if defined(__AVX2__)  // compilers put the words together one by one
  const vu words = reinterpret_cast<vu>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  const vu words = __builtin_convertvector(*reinterpret_cast<const vh_there*>(p), vu);
#endif
  const vf magnitude = reinterpret_cast<vf>((words & 0x7fff) << 13) * spread(0x1p112f);
  return reinterpret_cast<vf>(reinterpret_cast<vu>(magnitude) | (words & 0x8000) << 16);
#endif
}

// The 32 inputs of one output of a block.
template <int BITS, class T>
HONE_INLINE void decode_group(const uint8_t* block, int output, T* out) {
  typedef BlockOf<BITS> Block;
  const int at = BITS == 4 ? output % 16 : output, shift = BITS == 4 ? output / 16 * 4 : 0;
  uint16_t half;
  __builtin_memcpy(&half, block + Block::SCALES + 2 * output, 2);
  const uint32_t magnitude = uint32_t(half & 0x7fff) << 13, sign = uint32_t(half & 0x8000) << 16;
  float scale;
  __builtin_memcpy(&scale, &magnitude, 4);
  scale *= sign ? -0x1p112f : 0x1p112f;
  alignas(64) int32_t codes[GROUP];
  for (int word = 0; word < GROUP / 4; ++word) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, block + word * Block::WORDS + 4 * at, 4);
    bytes >>= shift;
    for (int i = 0; i < 4; ++i) codes[4 * word + i] = int32_t(bytes >> 8 * i & (BITS == 4 ? 15 : 255));
  }
  for (int i = 0; i < GROUP; i += LANES) {
    const vi whole = *reinterpret_cast<const vi*>(codes + i) - Block::ZERO;
    store(out + i, __builtin_convertvector(whole, vf) * spread(scale));
  }
}

}  // namespace HONE_ISA
}  // namespace hone
