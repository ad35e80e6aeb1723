// Products of bfloat16 pairs, summed in float32, by AMX tiles of 16 rows.
//
// A tile is always multiplied whole: rows past the last one are whatever the buffer holds there (it is padded for
// that), and are not read by anybody. The instruction treats each row alone.
#include <immintrin.h>

#include "engine.h"

namespace hone {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};  // the palette has 8 tiles
};

// In static memory: compilers take _tile_loadconfig to read no more than the first bytes of a local.
const TileConfig CONFIG;

constexpr int DEEP = 32;                   // inputs that a tile holds
constexpr int PAIR_ROW_BYTES = PANEL * 4;  // of the panel: 32 features, two inputs each

}  // namespace

void enter_amx() { _tile_loadconfig(&CONFIG); }
void leave_amx() { _tile_release(); }

void tile_amx(const bf16* a, int64_t stride, int rows, const bf16* panel, int k, float* c, const Ahead& ahead) {
  const bf16* b = panel;
  if (rows <= 16) {
    _tile_zero(0);
    _tile_zero(1);
    for (int i = 0; i < k; i += DEEP, b += DEEP * PANEL) {
      for (int line = 0; line < DEEP / 2; ++line) ahead.fetch(i / 2 + line);
      _tile_loadd(4, a + i, stride * 2);
      _tile_loadd(6, b, PAIR_ROW_BYTES);
      _tile_loadd(7, b + PANEL, PAIR_ROW_BYTES);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
  } else {
    const bf16* below = a + 16 * stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < k; i += DEEP, b += DEEP * PANEL) {
      for (int line = 0; line < DEEP / 2; ++line) ahead.fetch(i / 2 + line);
      _tile_loadd(4, a + i, stride * 2);
      _tile_loadd(6, b, PAIR_ROW_BYTES);
      _tile_loadd(7, b + PANEL, PAIR_ROW_BYTES);
      _tile_loadd(5, below + i, stride * 2);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(2, c + 16 * PANEL, PANEL * 4);
    _tile_stored(3, c + 16 * PANEL + 16, PANEL * 4);
  }
  _tile_stored(0, c, PANEL * 4);
  _tile_stored(1, c + 16, PANEL * 4);
}

}  // namespace hone
