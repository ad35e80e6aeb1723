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

// Sums that are open at a time: enough to hide a product's latency, and no more than there are registers.
#if defined(__AVX512F__)
constexpr int CHAINS = 24;
typedef __m512 Register;
#else
constexpr int CHAINS = 12;
typedef __m256 Register;
#endif

// Seconds of `rounds` times CHAINS products of registers, each with its own sum. Loops that are not unrolled would keep
// the sums in memory.
template <class Product>
__attribute__((always_inline)) inline double timed(int64_t rounds, float* sink, const Product& product) {
  Register sums[CHAINS];
#pragma GCC unroll 24
  for (int chain = 0; chain < CHAINS; ++chain) sums[chain] = Register{};
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

// Operations of one of the products below, and how many of them a round has.
int chains() { return CHAINS; }
int lanes() { return int(sizeof(Register) / sizeof(float)); }

// Of float32: two operations a lane.
double float32_products(int64_t rounds, float* sink) {
  const Register a = Register{} + 1.0f, b = {};
  return timed(rounds, sink, [&](Register& sum) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    asm volatile("vfmadd231ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b));
#else
    asm volatile("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(a), "x"(b));
#endif
  });
}

#if defined(__AVX512F__)
// Of pairs of bfloat16: four operations a lane.
double bfloat16_products(int64_t rounds, float* sink) {
  const __m512i a = _mm512_set1_epi32(0x3f803f80), b = _mm512_setzero_si512();
  return timed(rounds, sink, [&](Register& sum) __attribute__((always_inline)) {
    asm volatile("vdpbf16ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b));
  });
}
#endif

// Seconds to read `bytes` (a multiple of 256) once, in order.
double read_once(const char* from, int64_t bytes, float* sink) {
  constexpr int WIDTH = sizeof(Register), PARTS = 256 / WIDTH;
  Register sums[PARTS] = {};
  const double began = now();
  for (int64_t i = 0; i < bytes; i += 256) {
#pragma GCC unroll 8
    for (int j = 0; j < PARTS; ++j) {
      if (j * WIDTH % 64 == 0) __builtin_prefetch(from + i + 2048 + WIDTH * j);
      sums[j] += *reinterpret_cast<const Register*>(from + i + WIDTH * j);
    }
  }
  const double seconds = now() - began;
  for (const Register& sum : sums) *sink += sum[0];
  return seconds;
}
}
