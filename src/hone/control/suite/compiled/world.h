// What all compiled worlds share: chance, rules, and the step of many of them.
#pragma once
#include <cstdint>
#include <cstring>

namespace hone {

// SplitMix64 (Steele, Lea & Flood, 2014): 8 bytes of state, a stream for every seed.
struct Random {
  uint64_t state;

  uint64_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // In [0, 1), of 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  // Of 0 .. count - 1.
  int below(int count) { return static_cast<int>(uniform() * count); }
};

// As `_Rules` in compiled_worlds.py.
struct Rules {
  double sticky;    // probability that the last action is taken again
  int32_t ramping;  // 0: the difficulty stays
  int32_t minimal;  // 0: actions by their number among all six
  int32_t limit;    // steps after which an episode is truncated; 0: never
  int32_t hidden;   // 0: velocities are observed
  int32_t choices;  // number of actions; 0 where they are real numbers
};

// As `_Batch` in compiled_worlds.py: row by row, one of each for every world.
struct Batch {
  int64_t count;
  uint8_t* states;
  const void* actions;
  void* seen;       // observation after the step; that of the next episode where one ended
  void* last;       // last observation of an episode that ended; else not written
  double* reward;
  uint8_t* terminated;
  uint8_t* truncated;
};

// A world with its chance and its age; plain bytes, so that a copy of them is a snapshot.
template <class World>
struct Running {
  Random random;
  int64_t age;
  World world;
};

template <class World>
struct Functions {
  using Cell = typename World::Cell;

  // Begins an episode in each world of the batch from its own seed.
  static void reset(const Rules& rules, const Batch& batch, const uint64_t* seeds) {
    auto* running = reinterpret_cast<Running<World>*>(batch.states);
    auto* seen = static_cast<Cell*>(batch.seen);
    for (int64_t row = 0; row < batch.count; ++row) {
      std::memset(&running[row], 0, sizeof(Running<World>));
      running[row].random.state = seeds[row];
      running[row].world.begin(running[row].random);
      running[row].world.observe(rules, seen + row * World::cells);
    }
  }

  // One step of each; where an episode ends, the next one begins in the same step. -> the first world whose action is
  // none of its choices, and then no world has moved; else -1.
  static int64_t step(const Rules& rules, const Batch& batch) {
    auto* running = reinterpret_cast<Running<World>*>(batch.states);
    const auto* actions = static_cast<const typename World::Action*>(batch.actions);
    auto* seen = static_cast<Cell*>(batch.seen);
    auto* last = static_cast<Cell*>(batch.last);
    if (rules.choices > 0)
      for (int64_t row = 0; row < batch.count; ++row)
        if (actions[row] < 0 || actions[row] >= rules.choices) return row;
    for (int64_t row = 0; row < batch.count; ++row) {
      Running<World>& one = running[row];
      batch.reward[row] = 0.0;
      const bool over = one.world.act(actions[row], one.random, rules, batch.reward[row]);
      one.age += 1;
      batch.terminated[row] = over;
      batch.truncated[row] = !over && rules.limit > 0 && one.age >= rules.limit;
      if (over || batch.truncated[row]) {
        one.world.observe(rules, last + row * World::cells);
        one.age = 0;
        one.world.begin(one.random);
      }
      one.world.observe(rules, seen + row * World::cells);
    }
    return -1;
  }
};

}  // namespace hone
