// One register of float32 and what is done with it. Included once for each instruction set, in its own namespace.
//
// Products are contracted only where fma() says so (-ffp-contract=off), so that a result depends on the source alone.
#pragma once
#include "basics.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define HONE_LANES 16
#elif defined(__AVX2__)
#define HONE_LANES 8
#else
#define HONE_LANES 4
#endif

#define HONE_INLINE static inline __attribute__((always_inline))

namespace hone {
namespace HONE_ISA {

constexpr int LANES = HONE_LANES;
typedef float vf __attribute__((vector_size(LANES * 4), may_alias));
typedef int32_t vi __attribute__((vector_size(LANES * 4), may_alias));
typedef uint32_t vu __attribute__((vector_size(LANES * 4), may_alias));
typedef uint16_t vh __attribute__((vector_size(LANES * 2), may_alias));
// As they lie in memory: at any address.
typedef float vf_there __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef uint32_t vu_there __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef uint16_t vh_there __attribute__((vector_size(LANES * 2), may_alias, aligned(2)));

HONE_INLINE vf spread(float x) { return x - vf{}; }

HONE_INLINE vf load(const float* p) { return *reinterpret_cast<const vf_there*>(p); }
HONE_INLINE void store(float* p, vf x) { *reinterpret_cast<vf_there*>(p) = x; }

HONE_INLINE vf load(const bf16* p) {
#if defined(__AVX512F__)
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return reinterpret_cast<vf>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
#elif defined(__AVX2__)
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return reinterpret_cast<vf>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
#else
  return reinterpret_cast<vf>(__builtin_convertvector(*reinterpret_cast<const vh_there*>(p), vu) << 16);
#endif
}

// The two numbers of a word of bfloat16.
HONE_INLINE vf low_half(vu words) { return reinterpret_cast<vf>(words << 16); }
HONE_INLINE vf high_half(vu words) { return reinterpret_cast<vf>(words & 0xffff0000u); }

// Rounds to nearest even; what is not a number stays so.
HONE_INLINE vu rounded(vf x) {
  const vu bits = reinterpret_cast<vu>(x);
  const vu even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const vu quiet = vu{} + 0x7fc0;
  return x == x ? even : quiet;
}
HONE_INLINE void store(bf16* p, vf x) {
#if defined(__AVX512BF16__)
  const __m256bh halves = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(x));  // below 2^-126: zero
  __builtin_memcpy(p, &halves, sizeof halves);
#elif defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(rounded(x))));
#else
  *reinterpret_cast<vh_there*>(p) = __builtin_convertvector(rounded(x), vh);
#endif
}

HONE_INLINE float widen(float x) { return x; }
HONE_INLINE float widen(bf16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float out;
  __builtin_memcpy(&out, &bits, 4);
  return out;
}
HONE_INLINE void narrow(float x, float* to) { *to = x; }
HONE_INLINE void narrow(float x, bf16* to) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  to->bits = x == x ? uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) : uint16_t(0x7fc0);
}

// a * b + c, rounded once where the instruction exists.
HONE_INLINE vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__AVX2__)
  return reinterpret_cast<vf>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__aarch64__)
  return reinterpret_cast<vf>(
      vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
#else
  return a * b + c;
#endif
}

// a > b ? a : b and a < b ? a : b, which is b where one of them is not a number.
HONE_INLINE vf larger(vf a, vf b) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#else
  return a > b ? a : b;
#endif
}
HONE_INLINE vf smaller(vf a, vf b) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_min_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#else
  return a < b ? a : b;
#endif
}

HONE_INLINE vi lane_numbers() {
  vi lanes;
  for (int i = 0; i < LANES; ++i) lanes[i] = i;
  return lanes;
}

// Lanes in halves, so that the order of the sum is fixed.
HONE_INLINE float sum(vf x) {
#if defined(__AVX512F__)
  const __m512 all = reinterpret_cast<__m512>(x);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  alignas(64) float part[LANES];
  store(part, x);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) part[i] += part[i + half];
  return part[0];
#endif
}

// Sixteen running sums in as many registers as they take, so that every set adds up in one order.
constexpr int PARTS = 16 / LANES;
struct Sixteen {
  vf part[PARTS] = {};
};
HONE_INLINE float sum(Sixteen x) {
  for (int half = PARTS / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) x.part[i] = x.part[i] + x.part[i + half];
  return sum(x.part[0]);
}

HONE_INLINE float maximum(vf x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(x));
#else
  alignas(64) float part[LANES];
  store(part, x);
  for (int i = 1; i < LANES; ++i) part[0] = part[i] > part[0] ? part[i] : part[0];
  return part[0];
#endif
}

// exp of x within [-87, 88], to about one unit in the last place: x = n log 2 + r, and a polynomial in r (Cephes).
// exp(0) is 1 exactly; what is not a number stays so.
HONE_INLINE vf exp(vf x) {
  const vf low = spread(-87.0f), high = spread(88.0f), magic = spread(12582912.0f);  // 1.5 * 2^23: rounds to a whole
  x = smaller(high, larger(low, x));
  const vf shifted = fma(x, spread(1.44269504088896341f), magic);
  const vf n = shifted - magic;
  vf r = fma(n, spread(-0.693359375f), x);
  r = fma(n, spread(2.12194440e-4f), r);
  vf p = spread(1.9875691500e-4f);
  p = fma(p, r, spread(1.3981999507e-3f));
  p = fma(p, r, spread(8.3334519073e-3f));
  p = fma(p, r, spread(4.1665795894e-2f));
  p = fma(p, r, spread(1.6666665459e-1f));
  p = fma(p, r, spread(5.0000001201e-1f));
  p = fma(p, r * r, r) + spread(1.0f);
  return p * reinterpret_cast<vf>((reinterpret_cast<vu>(shifted) << 23) + 0x3f800000u);
}

// Members of each pair of neighbours, exchanged.
HONE_INLINE vf exchanged(vf x) {
#if defined(__clang__)
#if HONE_LANES == 16
  return __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif HONE_LANES == 8
  return __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
#else
  return __builtin_shufflevector(x, x, 1, 0, 3, 2);
#endif
#else
  return __builtin_shuffle(x, lane_numbers() ^ 1);
#endif
}

}  // namespace HONE_ISA
}  // namespace hone
