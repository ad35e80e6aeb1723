// Loops that do one thing: the ends of what a core can do, in thread CPU time. floors.py compiles and calls them.
#include <immintrin.h>
#include <time.h>

#include <cstdint>

namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

constexpr int CHAINS = 24;

// Seconds of `rounds` times CHAINS products of registers, each with its own sum. Loops that are not unrolled would keep
// the sums in memory.
template <class Sum, class Product>
__attribute__((always_inline)) inline double timed(int64_t rounds, float* sink, Sum zero, const Product& product) {
  Sum sums[CHAINS];
#pragma GCC unroll 24
  for (int chain = 0; chain < CHAINS; ++chain) sums[chain] = zero;
  const double began = now();
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (int chain = 0; chain < CHAINS; ++chain) product(sums[chain]);
  }
  const double seconds = now() - began;
#pragma GCC unroll 24
  for (int chain = 0; chain < CHAINS; ++chain) *sink += sums[chain][0];
  return seconds;
}

}  // namespace

extern "C" {

// Of float32: 32 operations each with AVX-512.
__attribute__((target("avx512f"))) double float32_avx512(int64_t rounds, float* sink) {
  const __m512 a = _mm512_set1_ps(1.0f), b = _mm512_setzero_ps();
  return timed(rounds, sink, _mm512_setzero_ps(),
               [&](__m512& sum) __attribute__((target("avx512f"), always_inline)) {
                 asm volatile("vfmadd231ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b));
               });
}

// Of pairs of bfloat16: 64 operations each.
__attribute__((target("avx512f"))) double bfloat16_avx512(int64_t rounds, float* sink) {
  const __m512i a = _mm512_set1_epi32(0x3f803f80), b = _mm512_setzero_si512();
  return timed(rounds, sink, _mm512_setzero_ps(),
               [&](__m512& sum) __attribute__((target("avx512f"), always_inline)) {
                 asm volatile("vdpbf16ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b));
               });
}

// Seconds to read `bytes` (a multiple of 256) once, in order.
__attribute__((target("avx512f"))) double read_once(const char* from, int64_t bytes, float* sink) {
  __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  const double began = now();
  for (int64_t i = 0; i < bytes; i += 256) {
    for (int j = 0; j < 4; ++j) {
      __builtin_prefetch(from + i + 2048 + 64 * j);
      sums[j] = _mm512_add_ps(sums[j], _mm512_loadu_ps(from + i + 64 * j));
    }
  }
  const double seconds = now() - began;
  for (const __m512& sum : sums) *sink += sum[0];
  return seconds;
}
}
