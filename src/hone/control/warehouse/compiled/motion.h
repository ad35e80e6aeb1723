// Motion: shortest paths, plans in space and time around what others have reserved (cooperative A*, Silver, 2005), and
// a shield that holds back every move that would touch another robot, a shelf or a closed cell.
#pragma once
#include <vector>

#include "floor.h"

namespace hone {

constexpr int FAR = 20000;
constexpr int PATIENCE = 3;  // steps after which a robot that stands is planned first
constexpr int DWELL = 3;  // steps for which a robot keeps the end of its plan; then it has another

// Steps to a cell from every pose (cell * 4 + heading), or from a pose to every pose.
struct Distances {
  int16_t steps[MAX_CELLS * 4];
};

// Where a robot may stand: below shelves unless it is loaded, never on a closed cell.
struct Passable {
  bool cell[MAX_CELLS];
  // `over_closed`: a robot that leaves a closed zone may drive through it
  Passable(const Settings& map, const State& state, bool loaded, int own, int target, bool over_closed = false) {
    const int cells = map.height * map.width;
    for (int place = 0; place < cells; ++place)
      cell[place] = (!loaded || map.highway[place] || place == own || place == target) &&
                    (over_closed || !state.blocked[place]);
    for (int number = 0; number < map.robots; ++number)
      if (state.robot[number].dead) cell[state.robot[number].cell] = false;
    if (own != NOBODY) cell[own] = true;
  }
};

// Backwards from every heading at `targets`, over cells that are passable.
inline void distances_to(const Settings& map, const Passable& passable, const int* targets, int count, Distances& out) {
  const int poses = map.height * map.width * 4;
  std::fill(out.steps, out.steps + poses, int16_t{FAR});
  static thread_local int16_t queue[MAX_CELLS * 4];
  int head = 0, tail = 0;
  for (int number = 0; number < count; ++number)
    for (int heading = 0; heading < 4; ++heading)
      if (passable.cell[targets[number]]) {
        out.steps[targets[number] * 4 + heading] = 0;
        queue[tail++] = static_cast<int16_t>(targets[number] * 4 + heading);
      }
  while (head < tail) {
    const int pose = queue[head++], cell = pose / 4, heading = pose % 4;
    const int16_t next = static_cast<int16_t>(out.steps[pose] + 1);
    const auto reach = [&](int before) {
      if (out.steps[before] == FAR) {
        out.steps[before] = next;
        queue[tail++] = static_cast<int16_t>(before);
      }
    };
    reach(cell * 4 + turned(heading, LEFT));
    reach(cell * 4 + turned(heading, RIGHT));
    const int back = ahead(map, cell, turned(turned(heading, LEFT), LEFT));
    if (back != NOBODY && passable.cell[back]) reach(back * 4 + heading);
  }
}

// From a pose to each cell `[cells]`, in its best heading there.
inline void distances_from(const Settings& map, const Passable& passable, int from, int16_t* cells) {
  const int count = map.height * map.width;
  static thread_local int16_t steps[MAX_CELLS * 4], queue[MAX_CELLS * 4];
  std::fill(steps, steps + count * 4, int16_t{FAR});
  std::fill(cells, cells + count, int16_t{FAR});
  int head = 0, tail = 0;
  steps[from] = 0;
  queue[tail++] = static_cast<int16_t>(from);
  while (head < tail) {
    const int pose = queue[head++], cell = pose / 4, heading = pose % 4;
    cells[cell] = std::min(cells[cell], steps[pose]);
    const auto reach = [&](int after) {
      if (steps[after] == FAR) {
        steps[after] = static_cast<int16_t>(steps[pose] + 1);
        queue[tail++] = static_cast<int16_t>(after);
      }
    };
    reach(cell * 4 + turned(heading, LEFT));
    reach(cell * 4 + turned(heading, RIGHT));
    const int to = ahead(map, cell, heading);
    if (to != NOBODY && passable.cell[to]) reach(to * 4 + heading);
  }
}

// Robot on each cell at each step from now, NOBODY where there is none.
struct Reservations {
  int8_t by[HORIZON + 1][MAX_CELLS];

  void clear(const Settings& map) {
    for (auto& step : by) std::memset(step, NOBODY, map.height * map.width);
  }

