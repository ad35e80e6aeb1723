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

// A register of a row, or the part of one that is left at its end.
struct Whole {
  template <class T>
  vf get(const T* p) const {
    return load(p);
  }
  template <class T>
  void put(T* p, vf x) const {
    store(p, x);
  }
};
struct Part {
  int64_t count;
  template <class T>
  vf get(const T* p) const {
    return HONE_ISA::get(p, 0, count);
  }
  template <class T>
  void put(T* p, vf x) const {
    HONE_ISA::put(p, 0, count, x);
  }
};

// f(i, lanes) for every register of a row: the loop itself has no ends to look after.
template <class F>
HONE_INLINE void across(int64_t width, const F& f) {
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) f(i, Whole{});
  if (i < width) f(i, Part{width - i});
}

template <class A, class B>
HONE_INLINE void move(const A* from, B* to, int64_t width) {
  across(width, [=](int64_t i, auto lanes) { lanes.put(to + i, lanes.get(from + i)); });
}

}  // namespace HONE_ISA
}  // namespace hone
