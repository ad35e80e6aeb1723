// Skills, their ends and failures, the pairs of a free robot and a task that can be assigned, and what is known of them.
#pragma once
#include <cmath>

#include "motion.h"

namespace hone {

constexpr int FEATURES = 16, MAX_PAIRS = 64, SEARCHES = 4;
constexpr int UNKNOWN_DISTANCE = 30;

// As `PAIR` in floor.py: what a dispatcher chooses from.
struct Pair {
  int16_t robot, skill, cell, shelf;
  int16_t steps;  // the robot's way to the cell
  int16_t probability;  // that there is a request, in thousandths
};

struct Pairs {
  int count;
  Pair pair[MAX_PAIRS];
};

inline bool is_free(const Robot& robot) { return !robot.dead && (robot.skill == NONE || robot.skill == WAIT); }

inline void begin_skill(State& state, int number, int skill, int target, int shelf) {
  Robot& robot = state.robot[number];
  robot.skill = static_cast<int8_t>(skill);
  robot.target = static_cast<int16_t>(target);
  robot.shelf = static_cast<int16_t>(shelf);
  robot.since = state.time;
  robot.still = 0;
  robot.steps = robot.at = 0;
  robot.planned = 1;
}

inline bool claimed(const Settings& map, const State& state, int skill, int cell) {
  for (int number = 0; number < map.robots; ++number) {
    const Robot& robot = state.robot[number];
    if (!robot.dead && robot.skill == skill && robot.target == cell) return true;
  }
  return false;
}

inline bool closed(const Settings& map, const State& state, int cell) {  // or a dead robot's
  for (int number = 0; number < map.robots; ++number)
    if (state.robot[number].dead && state.robot[number].cell == cell) return true;
  return state.blocked[cell];
}

// The requests that robots have seen, and what that says about the other shelves.
inline bool look(const Settings& map, State& state) {
  bool found = false;
  if (map.sensor == 0) {
    std::fill(state.seen, state.seen + map.requests, uint8_t{1});
    return false;
  }
  for (int shelf = 0; shelf < state.shelves; ++shelf) {
    const int cell = state.shelf_cell[shelf];
    if (cell == NOBODY) continue;
    bool in_sight = false;
    for (int number = 0; number < map.robots; ++number) {
      const Robot& robot = state.robot[number];
      const int rows = std::abs(robot.cell / map.width - cell / map.width);
      const int columns = std::abs(robot.cell % map.width - cell % map.width);
      in_sight |= !robot.dead && rows <= map.sensor && columns <= map.sensor;
    }
    if (!in_sight) continue;
    const int place = request_of(map, state, shelf);
    state.belief[shelf] = 0.0f;
    if (place == NOBODY) continue;
    found |= state.seen[place] == 0;
    state.seen[place] = 1;
  }
  int unseen = 0;
  float total = 0.0f;
  for (int place = 0; place < map.requests; ++place) unseen += state.queue[place] != NOBODY && !state.seen[place];
  for (int shelf = 0; shelf < state.shelves; ++shelf) total += state.belief[shelf];
  if (total > 0.0f)
    for (int shelf = 0; shelf < state.shelves; ++shelf) state.belief[shelf] *= static_cast<float>(unseen) / total;
  return found;
}

inline int nearest_goal(const Settings& map, const State& state, const int16_t* steps) {
  int best = NOBODY;
  for (int goal = 0; goal < map.goals; ++goal) {
    const int cell = map.goal[goal];
    if (state.blocked[cell] || steps[cell] == FAR) continue;
    if (best == NOBODY || steps[cell] < steps[best]) best = cell;
  }
  return best;
}

inline void ways_of(const Settings& map, const State& state, const Robot& robot, int target, int16_t* steps) {
  const Passable passable(map, state, robot.carrying != NOBODY, robot.cell, target);
  distances_from(map, passable, robot.cell * 4 + robot.heading, steps);
}

// Ends skills that have reached their end or can no longer, starts those that follow without a choice. `delivered`: a
// bit for each robot that just delivered. -> robots that began a skill and need a plan, a bit each
inline uint32_t settle(const Settings& map, State& state, uint32_t delivered) {
  const bool found = look(map, state);
  const ShelfMap shelves(map, state);
  static thread_local int16_t steps[MAX_CELLS];
  uint32_t begun = 0;
  for (int number = 0; number < map.robots; ++number) {
    Robot& robot = state.robot[number];
    if (robot.dead) continue;
    const auto end = [&](bool success) {
      state.failures += !success;
      robot.skill = NONE;
      robot.target = robot.cell;
      robot.steps = robot.at = 0;
      robot.planned = 1;
    };
    const bool requested = robot.carrying != NOBODY && request_of(map, state, robot.carrying) != NOBODY;
    if (!robot.planned && !is_free(robot) && robot.skill != EVACUATE) {  // is there a way, if all others were gone?
      ways_of(map, state, robot, robot.target, steps);
      if (steps[robot.target] >= FAR) end(false);
    }
    switch (robot.skill) {
      case FETCH:
        if (robot.carrying == robot.shelf) {
          end(true);
        } else if (state.shelf_cell[robot.shelf] != robot.target || !shelves.stands[robot.target] ||
                   request_of(map, state, robot.shelf) == NOBODY || robot.carrying != NOBODY ||
                   closed(map, state, robot.target)) {
          end(false);
        } else if (map.preempt && delivered) {
          robot.asked = robot.shelf;
          robot.skill = NONE;
        }
        break;
      case DELIVER:
        if (delivered >> number & 1u)
          end(true);
        else if (!requested || closed(map, state, robot.target))
          end(false);
        break;
      case STORE:
        if (robot.carrying == NOBODY || requested)
          end(true);
        else if (shelves.stands[robot.target] || closed(map, state, robot.target))
          end(false);
        break;
      case SEARCH:
        if (robot.cell == robot.target || found)
          end(true);
        else if (closed(map, state, robot.target))
          end(false);
        break;
      case EVACUATE:
        if (!state.blocked[robot.cell]) end(true);
        break;
      default: break;
    }
    if (state.blocked[robot.cell] && robot.skill != EVACUATE) {
      if (robot.skill != NONE && robot.skill != WAIT) state.failures += 1;
      int best = NOBODY;
      const bool loaded = robot.carrying != NOBODY;
      const Passable passable(map, state, loaded, NOBODY, NOBODY);
      const Passable through(map, state, loaded, robot.cell, NOBODY, true);
      distances_from(map, through, robot.cell * 4 + robot.heading, steps);
      for (int cell = 0; cell < map.height * map.width; ++cell)
        if (passable.cell[cell] && steps[cell] < FAR && (best == NOBODY || steps[cell] < steps[best])) best = cell;
      if (best != NOBODY) {
        begin_skill(state, number, EVACUATE, best, NOBODY);
        begun |= 1u << number;
      }
    } else if (is_free(robot) && requested) {
      ways_of(map, state, robot, NOBODY, steps);
      const int goal = nearest_goal(map, state, steps);
      if (goal != NOBODY) {
        begin_skill(state, number, DELIVER, goal, robot.carrying);
        begun |= 1u << number;
      }
    }
  }
  return begun;
}

inline void plan_each(const Settings& map, State& state, uint32_t which) {
  for (int number = 0; number < map.robots; ++number)
    if (which >> number & 1u) plan(map, state, number);
}

// What is around all pairs: ways, claims and the free requests.
struct Overview {
  int16_t steps[MAX_ROBOTS][MAX_CELLS];
  int16_t to_goal[MAX_CELLS];
  int16_t request[MAX_REQUESTS];  // cells of the requests that nobody serves
  int requests;
};

inline void oversee(const Settings& map, const State& state, Overview& out) {
  const ShelfMap shelves(map, state);
  out.requests = 0;
  for (int place = 0; place < map.requests; ++place) {
    const int shelf = state.queue[place];
    if (shelf == NOBODY || !state.seen[place]) continue;
    const int cell = state.shelf_cell[shelf];
    if (cell == NOBODY || !shelves.stands[cell] || state.blocked[cell] || claimed(map, state, FETCH, cell)) continue;
    out.request[out.requests++] = static_cast<int16_t>(cell);
  }
  static thread_local Distances to;
  Passable passable(map, state, true, NOBODY, NOBODY);
  int goals[MAX_GOALS];
  std::copy(map.goal, map.goal + map.goals, goals);
  for (int cell = 0; cell < map.height * map.width; ++cell)
    if (!map.highway[cell]) passable.cell[cell] = false;
  distances_to(map, passable, goals, map.goals, to);
  for (int cell = 0; cell < map.height * map.width; ++cell) {
    int best = FAR;
    for (int heading = 0; heading < 4; ++heading) {
      best = std::min<int>(best, to.steps[cell * 4 + heading]);
      const int next = ahead(map, cell, heading);  // out of a shelf's place onto the highway
      if (!map.highway[cell] && next != NOBODY) best = std::min(best, to.steps[next * 4 + heading] + 1);
    }
    out.to_goal[cell] = static_cast<int16_t>(best);
  }
}

// All pairs of a free robot and a task, by robot and distance; with many free robots the nearest tasks of each.
inline void find_pairs(const Settings& map, const State& state, Overview& around, Pairs& out) {
  const ShelfMap shelves(map, state);
  const int cells = map.height * map.width;
  Pair own[MAX_CELLS];
  int count = 0, free = 0;
  out.count = 0;
  for (int number = 0; number < map.robots; ++number) free += is_free(state.robot[number]);
  const auto add = [&](int robot, int skill, int cell, int shelf, double probability) {
    const int steps = around.steps[robot][cell];
    if (steps >= FAR) return;
    own[count++] = {static_cast<int16_t>(robot), static_cast<int16_t>(skill), static_cast<int16_t>(cell),
                             static_cast<int16_t>(shelf), static_cast<int16_t>(steps),
                             static_cast<int16_t>(1000.0 * probability + 0.5)};
  };
  for (int number = 0; number < map.robots; ++number) {
    const Robot& robot = state.robot[number];
    if (!is_free(robot)) continue;
    int16_t* steps = around.steps[number];
    ways_of(map, state, robot, NOBODY, steps);
    const auto keep = [&] {  // the nearest, as many as there is room for
      const int kept = std::min(count, std::max(1, map.candidates / free));
      std::stable_sort(own, own + count, [](const Pair& a, const Pair& b) { return a.steps < b.steps; });
      for (int place = 0; place < kept && out.count < map.candidates; ++place) out.pair[out.count++] = own[place];
      count = 0;
    };
    if (robot.carrying != NOBODY) {
      for (int cell = 0; cell < cells; ++cell) {
        if (map.highway[cell] || shelves.stands[cell] || closed(map, state, cell) || claimed(map, state, STORE, cell))
          continue;
        int reach = steps[cell];  // the place itself is no passage, so its neighbours tell
        for (int heading = 0; heading < 4; ++heading) {
          const int beside = ahead(map, cell, heading);
          if (beside != NOBODY && map.highway[beside] && steps[beside] < FAR)
            reach = std::min(reach, steps[beside] + 1);
        }
        steps[cell] = static_cast<int16_t>(reach);
        add(number, STORE, cell, robot.carrying, 1.0);
      }
      keep();
      continue;
    }
    for (int place = 0; place < around.requests; ++place)
      if (around.to_goal[around.request[place]] < FAR)  // else nobody could bring it out
        add(number, FETCH, around.request[place], shelves.on[around.request[place]], 1.0);
    if (map.sensor == 0) {
      keep();
      continue;
    }
    double score[MAX_CELLS];
    for (int cell = 0; cell < cells; ++cell) {
      score[cell] = -1.0;
      if (map.highway[cell] || steps[cell] >= FAR || steps[cell] == 0 || claimed(map, state, SEARCH, cell)) continue;
      double mass = 0.0;
      for (int row = -map.sensor; row <= map.sensor; ++row)
        for (int column = -map.sensor; column <= map.sensor; ++column) {
          const int y = cell / map.width + row, x = cell % map.width + column;
          if (y < 0 || y >= map.height || x < 0 || x >= map.width) continue;
          const int shelf = shelves.on[y * map.width + x];
          if (shelf != NOBODY) mass += state.belief[shelf];
        }
      score[cell] = mass / (steps[cell] + 4.0);
    }
    for (int rank = 0; rank < SEARCHES; ++rank) {
      const int best = static_cast<int>(std::max_element(score, score + cells) - score);
      if (score[best] <= 0.0) break;
      add(number, SEARCH, best, NOBODY, std::min(1.0, score[best] * (steps[best] + 4.0)));
      score[best] = -1.0;
    }
    keep();
  }
}

// The nearest pair; a request that is known comes before a search.
inline int default_pair(const Pairs& pairs) {
  int best = 0;
  const auto cost = [&](const Pair& pair) {
    return pair.skill == SEARCH ? 1000 + 1000 * (pair.steps + 4) / std::max<int>(pair.probability, 1) : int{pair.steps};
  };
  for (int number = 1; number < pairs.count; ++number)
    if (cost(pairs.pair[number]) < cost(pairs.pair[best])) best = number;
  return best;
}

inline void assign(const Settings& map, State& state, const Pair& pair) {
  Robot& robot = state.robot[pair.robot];
  const bool same = robot.asked != NOBODY && robot.asked == pair.shelf && robot.planned && robot.steps > 0 &&
                    robot.plan[robot.steps - 1] / 4 == pair.cell;
  robot.asked = NOBODY;
  if (same) {  // goes on as planned
    robot.skill = static_cast<int8_t>(pair.skill);
    return;
  }
  begin_skill(state, pair.robot, pair.skill, pair.cell, pair.shelf);
  plan(map, state, pair.robot);
}

// Rows `[candidates, FEATURES]` of numbers about the pairs; distances are in sides of the floor.
inline void describe(const Settings& map, const State& state, const Overview& around, const Pairs& pairs, float* rows) {
  std::fill(rows, rows + map.candidates * FEATURES, 0.0f);
  const float side = static_cast<float>(map.height + map.width);
  for (int number = 0; number < pairs.count; ++number) {
    const Pair& pair = pairs.pair[number];
    const Robot& robot = state.robot[pair.robot];
    float* row = rows + number * FEATURES;
    int least = FAR, options = 0, rival = FAR, near = 0, others = 0;
    for (int other = 0; other < pairs.count; ++other) {
      if (pairs.pair[other].robot == pair.robot) {
        least = std::min<int>(least, pairs.pair[other].steps);
        ++options;
      } else if (pairs.pair[other].skill == pair.skill && pairs.pair[other].cell == pair.cell) {
        rival = std::min<int>(rival, pairs.pair[other].steps);
      }
    }
    for (int other = 0; other < map.robots; ++other) {
      const Robot& one = state.robot[other];
      if (other == pair.robot || one.dead) continue;
      if (one.skill != NONE && one.skill != WAIT && distance(map, one.target, pair.cell) <= 3) ++near;
      if (one.skill == STORE && pair.skill == FETCH)
        rival = std::min(rival, one.steps - one.at + 1 + distance(map, one.target, pair.cell));
      if (one.skill == DELIVER) ++others;
    }
    int next = UNKNOWN_DISTANCE, second = UNKNOWN_DISTANCE;
    for (int place = 0; place < around.requests; ++place) {
      const int way = distance(map, pair.cell, around.request[place]);
      if (pair.skill == FETCH && way == 0) continue;
      if (way < next) {
        second = next;
        next = way;
      } else {
        second = std::min(second, way);
      }
    }
    row[0] = pair.skill == FETCH;
    row[1] = pair.skill == STORE;
    row[2] = pair.skill == SEARCH;
    row[3] = pair.steps / side;
    row[4] = (pair.steps - least) / side;
    row[5] = std::min<int>(around.to_goal[pair.cell], FAR) / side;
    row[6] = next / side;
    row[7] = second / side;
    row[8] = std::max(-1.0f, std::min(1.0f, (std::min(rival, 2 * UNKNOWN_DISTANCE) - pair.steps) / side));
    row[9] = static_cast<float>(near) / map.robots;
    row[10] = static_cast<float>(others) / map.robots;
    row[11] = static_cast<float>(around.requests) / map.requests;
    row[12] = static_cast<float>(options) / map.candidates;
    row[13] = pair.probability / 1000.0f;
    row[14] = robot.asked != NOBODY && robot.asked == pair.shelf;
    const int place = pair.skill == FETCH ? request_of(map, state, pair.shelf) : NOBODY;
    row[15] = place == NOBODY ? 0.0f : std::min(1.0f, (state.time - state.queued[place]) / 100.0f);
  }
}

// After a step in which `wanted` was asked of the robots that stood at `poses`: how far the plans are, what went wrong,
// which skills end. `held`, `delivered`: a bit for each robot that the shield held back, or that delivered.
inline void follow(const Settings& map, State& state, const int16_t* poses, const int8_t* wanted, uint32_t held,
                   uint32_t delivered) {
  bool disturbed = held != 0;
  for (int number = 0; number < map.robots; ++number) {
    Robot& robot = state.robot[number];
    if (robot.dead) continue;
    const bool stood = poses[number] == robot.cell * 4 + robot.heading;
    const bool failed = wanted[number] == FORWARD && stood;
    state.collisions += failed;
    state.interventions += held >> number & 1u;
    state.idle += is_free(robot);
    state.unplanned += !robot.planned;
    disturbed |= failed || !robot.planned;
    if (robot.at < robot.steps) ++robot.at;
    const bool busy = !is_free(robot) && robot.cell != robot.target;
    robot.still = stood && busy ? static_cast<int16_t>(robot.still + 1) : int16_t{0};
    state.longest_still = std::max<int32_t>(state.longest_still, robot.still);
  }
  const uint32_t begun = settle(map, state, delivered);
  if (disturbed)
    replan(map, state);
  else
    plan_each(map, state, begun);
}

inline void poses_of(const Settings& map, const State& state, int16_t* poses) {
  for (int number = 0; number < map.robots; ++number)
    poses[number] = static_cast<int16_t>(state.robot[number].cell * 4 + state.robot[number].heading);
}

// One step of all robots by their plans, behind the shield. -> deliveries
inline int tick(const Settings& map, State& state) {
  int8_t wanted[MAX_ROBOTS], actions[MAX_ROBOTS];
  int16_t poses[MAX_ROBOTS];
  planned_actions(map, state, wanted);
  const uint32_t held = shield(map, state, wanted);
  std::copy(wanted, wanted + map.robots, actions);
  const int before = state.deliveries;
  poses_of(map, state, poses);
  const uint32_t delivered = move(map, state, actions);
  follow(map, state, poses, wanted, held, delivered);
  return state.deliveries - before;
}

// Assigns what needs no choice. -> whether there is a choice to make
inline bool choices(const Settings& map, State& state, Overview& around, Pairs& pairs) {
  for (;;) {
    bool any = false;
    for (int number = 0; number < map.robots; ++number) any |= is_free(state.robot[number]);
    pairs.count = 0;
    if (!any) return false;
    oversee(map, state, around);
    find_pairs(map, state, around, pairs);
    if (pairs.count >= 2) return true;
    for (int number = 0; number < map.robots; ++number)
      if (state.robot[number].skill == NONE && !state.robot[number].dead &&
          (pairs.count == 0 || pairs.pair[0].robot != number)) {
        begin_skill(state, number, WAIT, state.robot[number].cell, NOBODY);
        state.robot[number].asked = NOBODY;
        plan(map, state, number);
      }
    if (pairs.count == 0) return false;
    assign(map, state, pairs.pair[0]);
  }
}

// Goes on until there is a choice or the episode ends. -> deliveries meanwhile, discounted by `gain`
inline double go_on(const Settings& map, State& state, int until, Overview& around, Pairs& pairs, double* gain) {
  double total = 0.0;
  for (;;) {
    if (state.time >= until) {
      pairs.count = 0;
      return total;
    }
    if (choices(map, state, around, pairs)) return total;
    const int delivered = tick(map, state);
    total += *gain * delivered;
    *gain *= map.discount;
  }
}

// Discounted deliveries of the next steps if `pair` is assigned now, and every later choice is the default's.
inline double outcome(const Settings& map, const State& from, const Pair& pair) {
  static thread_local State state;
  static thread_local Overview around;
  Pairs pairs;
  state = from;
  assign(map, state, pair);
  const int until = from.time + map.difference;
  double gain = 1.0, total = 0.0;
  while (state.time < until) {
    total += go_on(map, state, until, around, pairs, &gain);
    if (pairs.count >= 2) assign(map, state, pairs.pair[default_pair(pairs)]);
  }
  return total;
}

}  // namespace hone
