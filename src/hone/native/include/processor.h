// Which instructions run here: asked of the processor, and for tiles of the system too.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace hone {

#if defined(__x86_64__)
static inline bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

static inline bool runs_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static inline bool runs_avx512_bf16() { return runs_avx512() && __builtin_cpu_supports("avx512bf16"); }

// Intel's cores multiply pairs of bfloat16 every other cycle and float32 twice a cycle; AMD's both twice a cycle.
static inline bool slow_avx512_bf16() { return __builtin_cpu_is("intel"); }

// AMD's first cache waits for few lines at a time; a prefetch to it holds up what comes after.
static inline bool fetches_to_first_cache() { return !__builtin_cpu_is("amd"); }

static inline bool runs_avx512_vnni() { return runs_avx512() && __builtin_cpu_supports("avx512vnni"); }

static inline bool runs_avx_vnni() {
  constexpr unsigned AVX_VNNI = 1u << 4;
  unsigned a, b, c, d;
  return runs_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
}
#else
static inline bool runs_avx2() { return false; }
static inline bool runs_avx512() { return false; }
static inline bool runs_avx512_bf16() { return false; }
static inline bool slow_avx512_bf16() { return false; }
static inline bool fetches_to_first_cache() { return true; }
static inline bool runs_avx512_vnni() { return false; }
static inline bool runs_avx_vnni() { return false; }
#endif

// Tiles of bfloat16 and of bytes beside AVX-512; the system is asked to let this process use them.
static inline bool runs_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned TILE = 1u << 24, BF16 = 1u << 22, INT8 = 1u << 25, ALL = TILE | BF16 | INT8;
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & ALL) != ALL) return false;
  return runs_avx512() && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return false;
#endif
}

}  // namespace hone
