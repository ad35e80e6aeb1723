// What all compiled code of hone shares: bounds checks, the type of 16 bits, rounding up.
#pragma once
#include <cstdint>

#ifdef HONE_CHECKED
#include <cstdio>
#include <cstdlib>
#define HONE_CHECK(condition)                                                             \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: out of bounds: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (0)
#else
#define HONE_CHECK(condition) ((void)0)
#endif

namespace hone {

struct bf16 {
  uint16_t bits;
};

static inline int round_up(int number, int multiple) { return (number + multiple - 1) / multiple * multiple; }

}  // namespace hone