  // The plan of a robot, and the end of it for some steps more; all steps where it has nowhere to go.
  void add(const State& state, int number) {
    const Robot& robot = state.robot[number];
    int cell = robot.cell, step = 0;
    by[0][cell] = static_cast<int8_t>(number);
    for (int at = robot.at; at < robot.steps && step < HORIZON; ++at) {
      cell = robot.plan[at] / 4;
      by[++step][cell] = static_cast<int8_t>(number);
    }
    const bool leaves = robot.planned && !robot.dead && robot.skill != NONE && robot.skill != WAIT;
    const int until = leaves ? std::min(step + DWELL, HORIZON) : HORIZON;
    for (++step; step <= until; ++step) by[step][cell] = static_cast<int8_t>(number);
  }
};

// Shortest plan of a robot to its target around all reservations; false, and the plan is empty, where there is none
// within the horizon. A robot without a target elsewhere goes wherever it is in nobody's way.
inline bool search(const Settings& map, State& state, int number, const Reservations& taken) {
  struct Node {
    int16_t pose, step;
    int32_t parent;
  };
  static thread_local std::vector<uint32_t> visited;
  static thread_local std::vector<Node> nodes;
  static thread_local std::vector<int32_t> buckets[2 * HORIZON + 2];
  static thread_local uint32_t stamp = 0;
  Robot& robot = state.robot[number];
  const bool rests = robot.skill == NONE || robot.skill == WAIT;
  const int poses = map.height * map.width * 4;
  visited.resize(static_cast<size_t>(HORIZON + 1) * MAX_CELLS * 4);
  nodes.clear();
  for (auto& bucket : buckets) bucket.clear();
  ++stamp;
  state.searches += 1;
  robot.steps = robot.at = 0;
  robot.planned = 0;
  static thread_local Distances to;
  const int target = robot.target;
  const bool leaves = robot.skill == EVACUATE;
  const Passable passable(map, state, robot.carrying != NOBODY, robot.cell, target, leaves);
  if (!rests) distances_to(map, passable, &target, 1, to);
  const auto estimate = [&](int pose) { return rests ? 0 : int{to.steps[pose]}; };
  const auto push = [&](int pose, int step, int32_t parent) {
    const int total = step + estimate(pose);
    uint32_t& mark = visited[static_cast<size_t>(step) * poses + pose];
    if (total > HORIZON || mark == stamp) return;
    mark = stamp;
    buckets[total].push_back(static_cast<int32_t>(nodes.size()));
    nodes.push_back({static_cast<int16_t>(pose), static_cast<int16_t>(step), parent});
  };
  const auto is_free = [&](int cell, int from, int until) {
    for (int step = from; step <= std::min(until, HORIZON); ++step)
      if (taken.by[step][cell] != NOBODY && taken.by[step][cell] != number) return false;
    return true;
  };
  push(robot.cell * 4 + robot.heading, 0, -1);
  for (int total = 0; total <= HORIZON;) {
    if (buckets[total].empty()) {
      ++total;
      continue;
    }
    const int32_t index = buckets[total].back();
    buckets[total].pop_back();
    const Node node = nodes[index];
    const int cell = node.pose / 4, heading = node.pose % 4;
    if ((rests || cell == target) && is_free(cell, node.step, rests ? HORIZON : node.step + DWELL)) {
      robot.steps = node.step;
      robot.planned = 1;
      for (int32_t at = index; nodes[at].step > 0; at = nodes[at].parent) robot.plan[nodes[at].step - 1] = nodes[at].pose;
      return true;
    }
    if (node.step >= HORIZON) continue;
    const int step = node.step + 1;
    if (is_free(cell, step, step)) {
      push(cell * 4 + heading, step, index);
      push(cell * 4 + turned(heading, LEFT), step, index);
      push(cell * 4 + turned(heading, RIGHT), step, index);
    }
    const int next = ahead(map, cell, heading);
    if (next == NOBODY || !passable.cell[next] || !is_free(next, step, step)) continue;
    const int8_t there = taken.by[node.step][next];  // two do not exchange places
    if (there != NOBODY && there != number && taken.by[step][cell] == there) continue;
    push(next * 4 + heading, step, index);
  }
  return false;
}

inline int urgency(const Robot& robot) {  // whose plan is made first
  switch (robot.skill) {
    case EVACUATE: return 0;
    case DELIVER: return 1;
    case STORE: return 2;
    case FETCH: return 3;
    case SEARCH: return 4;
    default: return 5;
  }
}

// Plans of all robots in an order; robots whose turn is still to come keep their cell for `stay` steps. Robots that find
// no plan stand where they are, for those that come after them. -> the first that found none, its place; else -1
inline int plan_in_order(const Settings& map, State& state, const int* order, int stay, int* failures) {
  static thread_local Reservations taken;
  int failed = NOBODY;
  *failures = 0;
  for (int place = 0; place < map.robots; ++place) {
    Robot& robot = state.robot[order[place]];
    taken.clear(map);
    for (int later = place + 1; later < map.robots; ++later)
      for (int step = 0; step <= stay; ++step)
        taken.by[step][state.robot[order[later]].cell] = static_cast<int8_t>(order[later]);
    for (int before = 0; before < place; ++before) taken.add(state, order[before]);
    if (robot.dead) {
      robot.steps = robot.at = 0;
      robot.planned = 1;
    } else if (!search(map, state, order[place], taken)) {
      *failures += 1;
      if (failed == NOBODY) failed = place;
    }
  }
  return failed;
}

// Plans of all robots: the dead stand, those that stood too long come first, then the most urgent. Where one finds no
// plan, it goes first the next time, and others give it more time to leave; of all attempts the one with the fewest
// robots without a plan counts.
inline void replan(const Settings& map, State& state) {
  int order[MAX_ROBOTS];
  const auto rank = [&](int number) {
    const Robot& robot = state.robot[number];
    if (robot.dead) return -2000;
    if (robot.skill == EVACUATE) return -1000;
    return robot.still >= PATIENCE ? -int{robot.still} : urgency(robot);
  };
  for (int number = 0; number < map.robots; ++number) order[number] = number;
  std::stable_sort(order, order + map.robots, [&](int one, int other) { return rank(one) < rank(other); });
  static thread_local Robot best[MAX_ROBOTS];
  int fewest = MAX_ROBOTS + 1;
  for (const int stay : {0, 1, 2, 4, 8})
    for (int turn = 0; turn < map.robots; ++turn) {
      int failures = 0;
      const int failed = plan_in_order(map, state, order, stay, &failures);
      if (failures == 0) return;
      if (failures < fewest) {
        fewest = failures;
        std::copy(state.robot, state.robot + map.robots, best);
      }
      std::rotate(order, order + failed, order + failed + 1);
    }
  std::copy(best, best + map.robots, state.robot);
}

// The plan of one robot around those of the others; of all, where there is none.
inline void plan(const Settings& map, State& state, int number) {
  static thread_local Reservations taken;
  taken.clear(map);
  for (int other = 0; other < map.robots; ++other)
    if (other != number) taken.add(state, other);
  if (!search(map, state, number, taken)) replan(map, state);
}

// The next action of each plan; a robot at the end of it loads or unloads.
inline void planned_actions(const Settings& map, const State& state, int8_t* actions) {
  for (int number = 0; number < map.robots; ++number) {
    const Robot& robot = state.robot[number];
    actions[number] = NOOP;
    if (robot.dead) continue;
    if (robot.at < robot.steps) {
      const int pose = robot.plan[robot.at];
      if (pose / 4 != robot.cell)
        actions[number] = FORWARD;
      else if (pose % 4 != robot.heading)
        actions[number] = turned(robot.heading, LEFT) == pose % 4 ? LEFT : RIGHT;
    } else if (robot.planned && robot.cell == robot.target && (robot.skill == FETCH || robot.skill == STORE)) {
      actions[number] = TOGGLE;
    }
  }
}

// Holds back every move that is not safe whatever the plans say: of the actions that are left, no two robots come onto
// one cell or exchange places, and nobody enters a wall, a closed cell, the cell of a robot that stands, or, loaded, a
// shelf's. -> robots held back, a bit each. Standing is always safe, so the least set of vetoes exists.
inline uint32_t shield(const Settings& map, const State& state, int8_t* actions) {
  const ShelfMap shelves(map, state);
  uint32_t held = 0;
  int wants[MAX_ROBOTS];
  for (int number = 0; number < map.robots; ++number) {
    const Robot& robot = state.robot[number];
    wants[number] = robot.cell;
    if (actions[number] != FORWARD) continue;
    const int to = ahead(map, robot.cell, robot.heading);
    const bool closed = to == NOBODY || robot.dead || (state.blocked[to] && robot.skill != EVACUATE) ||
                        (robot.carrying != NOBODY && shelves.stands[to]);
    if (closed)
      held |= 1u << number;
    else
      wants[number] = to;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (int number = 0; number < map.robots; ++number) {
      const Robot& robot = state.robot[number];
      if (wants[number] == robot.cell) continue;
      for (int other = 0; other < map.robots; ++other) {
        if (other == number) continue;
        const bool same = wants[other] == wants[number] && (wants[other] == state.robot[other].cell || other < number);
        const bool swap = wants[other] == robot.cell && wants[number] == state.robot[other].cell;
        if (!same && !swap) continue;
        wants[number] = robot.cell;
        held |= 1u << number;
        changed = true;
        break;
      }
    }
  }
  for (int number = 0; number < map.robots; ++number)
    if (held >> number & 1u) actions[number] = NOOP;
  return held;
}

}  // namespace hone
