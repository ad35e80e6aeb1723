// Products of bfloat16 pairs, summed in float32, and of codes (codes.h), by AMX tiles of 16 rows (tiles.h).
//
// A tile is always multiplied whole: rows past the last one are whatever the buffer holds there (it is padded for
// that), and are not read by anybody. The instruction treats each row alone.
//
// Float32 weights stay with AVX-512. In pieces of bfloat16 they are 6 bytes each, and a decoding pass waits for memory
// more than for products; cut as they are read, at 0.17 ns a number, they gain a tenth at 76 rows and lose one at 28.
#include <immintrin.h>

#include "engine.h"
#include "tiles.h"

namespace hone {
namespace {

template <int TALL>
void whole_tile(const tiles::Side& left, const tiles::Side& right, int64_t steps, float* c, const Ahead& ahead) {
  tiles::zero_sums<TALL>();
  tiles::multiply<TALL>(left, right, steps, [&](int64_t step) {
    for (int line = 0; line < tiles::SIDE; ++line) ahead.fetch(step * tiles::SIDE + line);
  });
  tiles::store_sums<TALL>(c, PANEL * 4);
}


template <int TALL>
void whole_code_tile(const uint8_t* a, int64_t stride, const int8_t* panel, int64_t steps, int32_t* c,
                     const Ahead& ahead) {
  tiles::zero_sums<TALL>();
  for (int64_t step = 0; step < steps; ++step, a += tiles::LINE, panel += 2 * tiles::TILE_BYTES) {
    for (int line = 0; line < tiles::SIDE; ++line) ahead.fetch(step * tiles::SIDE + line);
    _tile_loadd(4, a, stride);
    _tile_loadd(6, panel, 2 * tiles::LINE);
    _tile_loadd(7, panel + tiles::LINE, 2 * tiles::LINE);
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    if (TALL < 2) continue;
    _tile_loadd(5, a + tiles::SIDE * stride, stride);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  tiles::store_sums<TALL>(reinterpret_cast<float*>(c), PANEL * 4);
}

}  // namespace

void tile_amx_codes(const uint8_t* a, int64_t stride, int rows, const int8_t* panel, int k, int32_t* c,
                    const Ahead& ahead) {
  if (rows <= tiles::SIDE)
    whole_code_tile<1>(a, stride, panel, k / CODE_DEEP, c, ahead);
  else
    whole_code_tile<2>(a, stride, panel, k / CODE_DEEP, c, ahead);
}

void enter_amx() { tiles::enter(); }
void leave_amx() { tiles::leave(); }

void tile_amx(const bf16* a, int64_t stride, int rows, const bf16* panel, int k, float* c, const Ahead& ahead) {
  const int64_t line = stride * int64_t(sizeof(bf16));
  const tiles::Side left = {a, line, tiles::SIDE * line, tiles::LINE, 0};
  const tiles::Side right = {panel, 2 * tiles::LINE, tiles::LINE, 2 * tiles::TILE_BYTES, 0};  // words of two inputs
  if (rows <= tiles::SIDE)
    whole_tile<1>(left, right, k / tiles::DEEP, c, ahead);
  else
    whole_tile<2>(left, right, k / tiles::DEEP, c, ahead);
}

}  // namespace hone
