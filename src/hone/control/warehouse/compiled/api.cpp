// The C functions of the warehouse: decisions of many floors at a time, and the parts of one.
#include "dispatch.h"

#define HONE_OUT extern "C" __attribute__((visibility("default")))

namespace hone {
namespace {

// As `_Batch` in floor.py: row by row, one of each for every floor.
struct Batch {
  int64_t count;
  State* states;
  const int64_t* actions;
  float* seen;       // [candidates, FEATURES] after the step; of the next episode where one ended
  uint8_t* legal;    // [candidates]
  float* last;       // last observation of an episode that ended; else not written
  double* reward;
  uint8_t* truncated;
};

void show(const Settings& map, const State& state, const Overview& around, const Pairs& pairs, float* seen,
          uint8_t* legal) {
  describe(map, state, around, pairs, seen);
  for (int number = 0; number < map.candidates; ++number) legal[number] = number < pairs.count;
}

void start(const Settings& map, State& state) {
  settle(map, state, 0);
  replan(map, state);
}

// Pairs of the state as it stands: what was found when it was shown.
void pairs_of(const Settings& map, const State& state, Overview& around, Pairs& pairs) {
  oversee(map, state, around);
  find_pairs(map, state, around, pairs);
}

}  // namespace
}  // namespace hone

using namespace hone;

HONE_OUT int64_t hone_warehouse_sizes(int32_t which) {
  const int64_t sizes[] = {sizeof(Settings), sizeof(State), sizeof(Robot), sizeof(Pair), FEATURES, MAX_PAIRS};
  return sizes[which];
}

// Begins an episode on each floor from its own seed.
HONE_OUT void hone_warehouse_reset(const Settings* map, const Batch* batch, const uint64_t* seeds) {
  static thread_local Overview around;
  Pairs pairs;
  for (int64_t row = 0; row < batch->count; ++row) {
    State& state = batch->states[row];
    begin_floor(*map, state, seeds[row]);
    start(*map, state);
    double gain = 1.0;
    go_on(*map, state, map->limit, around, pairs, &gain);
    show(*map, state, around, pairs, batch->seen + row * map->candidates * FEATURES,
         batch->legal + row * map->candidates);
  }
}

// One decision on each floor, and all steps until the next one. -> the first floor whose action is no pair, else -1
HONE_OUT int64_t hone_warehouse_step(const Settings* map, const Batch* batch) {
  static thread_local Overview around;
  Pairs pairs;
  for (int64_t row = 0; row < batch->count; ++row) {
    pairs_of(*map, batch->states[row], around, pairs);
    if (batch->actions[row] < 0 || batch->actions[row] >= pairs.count) return row;
  }
  for (int64_t row = 0; row < batch->count; ++row) {
    State& state = batch->states[row];
    pairs_of(*map, state, around, pairs);
    const int chosen = static_cast<int>(batch->actions[row]), usual = default_pair(pairs);
    double reward = 0.0;
    if (map->difference && chosen != usual)
      reward = outcome(*map, state, pairs.pair[chosen]) - outcome(*map, state, pairs.pair[usual]);
    assign(*map, state, pairs.pair[chosen]);
    const int before = state.deliveries;
    double gain = 1.0;
    go_on(*map, state, map->limit, around, pairs, &gain);
    batch->reward[row] = map->difference ? reward : state.deliveries - before;
    state.decisions += 1;
    batch->truncated[row] = state.time >= map->limit || (map->decisions > 0 && state.decisions >= map->decisions);
    float* seen = batch->seen + row * map->candidates * FEATURES;
    uint8_t* legal = batch->legal + row * map->candidates;
    if (batch->truncated[row]) {
      show(*map, state, around, pairs, batch->last + row * map->candidates * FEATURES, legal);
      const uint64_t seed = state.random.next();
      begin_floor(*map, state, seed);
      start(*map, state);
      go_on(*map, state, map->limit, around, pairs, &gain);
    }
    show(*map, state, around, pairs, seen, legal);
  }
  return -1;
}

// ------------------------------------------------------------------------------------------- the parts of one floor

HONE_OUT void hone_warehouse_begin(const Settings* map, State* state, uint64_t seed) {
  begin_floor(*map, *state, seed);
  start(*map, *state);
}

// Assigns what needs no choice, and shows what does. -> number of pairs
HONE_OUT int32_t hone_warehouse_choices(const Settings* map, State* state, Pair* pairs, float* seen, uint8_t* legal) {
  static thread_local Overview around;
  Pairs found;
  if (!choices(*map, *state, around, found)) found.count = 0;
  show(*map, *state, around, found, seen, legal);
  std::copy(found.pair, found.pair + found.count, pairs);
  return found.count;
}

HONE_OUT int32_t hone_warehouse_default(const Pair* pairs, int32_t count) {
  Pairs given;
  given.count = count;
  std::copy(pairs, pairs + count, given.pair);
  return default_pair(given);
}

HONE_OUT void hone_warehouse_assign(const Settings* map, State* state, const Pair* pair) { assign(*map, *state, *pair); }

HONE_OUT double hone_warehouse_outcome(const Settings* map, const State* state, const Pair* pair) {
  return outcome(*map, *state, *pair);
}

// One step of all robots by their plans. -> deliveries
HONE_OUT int32_t hone_warehouse_tick(const Settings* map, State* state) { return tick(*map, *state); }

// The next actions by the plans, behind the shield. -> robots that it held back, a bit each
HONE_OUT uint32_t hone_warehouse_actions(const Settings* map, const State* state, int8_t* actions) {
  planned_actions(*map, *state, actions);
  return shield(*map, *state, actions);
}

// Takes note of a step of another world, whose outcome `state` already holds.
HONE_OUT void hone_warehouse_follow(const Settings* map, State* state, const int16_t* poses, const int8_t* wanted,
                                    uint32_t held, uint32_t delivered) {
  follow(*map, *state, poses, wanted, held, delivered);
}

HONE_OUT uint32_t hone_warehouse_shield(const Settings* map, const State* state, int8_t* actions) {
  return shield(*map, *state, actions);
}

// The floor's rules alone. -> robots that delivered, a bit each
HONE_OUT uint32_t hone_warehouse_move(const Settings* map, State* state, int8_t* actions) {
  return move(*map, *state, actions);
}

// Ends and failures of skills after a change from outside; plans are made anew where something changed, or `force`.
HONE_OUT void hone_warehouse_settle(const Settings* map, State* state, uint32_t delivered, int32_t force) {
  const uint32_t begun = settle(*map, *state, delivered);
  if (force)
    replan(*map, *state);
  else
    plan_each(*map, *state, begun);
}
