// Worlds of MiniGrid (Chevalier-Boisvert and others, 2023; version 3) with its rules: a room with a goal, a key and a
// locked door, a corridor with something to remember. Tests compare every step with the Python package, drawn from the
// same chance.
//
// The agent sees 7 by 7 cells before it, what a wall or a closed door does not hide. The package tells object, colour
// and state of a cell as three numbers; here each of them is one of 11, 6 and 3 flags.
#pragma once
#include "world.h"

namespace hone {

enum Object : uint8_t { UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA, AGENT, OBJECTS };
enum Colour : uint8_t { RED, GREEN, BLUE, PURPLE, YELLOW, GREY, COLOURS };
enum DoorState : uint8_t { OPEN, CLOSED, LOCKED, STATES };
enum GridAction : int { TURN_LEFT, TURN_RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE };

struct Cell {
  uint8_t object, colour, state;

  bool is(Object other) const { return object == other; }
  bool hides() const { return is(WALL) || (is(DOOR) && state != OPEN); }
  bool can_be_entered() const { return is(EMPTY) || is(GOAL) || (is(DOOR) && state == OPEN); }
  bool can_be_taken() const { return is(KEY) || is(BALL); }
};

constexpr Cell NONE = {EMPTY, 0, 0};
constexpr int VIEW = 7, FLAGS = OBJECTS + COLOURS + STATES;

// The agent in a room of `size` by `size`, walls included.
template <int size>
struct Room {
  static constexpr int STEP_X[] = {1, 0, -1, 0}, STEP_Y[] = {0, 1, 0, -1};  // right, down, left, up

  int32_t x, y, facing, steps;
  Cell carried;  // EMPTY: nothing
  Cell cells[size][size];  // by x, then y

  Cell& at(int column, int row) { return cells[column][row]; }

  void clear() {
    x = y = -1;
    facing = steps = 0;
    carried = NONE;
    for (int column = 0; column < size; ++column)
      for (int row = 0; row < size; ++row) {
        const bool edge = column == 0 || row == 0 || column == size - 1 || row == size - 1;
        at(column, row) = edge ? Cell{WALL, GREY, 0} : NONE;
      }
  }

  // An empty cell of the columns before `columns`, where the agent is not.
  void find_place(Random& random, int columns, int& column, int& row) {
    do {
      column = random.below(columns);
      row = random.below(size);
    } while (!at(column, row).is(EMPTY) || (column == x && row == y));
  }

  void place_agent(Random& random, int columns) {
    int column, row;
    find_place(random, columns, column, row);
    x = column;
    y = row;
    facing = random.below(4);
  }

  double reward(const Rules& rules) const { return 1 - 0.9 * (static_cast<double>(steps) / rules.limit); }

  // One action -> whether the agent has walked onto the goal.
  bool move(int action) {
    steps += 1;
    const int column = x + STEP_X[facing], row = y + STEP_Y[facing];
    Cell& front = at(column, row);
    switch (action) {
      case TURN_LEFT:
        facing = (facing + 3) % 4;
        break;
      case TURN_RIGHT:
        facing = (facing + 1) % 4;
        break;
      case FORWARD:
        if (!front.can_be_entered()) break;
        x = column;
        y = row;
        return front.is(GOAL);
      case PICK_UP:
        if (!front.can_be_taken() || !carried.is(EMPTY)) break;
        carried = front;
        front = NONE;
        break;
      case DROP:
        if (!front.is(EMPTY) || carried.is(EMPTY)) break;
        front = carried;
        carried = NONE;
        break;
      case TOGGLE:
        if (!front.is(DOOR)) break;
        if (front.state != LOCKED)
          front.state = front.state == OPEN ? CLOSED : OPEN;
        else if (carried.is(KEY) && carried.colour == front.colour)
          front.state = OPEN;
        break;
      default:
        break;
    }
    return false;
  }

  // `[7, 7, 20]`: to the right of the agent, then towards it; the agent is at (3, 6). `hiding`: whether walls hide.
  void draw(uint8_t* seen, bool hiding = true) const {
    Cell view[VIEW][VIEW];
    const int side = (facing + 1) % 4;
    for (int i = 0; i < VIEW; ++i)
      for (int j = 0; j < VIEW; ++j) {
        const int ahead = VIEW - 1 - j, aside = i - VIEW / 2;
        const int column = x + STEP_X[facing] * ahead + STEP_X[side] * aside;
        const int row = y + STEP_Y[facing] * ahead + STEP_Y[side] * aside;
        const bool inside = column >= 0 && row >= 0 && column < size && row < size;
        view[i][j] = inside ? cells[column][row] : Cell{WALL, GREY, 0};
      }
    bool lit[VIEW][VIEW];
    std::memset(lit, !hiding, sizeof lit);
    if (hiding) light(view, lit);
    view[VIEW / 2][VIEW - 1] = carried;
    std::memset(seen, 0, VIEW * VIEW * FLAGS);
    for (int i = 0; i < VIEW; ++i)
      for (int j = 0; j < VIEW; ++j, seen += FLAGS) {
        const Cell cell = lit[i][j] ? view[i][j] : Cell{UNSEEN, 0, 0};
        seen[cell.object] = seen[OBJECTS + cell.colour] = seen[OBJECTS + COLOURS + cell.state] = 1;
      }
  }

