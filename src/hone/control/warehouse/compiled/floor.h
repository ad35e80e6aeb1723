// A warehouse floor: map, robots, shelves and requests, and the rules of a step as RWARE publishes them
// (Papoudakis et al., 2021): turning takes a step, an unloaded robot passes below shelves, a loaded one does not.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace hone {

constexpr int MAX_CELLS = 512, MAX_ROBOTS = 16, MAX_SHELVES = 320, MAX_REQUESTS = 40, MAX_GOALS = 8;
constexpr int HORIZON = 96;  // steps that a plan looks ahead
constexpr int NOBODY = -1;

enum Action : int8_t { NOOP, FORWARD, LEFT, RIGHT, TOGGLE };
enum Heading : int8_t { UP, DOWN, WEST, EAST };
enum Skill : int8_t { NONE, FETCH, DELIVER, STORE, SEARCH, WAIT, EVACUATE };

// As `Settings` in floor.py.
struct Settings {
  int32_t height, width, robots, requests;
  int32_t limit;       // steps of an episode
  int32_t sensor;      // cells around each robot in which requests are seen; 0: all requests are known
  int32_t candidates;  // rows of an observation
  int32_t difference;  // steps over which rewards, differences to the default assignment, are simulated; 0: deliveries
  int32_t preempt;     // 1: a robot on its way to a shelf may be sent elsewhere when a request appears
  int32_t decisions;   // after which an episode is cut; 0: after `limit` steps only
  int32_t goals;
  int32_t goal[MAX_GOALS];
  double discount;  // of a delivery per step, within a difference
  uint8_t highway[MAX_CELLS];
};

struct Random {  // SplitMix64 (Steele, Lea & Flood, 2014)
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  int below(int count) { return static_cast<int>(static_cast<double>(next() >> 11) * 0x1.0p-53 * count); }
};

// As `ROBOT` in floor.py.
struct Robot {
  int16_t cell;
  int16_t carrying;  // number of a shelf; NOBODY: none
  int16_t target;    // cell that the skill leads to
  int16_t shelf;     // of FETCH
  int16_t still;     // steps without a change of place or heading, with a target elsewhere
  int16_t steps;     // length of the plan
  int16_t at;        // steps of the plan that are done
  int8_t heading;
  int8_t dead;
  int8_t skill;
  int8_t planned;  // 0: a plan is wanted and none was found
  int16_t asked;   // shelf that the robot was sent to before it was asked again; NOBODY
  int32_t since;   // time at which the skill began
  int16_t plan[HORIZON];  // poses, cell * 4 + heading
};

// As `STATE` in floor.py. Plain bytes, so that a copy is a snapshot.
struct State {
  Random random;
  int32_t time;
  int32_t deliveries;
  int32_t collisions;     // moves that the rules of the floor cancelled, of robots that a controller moves
  int32_t interventions;  // moves that the shield held back
  int32_t failures;       // skills that ended without success
  int32_t searches;       // plans made
  int32_t unplanned;      // robots that had to stand because no plan was found, steps of each
  int32_t longest_still;  // the longest time that a robot with a target elsewhere stood
  int32_t idle;           // steps of robots without a task
  int32_t decisions;      // assignments that were a choice
  int32_t shelves;
  Robot robot[MAX_ROBOTS];
  int16_t shelf_cell[MAX_SHELVES];  // NOBODY: vanished
  int16_t queue[MAX_REQUESTS];      // shelves that are requested
  int32_t queued[MAX_REQUESTS];     // since when
  uint8_t seen[MAX_REQUESTS];       // whether a robot has seen that request
  uint8_t blocked[MAX_CELLS];
  float belief[MAX_SHELVES];  // probability that a shelf is requested, to whoever sees the sensors only
};

inline int ahead(const Settings& map, int cell, int heading) {  // NOBODY beyond the walls
  const int row = cell / map.width, column = cell % map.width;
  switch (heading) {
    case UP: return row > 0 ? cell - map.width : NOBODY;
    case DOWN: return row + 1 < map.height ? cell + map.width : NOBODY;
    case WEST: return column > 0 ? cell - 1 : NOBODY;
    default: return column + 1 < map.width ? cell + 1 : NOBODY;
  }
}

