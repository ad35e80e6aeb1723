// The C functions, the choice of an instruction set at run time, and the threads that do the work: torch's own.
//
// torch runs its kernels by GOMP_parallel of an OpenMP library that is loaded with it. Its threads are taken here too,
// by the address of that function, since a second set of threads would fight with the first over the same cores.
#include <atomic>

#include "kernels.h"
#include "processor.h"
#include "workspace.h"

namespace hone {

extern const Kernels kernels_portable;
#ifdef HONE_HAS_AVX2
extern const Kernels kernels_avx2;
#endif
#ifdef HONE_HAS_AVX512
extern const Kernels kernels_avx512;
#endif
#ifdef HONE_HAS_AVX512_BF16
extern const Kernels kernels_avx512_bf16;
void product_avx512_bf16(const HoneProduct& a);
#endif
#ifdef HONE_HAS_AMX
extern const Kernels kernels_amx;
void slope_amx(const HoneSlope& a);
void product_amx(const HoneProduct& a);
#endif

namespace {

using Parallel = void (*)(void (*job)(void*), void* data, unsigned threads, unsigned flags);

Parallel parallel = nullptr;
const Kernels* kernels = &kernels_portable;
bool has_tiles = false;
void (*product)(const HoneProduct&) = nullptr;

struct Job {
  void (*task)(const void*, int64_t);
  const void* context;
  int64_t count;
  std::atomic<int64_t> next{0};
};

void work(void* data) {
  Job& job = *static_cast<Job*>(data);
  for (int64_t n = job.next.fetch_add(1); n < job.count; n = job.next.fetch_add(1)) job.task(job.context, n);
}

}  // namespace

void spread_tasks(int threads, int64_t count, void (*task)(const void*, int64_t), const void* context) {
  Job job{task, context, count};
  const int64_t most = threads < count ? threads : count;
  if (parallel && most > 1)
    parallel(work, &job, unsigned(most), 0);
  else
    work(&job);
}

float* scratch(size_t floats, int number) {
  thread_local Workspace rooms[2];
  return rooms[number].at_least(floats);
}

}  // namespace hone

#define HONE_OUT extern "C" __attribute__((visibility("default")))

// Bit i: set i of ISA_NAMES (library.py) was compiled and runs on this CPU.
HONE_OUT uint32_t hone_instruction_sets() {
  uint32_t found = 1;
#ifdef HONE_HAS_AVX2
  if (hone::runs_avx2()) found |= 2;
#endif
#ifdef HONE_HAS_AVX512
  if (hone::runs_avx512()) found |= 4;
#endif
#ifdef HONE_HAS_AVX512_BF16
  if (hone::runs_avx512_bf16()) found |= 8;
#endif
#ifdef HONE_HAS_AMX
  if (hone::runs_avx512_bf16() && hone::runs_amx()) found |= 16;
#endif
  return found;
}

// From now on: instruction set number `set`, and threads of `gomp_parallel` (null: the caller's alone).
HONE_OUT void hone_use(int32_t set, void* gomp_parallel) {
  hone::parallel = reinterpret_cast<hone::Parallel>(gomp_parallel);
  hone::kernels = &hone::kernels_portable;
  hone::has_tiles = set == 4;
  hone::product = nullptr;
#ifdef HONE_HAS_AVX2
  if (set == 1) hone::kernels = &hone::kernels_avx2;
#endif
#ifdef HONE_HAS_AVX512
  if (set == 2) hone::kernels = &hone::kernels_avx512;
#endif
#ifdef HONE_HAS_AVX512_BF16
  if (set == 3) {
    hone::kernels = &hone::kernels_avx512_bf16;
    hone::product = hone::product_avx512_bf16;
  }
#endif
#ifdef HONE_HAS_AMX
  if (set == 4) {
    hone::kernels = &hone::kernels_amx;
    hone::product = hone::product_amx;
  }
#endif
}

HONE_OUT int32_t hone_block() { return hone::BLOCK; }
HONE_OUT void hone_norm(const HoneNorm* a) { hone::kernels->norm(*a); }
HONE_OUT void hone_norm_back(const HoneNormBack* a) { hone::kernels->norm_back(*a); }
HONE_OUT void hone_gate(const HoneGate* a) { hone::kernels->gate(*a); }
HONE_OUT void hone_gate_back(const HoneGate* a) { hone::kernels->gate_back(*a); }
HONE_OUT void hone_attend(const HoneAttention* a) { hone::kernels->attend(*a); }
HONE_OUT void hone_attend_back(const HoneAttention* a) { hone::kernels->attend_back(*a); }
HONE_OUT void hone_decode(const HoneBlocks* a) { hone::kernels->decode(*a); }

// Whether there are hone_slope and a hone_product of float32 numbers in the set that is in use.
HONE_OUT int32_t hone_has_tiles() { return hone::has_tiles; }
// Whether there is a hone_product of rounded numbers, and it is faster than products of float32 numbers.
HONE_OUT int32_t hone_has_product() {
  return hone::product != nullptr && (hone::has_tiles || !hone::slow_avx512_bf16());
}
HONE_OUT void hone_slope(const HoneSlope* a) {
#ifdef HONE_HAS_AMX
  hone::slope_amx(*a);
#else
  (void)a;
#endif
}
HONE_OUT void hone_product(const HoneProduct* a) { hone::product(*a); }
