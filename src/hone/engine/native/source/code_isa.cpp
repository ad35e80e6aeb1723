// Products of codes alone, compiled with -DHONE_ISA=<name> for sets that have instructions for them and share the rest.
#include "code_attention.h"

#define HONE_JOINED(a, b) a##b
#define HONE_JOIN(a, b) HONE_JOINED(a, b)

namespace hone {

extern const CodeKernels HONE_JOIN(codes_, HONE_ISA);
const CodeKernels HONE_JOIN(codes_, HONE_ISA) = HONE_ISA::CODE_KERNELS;

}  // namespace hone