inline int turned(int heading, int action) {
  static const int8_t left[] = {WEST, EAST, DOWN, UP}, right[] = {EAST, WEST, UP, DOWN};
  return action == LEFT ? left[heading] : action == RIGHT ? right[heading] : heading;
}

inline int distance(const Settings& map, int from, int to) {
  return std::abs(from / map.width - to / map.width) + std::abs(from % map.width - to % map.width);
}

inline int request_of(const Settings& map, const State& state, int shelf) {  // its place in the queue; NOBODY
  for (int place = 0; place < map.requests; ++place)
    if (state.queue[place] == shelf) return place;
  return NOBODY;
}

inline int carrier_of(const Settings& map, const State& state, int shelf) {
  for (int number = 0; number < map.robots; ++number)
    if (state.robot[number].carrying == shelf) return number;
  return NOBODY;
}

// Shelf on each cell, NOBODY where there is none; carried ones are where their robot is.
struct ShelfMap {
  int16_t on[MAX_CELLS];
  bool stands[MAX_CELLS];  // whether it stands on the floor
  ShelfMap(const Settings& map, const State& state) {
    std::fill(on, on + map.height * map.width, int16_t{NOBODY});
    std::fill(stands, stands + map.height * map.width, false);
    for (int shelf = 0; shelf < state.shelves; ++shelf)
      if (state.shelf_cell[shelf] != NOBODY) {
        on[state.shelf_cell[shelf]] = static_cast<int16_t>(shelf);
        stands[state.shelf_cell[shelf]] = true;
      }
    for (int number = 0; number < map.robots; ++number)
      if (state.robot[number].carrying != NOBODY) stands[state.robot[number].cell] = false;
  }
};

// Puts another request into a place of the queue: any shelf that is there and not requested.
inline void draw_request(const Settings& map, State& state, int place) {
  int16_t free[MAX_SHELVES];
  int count = 0;
  for (int shelf = 0; shelf < state.shelves; ++shelf)
    if (state.shelf_cell[shelf] != NOBODY && request_of(map, state, shelf) == NOBODY)
      free[count++] = static_cast<int16_t>(shelf);
  state.queue[place] = count > 0 ? free[state.random.below(count)] : int16_t{NOBODY};
  state.queued[place] = state.time;
  state.seen[place] = 0;
  for (int shelf = 0; shelf < state.shelves; ++shelf)  // uniform over the shelves that are not requested
    state.belief[shelf] += (1.0f - state.belief[shelf]) / static_cast<float>(std::max(count, 1));
}

inline void begin_floor(const Settings& map, State& state, uint64_t seed) {
  std::memset(&state, 0, sizeof(State));
  state.random.state = seed;
  const int cells = map.height * map.width;
  for (int cell = 0; cell < cells; ++cell)
    if (!map.highway[cell]) state.shelf_cell[state.shelves++] = static_cast<int16_t>(cell);
  bool taken[MAX_CELLS] = {};
  for (int number = 0; number < map.robots; ++number) {
    int cell = state.random.below(cells);
    while (taken[cell]) cell = state.random.below(cells);
    taken[cell] = true;
    Robot& robot = state.robot[number];
    robot.cell = robot.target = static_cast<int16_t>(cell);
    robot.heading = static_cast<int8_t>(state.random.below(4));
    robot.carrying = robot.shelf = robot.asked = NOBODY;
    robot.planned = 1;
  }
  std::fill(state.queue, state.queue + MAX_REQUESTS, int16_t{NOBODY});
  for (int place = 0; place < map.requests; ++place) draw_request(map, state, place);
}

