// Compiled once for each instruction set, with -DHONE_ISA=<name> and the compiler's flags for it.
#include "attention.h"
#include "decode.h"
#include "gate.h"
#include "norm.h"

#define HONE_JOINED(a, b) a##b
#define HONE_JOIN(a, b) HONE_JOINED(a, b)

namespace hone {

extern const Kernels HONE_JOIN(kernels_, HONE_ISA);
const Kernels HONE_JOIN(kernels_, HONE_ISA) = {
    HONE_ISA::norm, HONE_ISA::norm_back, HONE_ISA::gate, HONE_ISA::gate_back, HONE_ISA::attend, HONE_ISA::attend_back,
    HONE_ISA::decode,
};

}  // namespace hone
