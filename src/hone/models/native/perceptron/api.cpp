// The C functions: both passes, and PPO's minibatch, by one of the instruction sets, numbered from 0.
#include "perceptron.h"
#include "processor.h"

#define HONE_OUT extern "C" __attribute__((visibility("default")))

namespace hone {
namespace {

struct Passes {
  bool (*runs)();
  void (*forward)(const Perceptron&, const Forward&);
  void (*backward)(const Perceptron&, const Backward&);
  void (*clipped)(const Perceptron&, const Perceptron&, const Clipped&);
  void (*rounded_forward)(const Perceptron&, const Forward&);  // or null, as the next
  void (*rounded_backward)(const Perceptron&, const Backward&);
};

// In the order of their names in perceptron.py; null where the compiler did not know the instructions.
constexpr Passes PASSES[] = {
#ifdef HONE_HAS_AVX2
    {runs_avx2, avx2::forward, avx2::backward, avx2::clipped},
#else
    {},
#endif
#ifdef HONE_HAS_AVX512
    {runs_avx512, avx512::forward, avx512::backward, avx512::clipped},
#else
    {},
#endif
#if defined(HONE_HAS_AVX512_BF16) && defined(HONE_HAS_AVX512)
    {runs_avx512_bf16, avx512::forward, avx512::backward, avx512::clipped, avx512_bf16::forward, avx512_bf16::backward},
#else
    {},
#endif
#ifdef HONE_HAS_AMX
    {runs_amx, amx::forward, amx::backward, avx512::clipped, amx::rounded_forward, amx::rounded_backward},
#else
    {},
#endif
};

}  // namespace
}  // namespace hone

// One bit for each instruction set that runs here.
HONE_OUT uint32_t hone_instruction_sets() {
  uint32_t bits = 0;
  for (int set = 0; set < 4; ++set)
    if (hone::PASSES[set].runs && hone::PASSES[set].runs()) bits |= 1u << set;
  return bits;
}

// 1 if it has the passes of rounded numbers.
HONE_OUT int32_t hone_rounds(int32_t set) { return hone::PASSES[set].rounded_forward != nullptr; }

HONE_OUT void hone_forward(int32_t set, const hone::Perceptron* net, int64_t rows, const float* x, float* tape,
                           float* y) {
  const auto& passes = hone::PASSES[set];
  (net->rounded ? passes.rounded_forward : passes.forward)(*net, {rows, x, tape, y});
}

HONE_OUT void hone_backward(int32_t set, const hone::Perceptron* net, int64_t rows, const float* x, const float* tape,
                            const float* slope, float* d_x, int32_t weights) {
  const auto& passes = hone::PASSES[set];
  (net->rounded ? passes.rounded_backward : passes.backward)(*net, {rows, x, tape, slope, d_x, weights != 0});
}

HONE_OUT void hone_clipped(int32_t set, const hone::Perceptron* actor, const hone::Perceptron* critic,
                           const hone::Clipped* a) {
  hone::PASSES[set].clipped(*actor, *critic, *a);
}