// Which robots get where they want to go: the rules of RWARE. Of robots that want the same cell the one with the most
// robots behind it goes, the first of equals; rings of three and more turn; two do not exchange places.
inline void resolve(const Settings& map, const State& state, int8_t* actions, const ShelfMap& shelves, bool* goes) {
  int next[MAX_ROBOTS], wants[MAX_ROBOTS], depth[MAX_ROBOTS];
  const int robots = map.robots;
  for (int number = 0; number < robots; ++number) {
    const Robot& robot = state.robot[number];
    int to = actions[number] == FORWARD ? ahead(map, robot.cell, robot.heading) : int{robot.cell};
    if (to == NOBODY) to = robot.cell;
    if (to != robot.cell && robot.carrying != NOBODY && shelves.on[to] != NOBODY && shelves.stands[to]) {
      actions[number] = NOOP;
      to = robot.cell;
    }
    wants[number] = to;
    goes[number] = false;
  }
  for (int number = 0; number < robots; ++number) {
    next[number] = NOBODY;
    for (int other = 0; other < robots; ++other)
      if (state.robot[other].cell == wants[number]) next[number] = other;
    depth[number] = 1;
  }
  bool ends_in_ring[MAX_ROBOTS];
  for (int number = 0; number < robots; ++number) {
    int at = number;
    for (int step = 0; step < robots && at != NOBODY; ++step) at = next[at];
    ends_in_ring[number] = at != NOBODY;
    int length = 0;
    if (at != NOBODY) {  // `at` is in the ring: is `number`?
      int member = at;
      bool in_ring = false;
      do {
        in_ring |= member == number;
        member = next[member];
        ++length;
      } while (member != at);
      goes[number] = in_ring && length != 2;
    }
  }
  for (int round = 0; round < robots; ++round)  // robots behind each, by the longest queue
    for (int number = 0; number < robots; ++number)
      if (!ends_in_ring[number] && next[number] != NOBODY)
        depth[next[number]] = std::max(depth[next[number]], depth[number] + 1);
  for (int number = 0; number < robots; ++number) {  // the front of each queue moves to an empty cell
    if (ends_in_ring[number] || next[number] != NOBODY) continue;
    bool first = true;
    for (int other = 0; other < robots; ++other)
      if (other != number && !ends_in_ring[other] && next[other] == NOBODY && wants[other] == wants[number])
        first &= depth[other] < depth[number] || (depth[other] == depth[number] && other > number);
    for (int at = first ? number : NOBODY; at != NOBODY;) {
      goes[at] = true;
      int behind = NOBODY;
      for (int other = 0; other < robots; ++other)
        if (next[other] == at && (behind == NOBODY || depth[other] > depth[behind])) behind = other;
      at = behind;
    }
  }
}

// One step of the floor: `actions` [robots], changed where a move fails -> the robots that delivered, a bit each.
inline uint32_t move(const Settings& map, State& state, int8_t* actions) {
  const ShelfMap before(map, state);
  bool goes[MAX_ROBOTS];
  resolve(map, state, actions, before, goes);
  for (int number = 0; number < map.robots; ++number) {
    Robot& robot = state.robot[number];
    if (!goes[number]) actions[number] = NOOP;
    switch (actions[number]) {
      case FORWARD: {
        const int to = ahead(map, robot.cell, robot.heading);
        if (to != NOBODY) robot.cell = static_cast<int16_t>(to);
        if (robot.carrying != NOBODY) state.shelf_cell[robot.carrying] = robot.cell;
        break;
      }
      case LEFT:
      case RIGHT: robot.heading = static_cast<int8_t>(turned(robot.heading, actions[number])); break;
      case TOGGLE:
        if (robot.carrying == NOBODY) {
          robot.carrying = before.on[robot.cell];
        } else if (!map.highway[robot.cell]) {
          robot.carrying = NOBODY;
        }
        break;
      default: break;
    }
  }
  state.time += 1;
  uint32_t delivered = 0;
  const ShelfMap after(map, state);
  for (int goal = 0; goal < map.goals; ++goal) {
    const int shelf = after.on[map.goal[goal]];
    const int place = shelf == NOBODY ? NOBODY : request_of(map, state, shelf);
    if (place == NOBODY) continue;
    const int carrier = carrier_of(map, state, shelf);
    if (carrier != NOBODY) delivered |= 1u << carrier;
    state.deliveries += 1;
    draw_request(map, state, place);
    state.belief[shelf] = 0.0f;
  }
  return delivered;
}

}  // namespace hone
