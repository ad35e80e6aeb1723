// The C interface, and the choice of an instruction set at run time.
#include <mutex>
#include <new>

#include "model.h"
#include "processor.h"

namespace hone {

// The order is ISA_NAMES of library.py: each one more capable than the one before.
enum InstructionSet { PORTABLE, AVX2, AVX_VNNI, AVX512, AVX512_VNNI, AVX512_BF16, AMX };

extern const Kernels kernels_portable;
#ifdef HONE_HAS_AVX2
extern const Kernels kernels_avx2;
#endif
#ifdef HONE_HAS_AVX_VNNI
extern const CodeKernels codes_avx_vnni;
#endif
#ifdef HONE_HAS_AVX512
extern const Kernels kernels_avx512;
#endif
#ifdef HONE_HAS_AVX512_VNNI
extern const CodeKernels codes_avx512_vnni;
#endif
#ifdef HONE_HAS_AVX512_BF16
extern const int tile_avx512_bf16_rows;
void tile_avx512_bf16(const bf16* a, int64_t stride, int rows, const bf16* panel, int k, float* c, const Ahead& ahead);
#endif
#ifdef HONE_HAS_AMX
void enter_amx();
void leave_amx();
void tile_amx_codes(const uint8_t* a, int64_t stride, int rows, const int8_t* panel, int k, int32_t* c,
                    const Ahead& ahead);
void tile_amx(const bf16* a, int64_t stride, int rows, const bf16* panel, int k, float* c, const Ahead& ahead);
#endif

namespace {

uint32_t instruction_sets() {
  uint32_t found = 1u << PORTABLE;
#ifdef HONE_HAS_AVX2
  if (runs_avx2()) found |= 1u << AVX2;
#endif
#ifdef HONE_HAS_AVX_VNNI
  if (runs_avx_vnni()) found |= 1u << AVX_VNNI;
#endif
#ifdef HONE_HAS_AVX512
  if (runs_avx512()) found |= 1u << AVX512;
#endif
#ifdef HONE_HAS_AVX512_VNNI
  if (runs_avx512_vnni()) found |= 1u << AVX512_VNNI;
#endif
#ifdef HONE_HAS_AVX512_BF16
  if (runs_avx512_bf16()) found |= 1u << AVX512_BF16;
#endif
#ifdef HONE_HAS_AMX
  if (runs_amx()) found |= 1u << AMX;
#endif
  return found;
}

Kernels with_codes(Kernels kernels, const CodeKernels& codes, const char* name) {
  kernels.codes = codes;
  kernels.name = name;
  return kernels;
}

Kernels kernels_of(int set) {
#ifdef HONE_HAS_AVX2
  if (set == AVX2) return kernels_avx2;
#ifdef HONE_HAS_AVX_VNNI
  if (set == AVX_VNNI) return with_codes(kernels_avx2, codes_avx_vnni, "avx_vnni");
#endif
#endif
#ifdef HONE_HAS_AVX512
  Kernels kernels = kernels_avx512;
#ifdef HONE_HAS_AVX512_VNNI
  if (set >= AVX512_VNNI && runs_avx512_vnni()) kernels = with_codes(kernels, codes_avx512_vnni, "avx512_vnni");
#endif
#ifdef HONE_HAS_AVX512_BF16
  if (set == AVX512_BF16) {
    kernels.name = "avx512_bf16";
    kernels.tile_bf16 = tile_avx512_bf16;
    kernels.tile_bf16_rows = tile_avx512_bf16_rows;
  }
#endif
#ifdef HONE_HAS_AMX
  if (set == AMX) {
    kernels.name = "amx";
    kernels.tile_bf16 = tile_amx;
    kernels.tile_bf16_rows = 32;
    kernels.codes.tile = tile_amx_codes;
    kernels.codes.tile_rows = 32;
    kernels.enter = enter_amx;
    kernels.leave = leave_amx;
  }
#endif
  if (set >= AVX512) return kernels;
#endif
  return kernels_portable;
}

}  // namespace
}  // namespace hone

struct HoneEngine {
  hone::Engine engine;
  hone::Kernels kernels;
  std::mutex busy;  // one caller at a time
};

namespace {

template <class Verb>
int32_t answer(HoneEngine* e, const Verb& verb) {
  std::lock_guard<std::mutex> lock(e->busy);
  try {
    e->engine.error = verb(e->engine);
  } catch (const std::bad_alloc&) {
    e->engine.error = "out of memory";
  }
  return e->engine.error.empty() ? 0 : -1;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) uint32_t hone_instruction_sets(void) { return hone::instruction_sets(); }
__attribute__((visibility("default"))) uint32_t hone_slow_sets(void) {
  return hone::slow_avx512_bf16() ? 1u << hone::AVX512_BF16 : 0;
}
__attribute__((visibility("default"))) int32_t hone_page_tokens(void) { return hone::PAGE_TOKENS; }

__attribute__((visibility("default"))) HoneEngine* hone_new(const HoneShape* shape, int32_t set, int32_t threads) {
  if (!(hone::instruction_sets() >> set & 1) || threads < 1 || threads > hone::MOST_THREADS) return nullptr;
  HoneEngine* e = new (std::nothrow) HoneEngine;
  if (!e) return nullptr;
  e->kernels = hone::kernels_of(set);
  e->engine.kernels = &e->kernels;
  e->engine.dims = hone::dims_of(*shape);
  e->engine.fetches_to_first_cache = hone::fetches_to_first_cache();
  e->engine.scratch.resize(size_t(threads));
  e->engine.pool = hone::pool_new(threads);
  return e;
}

__attribute__((visibility("default"))) void hone_free(HoneEngine* e) {
  if (!e) return;
  hone::pool_free(e->engine.pool);
  delete e;
}

__attribute__((visibility("default"))) int32_t hone_publish(HoneEngine* e, const HoneTensor* tensors, int32_t count) {
  return answer(e, [&](hone::Engine& engine) { return hone::publish(engine, tensors, count); });
}
__attribute__((visibility("default"))) int32_t hone_reserve(HoneEngine* e, int64_t pages) {
  return answer(e, [&](hone::Engine& engine) { return hone::reserve(engine, pages); });
}
__attribute__((visibility("default"))) int32_t hone_run(HoneEngine* e, const HonePass* pass) {
  return answer(e, [&](hone::Engine& engine) { return hone::run(engine, *pass); });
}
__attribute__((visibility("default"))) int32_t hone_copy(HoneEngine* e, const int32_t* source, const int32_t* target,
                                                         int32_t count) {
  return answer(e, [&](hone::Engine& engine) { return hone::copy(engine, source, target, count); });
}
__attribute__((visibility("default"))) int32_t hone_adapt(HoneEngine* e, int32_t slot, const HoneTensor* tensors,
                                                          int32_t count) {
  return answer(e, [&](hone::Engine& engine) { return hone::adapt(engine, slot, tensors, count); });
}
__attribute__((visibility("default"))) const char* hone_error(const HoneEngine* e) { return e->engine.error.c_str(); }
__attribute__((visibility("default"))) int64_t hone_page_bytes(const HoneEngine* e) {
  return int64_t(e->engine.dims.page);
}
}