  // Light spreads from the agent, row by row away from it: to both sides, and ahead.
  static void light(const Cell (&view)[VIEW][VIEW], bool (&lit)[VIEW][VIEW]) {
    lit[VIEW / 2][VIEW - 1] = true;
    for (int j = VIEW - 1; j >= 0; --j) {
      const auto spread = [&](int i, int towards) {
        if (!lit[i][j] || view[i][j].hides()) return;
        lit[i + towards][j] = true;
        if (j > 0) lit[i + towards][j - 1] = lit[i][j - 1] = true;
      };
      for (int i = 0; i < VIEW - 1; ++i) spread(i, 1);
      for (int i = VIEW - 1; i > 0; --i) spread(i, -1);
    }
  }
};

// What the three share: 7 actions, or those that do something.
struct GridWorld {
  using Action = int64_t;
  using Cell = uint8_t;
  static constexpr int cells = VIEW * VIEW * FLAGS;
};

// A goal in the corner, and the agent anywhere.
template <int size>
struct EmptyRoom : GridWorld {
  Room<size> room;

  void begin(Random& random) {
    room.clear();
    room.at(size - 2, size - 2) = {GOAL, GREEN, 0};
    room.place_agent(random, size);
  }
  bool act(Action action, Random&, const Rules& rules, double& reward) {
    const bool over = room.move(static_cast<int>(action));
    if (over) reward = room.reward(rules);
    return over;
  }
  void observe(const Rules&, uint8_t* seen) const { room.draw(seen, false); }
};

// The goal lies behind a locked door, and its key on the agent's side.
template <int size>
struct DoorKey : GridWorld {
  Room<size> room;

  void begin(Random& random) {
    room.clear();
    room.at(size - 2, size - 2) = {GOAL, GREEN, 0};
    const int split = 2 + random.below(size - 4);
    for (int row = 0; row < size; ++row) room.at(split, row) = {WALL, GREY, 0};
    room.place_agent(random, split);
    room.at(split, 1 + random.below(size - 3)) = {DOOR, YELLOW, LOCKED};
    int column, row;
    room.find_place(random, split, column, row);
    room.at(column, row) = {KEY, YELLOW, 0};
  }
  bool act(Action action, Random&, const Rules& rules, double& reward) {
    const bool over = room.move(static_cast<int>(action));
    if (over) reward = room.reward(rules);
    return over;
  }
  void observe(const Rules&, uint8_t* seen) const { room.draw(seen); }
};

// A key or a ball lies in the room at the start of a corridor; at its end the agent must turn to the one that it saw.
template <int size>
struct Memory : GridWorld {
  Room<size> room;
  int32_t fork, right_row;  // column of both ends, and the row of the one that pays

  void begin(Random& random) {
    constexpr int middle = size / 2, end = size - 3;
    constexpr hone::Cell wall = {WALL, GREY, 0};
    room.clear();
    for (int column = 1; column < 5; ++column) room.at(column, middle - 2) = room.at(column, middle + 2) = wall;
    room.at(4, middle - 1) = room.at(4, middle + 1) = wall;
    for (int column = 5; column < end; ++column) room.at(column, middle - 1) = room.at(column, middle + 1) = wall;
    for (int row = 0; row < size; ++row) {
      if (row != middle) room.at(end, row) = wall;
      room.at(end + 2, row) = wall;
    }
    room.x = 1 + random.below(end);
    room.y = middle;
    const Object shown = random.below(2) == 0 ? KEY : BALL;
    room.at(1, middle - 1) = {shown, GREEN, 0};
    const Object above = random.below(2) == 0 ? BALL : KEY;
    fork = end + 1;
    room.at(fork, middle - 2) = {above, GREEN, 0};
    room.at(fork, middle + 2) = {static_cast<uint8_t>(above == BALL ? KEY : BALL), GREEN, 0};
    right_row = shown == above ? middle - 1 : middle + 1;
  }
  bool act(Action action, Random&, const Rules& rules, double& reward) {
    room.move(action == PICK_UP ? TOGGLE : static_cast<int>(action));
    if (room.x != fork || (room.y != size / 2 - 1 && room.y != size / 2 + 1)) return false;
    if (room.y == right_row) reward = room.reward(rules);
    return true;
  }
  void observe(const Rules&, uint8_t* seen) const { room.draw(seen); }
};

}  // namespace hone
