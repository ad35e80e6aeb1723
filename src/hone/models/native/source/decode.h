// Rows of a weight in codes, as numbers.
#pragma once
#include "blocks.h"
#include "kernels.h"

namespace hone {
namespace HONE_ISA {

template <int BITS, class T>
static void decode_of(const HoneBlocks& a) {
  const int64_t tasks = (a.rows + BLOCK - 1) / BLOCK;
  for_tasks(a.threads, tasks, [&](int64_t task) {
    for (int64_t row = task * BLOCK; row < a.rows && row < (task + 1) * BLOCK; ++row) {
      const uint8_t* block = a.blocks + a.place[row] / GROUP * a.groups * BlockOf<BITS>::BYTES;
      T* out = static_cast<T*>(a.out) + row * a.groups * GROUP;
      for (int64_t group = 0; group < a.groups; ++group, block += BlockOf<BITS>::BYTES, out += GROUP)
        decode_group<BITS>(block, int(a.place[row] % GROUP), out);
    }
  });
}

static void decode(const HoneBlocks& a) {
  if (a.bits == 4)
    a.type == BFLOAT ? decode_of<4, bf16>(a) : decode_of<4, float>(a);
  else
    a.type == BFLOAT ? decode_of<8, bf16>(a) : decode_of<8, float>(a);
}

}  // namespace HONE_ISA
}  // namespace hone
