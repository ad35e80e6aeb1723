// A perceptron whose hidden layers multiply rounded numbers in vector registers: pairs of bfloat16, added up in float32.
//
// On processors that multiply 64 numbers a cycle so (AMD's since Zen 4), twice as many as in float32.
#include "rounded.h"

namespace hone {
namespace {

struct VectorProduct {
  static void enter() {}
  static void leave() {}

  // c [32][32], eight rows at a time in registers.
  static void multiply(const bf16* left, const bf16* right, int64_t steps, float* c) {
    constexpr int ROWS = 8;
    for (int row = 0; row < 32; row += ROWS) {
      __m512 sums[ROWS][2] = {};
      const bf16* rows = left + row / SIDE * TILE + row % SIDE * DEEP;
      for (int64_t step = 0; step < steps; ++step)
        for (int word = 0; word < SIDE; ++word) {
          const bf16* lines = right + step * 2 * TILE + word * DEEP;
          const __m512bh low = reinterpret_cast<__m512bh>(_mm512_load_si512(lines));
          const __m512bh high = reinterpret_cast<__m512bh>(_mm512_load_si512(lines + TILE));
#pragma GCC unroll 8
          for (int i = 0; i < ROWS; ++i) {
            int32_t pair;
            std::memcpy(&pair, rows + step * 2 * TILE + i * DEEP + word * 2, sizeof pair);
            const __m512bh both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
            sums[i][0] = _mm512_dpbf16_ps(sums[i][0], both, low);
            sums[i][1] = _mm512_dpbf16_ps(sums[i][1], both, high);
          }
        }
      for (int i = 0; i < ROWS; ++i)
        for (int half = 0; half < 2; ++half) _mm512_store_ps(c + (row + i) * 32 + half * SIDE, sums[i][half]);
    }
  }
};

}  // namespace

void avx512_bf16::forward(const Perceptron& net, const Forward& a) { rounded_forward<VectorProduct>(net, a); }
void avx512_bf16::backward(const Perceptron& net, const Backward& a) { rounded_backward<VectorProduct>(net, a); }

}  // namespace hone
