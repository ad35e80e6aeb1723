// Compiled once for each instruction set, with -DHONE_ISA=<name> and the compiler's flags for it.
#include "code_attention.h"
#include "forward.h"

#define HONE_TEXT_OF(name) #name
#define HONE_TEXT(name) HONE_TEXT_OF(name)
#define HONE_JOINED(a, b) a##b
#define HONE_JOIN(a, b) HONE_JOINED(a, b)

namespace hone {

#if defined(HONE_WIDE_TILES)
#define HONE_TILE_BF16 HONE_ISA::wide_tile, HONE_ISA::WIDE_TILE_ROWS
#else
#define HONE_TILE_BF16 HONE_ISA::any_tile<bf16>, HONE_ISA::TILE_ROWS
#endif

extern const Kernels HONE_JOIN(kernels_, HONE_ISA);
const Kernels HONE_JOIN(kernels_, HONE_ISA) = {
    HONE_TEXT(HONE_ISA), HONE_ISA::forward, HONE_ISA::pack, HONE_ISA::soften, HONE_TILE_BF16, HONE_ISA::CODE_KERNELS,
    nullptr, nullptr,
};

}  // namespace hone
