// What is asked of the processor and the system: tiles, and memory that is kept.
#include <cstdlib>

#include "perceptron.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace hone {

namespace {

struct Kept {
  void* data = nullptr;
  size_t floats = 0;
  ~Kept() { std::free(data); }
};

}  // namespace

float* room(int place, size_t floats) {
  thread_local Kept kept[8];
  Kept& one = kept[place];
  if (one.floats < floats) {
    std::free(one.data);
    one.floats = 0;
    one.data = std::aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
    if (!one.data) std::abort();
    one.floats = floats;
  }
  return static_cast<float*>(one.data);
}

// The processor has tiles, and the system lets this process use them.
bool amx_allowed() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned TILE = 1u << 24, BF16 = 1u << 22;
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & TILE) == 0 || (d & BF16) == 0) return false;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return false;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return false;
#endif
}

}  // namespace hone
