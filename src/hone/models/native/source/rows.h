// Rows of any width and either type, a register at a time; lanes past the end are zeros.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace hone {
namespace HONE_ISA {

template <class T>
HONE_INLINE vf get(const T* row, int64_t i, int64_t width) {
  if (i + LANES <= width) return load(row + i);
  alignas(64) float part[LANES] = {};
  for (int lane = 0; i + lane < width; ++lane) part[lane] = widen(row[i + lane]);
  return load(part);
}

template <class T>
HONE_INLINE void put(T* row, int64_t i, int64_t width, vf x) {
  if (i + LANES <= width) return store(row + i, x);
  alignas(64) float part[LANES];
  store(part, x);
  for (int lane = 0; i + lane < width; ++lane) narrow(part[lane], row + i + lane);
}

template <class A, class B>
HONE_INLINE void move(const A* from, B* to, int64_t width) {
  for (int64_t i = 0; i < width; i += LANES) put(to, i, width, get(from, i, width));
}

}  // namespace HONE_ISA
}  // namespace hone
