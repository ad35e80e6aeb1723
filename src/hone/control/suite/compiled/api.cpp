// The C functions: a world by its name, its sizes, and the steps of many of it.
#include <cstring>

#include "classic.h"
#include "grid.h"
#include "minatar.h"

#define HONE_OUT extern "C" __attribute__((visibility("default")))

namespace hone {
namespace {

struct Entry {
  const char* name;
  int64_t state_bytes;
  void (*reset)(const Rules&, const Batch&, const uint64_t*);
  int64_t (*step)(const Rules&, const Batch&);
};

template <class World>
constexpr Entry entry(const char* name) {
  return {name, sizeof(Running<World>), Functions<World>::reset, Functions<World>::step};
}

constexpr Entry WORLDS[] = {
    entry<CartPole>("cart_pole"),
    entry<Pendulum>("pendulum"),
    entry<RepeatFirst>("repeat_first"),
    entry<MinAtar<Asterix>>("asterix"),
    entry<MinAtar<Breakout>>("breakout"),
    entry<MinAtar<Freeway>>("freeway"),
    entry<MinAtar<Seaquest>>("seaquest"),
    entry<MinAtar<SpaceInvaders>>("space_invaders"),
    entry<EmptyRoom<5>>("empty_5"),
    entry<EmptyRoom<8>>("empty_8"),
    entry<DoorKey<5>>("door_key_5"),
    entry<DoorKey<6>>("door_key_6"),
    entry<DoorKey<8>>("door_key_8"),
    entry<Memory<7>>("memory_7"),
    entry<Memory<13>>("memory_13"),
};

}  // namespace
}  // namespace hone

// The number of a world; -1 where none has the name.
HONE_OUT int32_t hone_find_world(const char* name) {
  int32_t number = 0;
  for (const hone::Entry& world : hone::WORLDS) {
    if (std::strcmp(world.name, name) == 0) return number;
    ++number;
  }
  return -1;
}

HONE_OUT int64_t hone_state_bytes(int32_t world) { return hone::WORLDS[world].state_bytes; }

HONE_OUT void hone_reset_worlds(int32_t world, const hone::Rules* rules, const hone::Batch* batch,
                                const uint64_t* seeds) {
  hone::WORLDS[world].reset(*rules, *batch, seeds);
}

HONE_OUT int64_t hone_step_worlds(int32_t world, const hone::Rules* rules, const hone::Batch* batch) {
  return hone::WORLDS[world].step(*rules, *batch);
}
