// The five games of MinAtar (Young & Tian, 2019; version 1.0.15) on boards of 10 by 10, as their published rules say:
// tests compare every step with the Python package, drawn from the same chance.
//
// Its lists forget an item by value: `remove` takes the first that is equal, which matters to the order of what is left
// and so to the score. `Items` does the same.
#pragma once
#include <algorithm>
#include <cstdlib>

#include "world.h"

namespace hone {

constexpr int SIDE = 10;

enum Move : int { NOTHING, LEFT, UP, RIGHT, DOWN, FIRE };

constexpr int within(int value, int low, int high) { return std::clamp(value, low, high); }

// Channels of a board, `[10, 10, count]` bytes.
template <int count>
struct Board {
  uint8_t* cells;

  explicit Board(uint8_t* to) : cells(to) { std::memset(cells, 0, SIDE * SIDE * count); }
  void set(int y, int x, int channel) { cells[(y * SIDE + x) * count + channel] = 1; }
  // Behind something that moves; not drawn outside of the board.
  void trail(int y, int x, bool right, int channel) {
    const int back = right ? x - 1 : x + 1;
    if (back >= 0 && back < SIDE) set(y, back, channel);
  }
};

// Up to `most` things in the order of their birth.
template <class Item, int most>
struct Items {
  int32_t size;
  Item items[most];

  Item& operator[](int place) { return items[place]; }
  const Item& operator[](int place) const { return items[place]; }
  const Item* begin() const { return items; }
  const Item* end() const { return items + size; }
  void add(const Item& item) {
    if (size < most) items[size++] = item;
  }
  // Forgets the first that equals the one at `place` -> its place.
  int forget(int place) {
    const Item gone = items[place];
    int first = 0;
    while (!(items[first] == gone)) ++first;
    std::copy(items + first + 1, items + size, items + first);
    size -= 1;
    return first;
  }
  // The first at these coordinates; -1 where nothing is.
  int at(int x, int y) const {
    for (int place = 0; place < size; ++place)
      if (items[place].x == x && items[place].y == y) return place;
    return -1;
  }
};

// A game behind sticky actions. The last action outlives its episode.
template <class Game>
struct MinAtar {
  using Action = int64_t;
  using Cell = uint8_t;
  static constexpr int cells = SIDE * SIDE * Game::channels;

  int32_t last;
  Game game;

  void begin(Random& random) {
    game = Game{};
    game.begin(random);
  }
  bool act(Action action, Random& random, const Rules& rules, double& reward) {
    int move = rules.minimal ? Game::moves[action] : static_cast<int>(action);
    if (random.uniform() < rules.sticky) move = last;
    last = move;
    return game.act(move, random, rules.ramping != 0, reward);
  }
  void observe(const Rules&, Cell* seen) const { game.draw(seen); }
};

// ------------------------------------------------------------------------------------------------------------ Breakout

struct Breakout {
  static constexpr int channels = 4;  // paddle, ball, trail, brick
  static constexpr int moves[] = {NOTHING, LEFT, RIGHT};

  int32_t paddle, x, y, last_x, last_y, heading;  // 0: left and up, then clockwise
  bool strike;
  bool brick[SIDE][SIDE];

  void begin(Random& random) {
    const bool right = random.below(2) == 1;
    y = last_y = 3;
    x = last_x = right ? 9 : 0;
    heading = right ? 3 : 2;
    paddle = 4;
    lay_bricks();
  }

  void lay_bricks() {
    for (int row = 1; row < 4; ++row) std::fill(brick[row], brick[row] + SIDE, true);
  }

  bool act(int move, Random&, bool, double& reward) {
    constexpr int over_x[] = {1, 0, 3, 2}, over_y[] = {3, 2, 1, 0}, back[] = {2, 3, 0, 1};
    if (move == LEFT) paddle = std::max(0, paddle - 1);
    if (move == RIGHT) paddle = std::min(SIDE - 1, paddle + 1);
    last_x = x;
    last_y = y;
    int new_x = x + (heading == 1 || heading == 2 ? 1 : -1), new_y = y + (heading < 2 ? -1 : 1);
    bool over = false, struck = false;
    if (new_x < 0 || new_x >= SIDE) {
      new_x = within(new_x, 0, SIDE - 1);
      heading = over_x[heading];
    }
    if (new_y < 0) {
      new_y = 0;
      heading = over_y[heading];
    } else if (brick[new_y][new_x]) {
      struck = true;
      if (!strike) {
        reward = 1.0;
        strike = true;
        brick[new_y][new_x] = false;
        new_y = last_y;
        heading = over_y[heading];
      }
    } else if (new_y == SIDE - 1) {
      if (std::none_of(&brick[0][0], &brick[0][0] + SIDE * SIDE, [](bool there) { return there; })) lay_bricks();
      if (x == paddle) {
        heading = over_y[heading];
        new_y = last_y;
      } else if (new_x == paddle) {
        heading = back[heading];
        new_y = last_y;
      } else {
        over = true;
      }
    }
    strike = strike && struck;
    x = new_x;
    y = new_y;
    return over;
  }

  void draw(uint8_t* seen) const {
    Board<channels> board(seen);
    board.set(y, x, 1);
    board.set(SIDE - 1, paddle, 0);
    board.set(last_y, last_x, 2);
    for (int row = 1; row < 4; ++row)
      for (int column = 0; column < SIDE; ++column)
        if (brick[row][column]) board.set(row, column, 3);
  }
};

// ------------------------------------------------------------------------------------------------------------- Freeway

struct Freeway {
  static constexpr int channels = 7;  // chicken, car, then a trail for each of five speeds
  static constexpr int moves[] = {NOTHING, UP, DOWN};
  static constexpr int cars = 8, pause = 3, length = 2500, column = 4;

  struct Car {
    int32_t x, wait, speed;  // speed: steps between two moves, negative to the left
  };
  int32_t chicken, wait, left;
  Car car[cars];

  void begin(Random& random) {
    draw_speeds(random);
    chicken = SIDE - 1;
    wait = pause;
    left = length;
  }

  void draw_speeds(Random& random) {
    for (Car& one : car) one.wait = 1 + random.below(5);
    for (Car& one : car) one.speed = random.uniform() < 0.5 ? -one.wait : one.wait;
  }

  bool act(int move, Random& random, bool, double& reward) {
    if ((move == UP || move == DOWN) && wait == 0) {
      wait = pause;
      chicken = within(chicken + (move == UP ? -1 : 1), 0, SIDE - 1);
    }
    if (chicken == 0) {
      reward = 1.0;
      draw_speeds(random);
      chicken = SIDE - 1;
    }
    for (int row = 0; row < cars; ++row) {
      Car& one = car[row];
      if (one.x == column && chicken == row + 1) chicken = SIDE - 1;
      if (one.wait == 0) {
        one.wait = std::abs(one.speed);
        one.x = (one.x + (one.speed > 0 ? 1 : SIDE - 1)) % SIDE;
        if (one.x == column && chicken == row + 1) chicken = SIDE - 1;
      } else {
        one.wait -= 1;
      }
    }
    if (wait > 0) wait -= 1;
    left -= 1;
    return left < 0;
  }

  void draw(uint8_t* seen) const {
    Board<channels> board(seen);
    board.set(chicken, column, 0);
    for (int row = 0; row < cars; ++row) {
      board.set(row + 1, car[row].x, 1);
      board.set(row + 1, (car[row].x + (car[row].speed > 0 ? SIDE - 1 : 1)) % SIDE, 1 + std::abs(car[row].speed));
    }
  }
};

// ------------------------------------------------------------------------------------------------------------- Asterix

struct Asterix {
  static constexpr int channels = 4;  // player, enemy, trail, gold
  static constexpr int moves[] = {NOTHING, LEFT, UP, RIGHT, DOWN};
  static constexpr int slots = 8, ramp = 100;

  struct Thing {
    int32_t x;
    bool there, right, gold;
  };
  int32_t x, y, spawn_every, spawn, move_every, wait, ramp_wait, ramps;
  Thing things[slots];  // one a row, from 1

  void begin(Random&) {
    x = y = 5;
    spawn_every = spawn = 10;
    move_every = wait = 5;
    ramp_wait = ramp;
  }

  // What the player does when it stands on the thing of this row.
  bool touch(Thing& thing, double& reward) {
    if (!thing.gold) return true;
    thing.there = false;
    reward += 1.0;
    return false;
  }

  bool act(int move, Random& random, bool ramping, double& reward) {
    bool over = false;
    if (spawn == 0) {
      add_thing(random);
      spawn = spawn_every;
    }
    if (move == LEFT) x = std::max(0, x - 1);
    if (move == RIGHT) x = std::min(SIDE - 1, x + 1);
    if (move == UP) y = std::max(1, y - 1);
    if (move == DOWN) y = std::min(SIDE - 2, y + 1);
    Thing& near = things[y - 1];
    if (near.there && near.x == x) over |= touch(near, reward);
    if (wait == 0) {
      wait = move_every;
      for (int row = 0; row < slots; ++row) {
        Thing& thing = things[row];
        if (!thing.there) continue;
        thing.x += thing.right ? 1 : -1;
        if (thing.x < 0 || thing.x >= SIDE) thing.there = false;
        if (thing.there && thing.x == x && row + 1 == y) over |= touch(thing, reward);
      }
    }
    spawn -= 1;
    wait -= 1;
    if (ramping && (spawn_every > 1 || move_every > 1)) raise_difficulty();
    return over;
  }

  void raise_difficulty() {
    if (ramp_wait >= 0) {
      ramp_wait -= 1;
      return;
    }
    if (move_every > 1 && ramps % 2 == 1) move_every -= 1;
    if (spawn_every > 1) spawn_every -= 1;
    ramps += 1;
    ramp_wait = ramp;
  }

  void add_thing(Random& random) {
    const bool right = random.uniform() < 1.0 / 2, gold = random.uniform() < 1.0 / 3;
    int free[slots], count = 0;
    for (int row = 0; row < slots; ++row)
      if (!things[row].there) free[count++] = row;
    if (count == 0) return;
    things[free[random.below(count)]] = {right ? 0 : SIDE - 1, true, right, gold};
  }

  void draw(uint8_t* seen) const {
    Board<channels> board(seen);
    board.set(y, x, 0);
    for (int row = 0; row < slots; ++row) {
      if (!things[row].there) continue;
      board.set(row + 1, things[row].x, things[row].gold ? 3 : 1);
      board.trail(row + 1, things[row].x, things[row].right, 2);
    }
  }
};

// ------------------------------------------------------------------------------------------------------ Space Invaders

struct SpaceInvaders {
  static constexpr int channels = 6;  // cannon, alien, its direction left or right, bullets of both sides
  static constexpr int moves[] = {NOTHING, LEFT, RIGHT, FIRE};
  static constexpr int cool_down = 5, shot_every = 10, slowest = 12, fastest = 6;

  using Map = bool[SIDE][SIDE];
  int32_t cannon, heading, move_every, move_wait, shot_wait, reload;
  Map aliens, ours, theirs;

  void begin(Random&) {
    cannon = 5;
    heading = -1;
    move_every = move_wait = slowest;
    shot_wait = shot_every;
    new_wave();
  }

  void new_wave() {
    for (int row = 0; row < 4; ++row) std::fill(aliens[row] + 2, aliens[row] + 8, true);
  }

  static int count(const Map& map) { return static_cast<int>(std::count(&map[0][0], &map[0][0] + SIDE * SIDE, true)); }
  static bool in_row(const Map& map, int row) { return std::count(map[row], map[row] + SIDE, true) > 0; }
  static int lowest(const Map& map, int column) {
    int row = SIDE - 1;
    while (row >= 0 && !map[row][column]) --row;
    return row;
  }

  bool act(int move, Random&, bool ramping, double& reward) {
    if (move == FIRE && reload == 0) {
      ours[SIDE - 1][cannon] = true;
      reload = cool_down;
    }
    if (move == LEFT) cannon = std::max(0, cannon - 1);
    if (move == RIGHT) cannon = std::min(SIDE - 1, cannon + 1);
    std::memmove(ours[0], ours[1], (SIDE - 1) * SIDE);
    std::fill(ours[SIDE - 1], ours[SIDE - 1] + SIDE, false);
    std::memmove(theirs[1], theirs[0], (SIDE - 1) * SIDE);
    std::fill(theirs[0], theirs[0] + SIDE, false);
    bool over = theirs[SIDE - 1][cannon] || aliens[SIDE - 1][cannon];
    if (move_wait == 0) over |= move_aliens();
    if (shot_wait == 0) {
      shot_wait = shot_every;
      shoot();
    }
    int hits = 0;
    for (int cell = 0; cell < SIDE * SIDE; ++cell) {
      bool &alien = (&aliens[0][0])[cell], &bullet = (&ours[0][0])[cell];
      const bool hit = alien & bullet;
      alien ^= hit;
      bullet ^= hit;
      hits += hit;
    }
    reward = hits;
    if (reload > 0) reload -= 1;
    move_wait -= 1;
    shot_wait -= 1;
    if (count(aliens) == 0) {
      if (move_every > fastest && ramping) move_every -= 1;
      new_wave();
    }
    return over;
  }

  // Sideways, or a row down where one stands at the edge -> whether they have come down to the cannon.
  bool move_aliens() {
    move_wait = std::min(count(aliens), move_every);
    bool over = false;
    if (lowest(aliens, heading < 0 ? 0 : SIDE - 1) >= 0) {
      heading = -heading;
      over = in_row(aliens, SIDE - 1);
      std::rotate(&aliens[0][0], &aliens[SIDE - 1][0], &aliens[0][0] + SIDE * SIDE);
    } else {
      for (auto& row : aliens) std::rotate(row, row + (heading < 0 ? 1 : SIDE - 1), row + SIDE);
    }
    return over || aliens[SIDE - 1][cannon];
  }

  // By the lowest alien of the column nearest to the cannon, the left one of two.
  void shoot() {
    for (int away = 0; away < SIDE; ++away)
      for (int column : {cannon - away, cannon + away}) {
        if (column < 0 || column >= SIDE) continue;
        const int row = lowest(aliens, column);
        if (row < 0) continue;
        theirs[row][column] = true;
        return;
      }
  }

  void draw(uint8_t* seen) const {
    Board<channels> board(seen);
    board.set(SIDE - 1, cannon, 0);
    const bool left = heading < 0;
    for (int cell = 0; cell < SIDE * SIDE; ++cell, seen += channels) {
      const bool alien = (&aliens[0][0])[cell];
      seen[1] = alien;
      seen[2] = alien && left;
      seen[3] = alien && !left;
      seen[4] = (&ours[0][0])[cell];
      seen[5] = (&theirs[0][0])[cell];
    }
  }
};

// ------------------------------------------------------------------------------------------------------------ Seaquest

struct Seaquest {
  // Front and back of the submarine, its bullets, trail, bullets, fish and submarines of enemies, oxygen, divers aboard,
  // divers.
  static constexpr int channels = 10;
  static constexpr int moves[] = {NOTHING, LEFT, UP, RIGHT, DOWN, FIRE};
  static constexpr int most_oxygen = 200, most_divers = 6, diver_every = 30, diver_wait = 5, cool_down = 5;
  static constexpr int shot_every = 10;

  struct Thing {
    int32_t x, y, right, wait, shot;  // the last two are 0 where they mean nothing

    bool operator==(const Thing& other) const { return std::memcmp(this, &other, sizeof(Thing)) == 0; }
    void advance() { x += right ? 1 : -1; }
    bool outside() const { return x < 0 || x >= SIDE; }
  };
  using Things = Items<Thing, 128>;

  int32_t x, y, right, oxygen, divers_aboard, spawn_every, spawn, diver_spawn, move_every, ramps, reload, at_surface;
  Things ours, theirs, fish, submarines, divers;

  void begin(Random&) {
    oxygen = most_oxygen;
    x = 5;
    spawn_every = spawn = 20;
    diver_spawn = diver_every;
    move_every = 5;
    at_surface = 1;
  }

  bool hit(const Thing& thing) const { return thing.x == x && thing.y == y; }

  bool act(int move, Random& random, bool ramping, double& reward) {
    if (spawn == 0) {
      add_enemy(random);
      spawn = spawn_every;
    }
    if (diver_spawn == 0) {
      const bool to_right = random.uniform() < 1.0 / 2;
      divers.add({to_right ? 0 : SIDE - 1, 1 + random.below(8), to_right, diver_wait, 0});
      diver_spawn = diver_every;
    }
    steer(move);
    move_ours(reward);
    move_divers();
    bool over = move_submarines(reward);
    over |= move_theirs();
    over |= move_fish(reward);
    for (int32_t* wait : {&spawn, &diver_spawn, &reload}) *wait -= *wait > 0;
    over |= oxygen <= 0;
    if (y > 0) {
      oxygen -= 1;
      at_surface = 0;
    } else if (!at_surface) {
      if (divers_aboard == 0) return true;
      come_up(ramping, reward);
    }
    return over;
  }

  void steer(int move) {
    if (move == FIRE && reload == 0) {
      ours.add({x, y, right, 0, 0});
      reload = cool_down;
    }
    if (move == LEFT || move == RIGHT) {
      x = within(x + (move == LEFT ? -1 : 1), 0, SIDE - 1);
      right = move == RIGHT;
    }
    if (move == UP) y = std::max(0, y - 1);
    if (move == DOWN) y = std::min(SIDE - 2, y + 1);
  }

  void move_ours(double& reward) {
    for (int place = ours.size - 1; place >= 0; --place) {
      Thing& bullet = ours[place];
      bullet.advance();
      if (bullet.outside()) {
        ours.forget(place);
        continue;
      }
      for (Things* enemies : {&fish, &submarines}) {
        const int struck = enemies->at(bullet.x, bullet.y);
        if (struck < 0) continue;
        enemies->forget(struck);
        ours.forget(place);
        reward += 1.0;
        break;
      }
    }
  }

  void move_divers() {
    for (int place = divers.size - 1; place >= 0; --place) {
      Thing& diver = divers[place];
      bool taken = hit(diver) && divers_aboard < most_divers, gone = false;
      if (!taken && diver.wait == 0) {
        diver.wait = diver_wait;
        diver.advance();
        gone = diver.outside();
        taken = !gone && hit(diver) && divers_aboard < most_divers;
      } else if (!taken) {
        diver.wait -= 1;
      }
      divers_aboard += taken;
      if (taken || gone) divers.forget(place);
    }
  }

  // Moves the enemy at `place` of its list, which may end there; `place` follows it, and is -1 once it has ended.
  bool move_enemy(Things& enemies, int& place, double& reward) {
    Thing& enemy = enemies[place];
    bool over = hit(enemy);
    if (enemy.wait > 0) {
      enemy.wait -= 1;
      return over;
    }
    enemy.wait = move_every;
    enemy.advance();
    bool ends = enemy.outside();
    if (!ends && hit(enemy)) {
      over = true;
    } else if (!ends) {
      const int bullet = ours.at(enemy.x, enemy.y);
      if (bullet >= 0) {
        ours.forget(bullet);
        reward += 1.0;
        ends = true;
      }
    }
    if (ends) place = enemies.forget(place) < place ? place - 1 : -1;
    return over;
  }

  bool move_submarines(double& reward) {
    bool over = false;
    for (int next = submarines.size - 1; next >= 0; --next) {
      Thing moved = submarines[next];
      int place = next;
      // One that has ended shoots once more, from where it would be.
      over |= move_enemy(submarines, place, reward);
      if (place >= 0)
        moved = submarines[place];
      else
        moved.advance();
      if (moved.shot == 0) {
        moved.shot = shot_every;
        theirs.add({moved.x, moved.y, moved.right, 0, 0});
      } else {
        moved.shot -= 1;
      }
      if (place >= 0) submarines[place].shot = moved.shot;
    }
    return over;
  }

  bool move_theirs() {
    bool over = false;
    for (int place = theirs.size - 1; place >= 0; --place) {
      Thing& bullet = theirs[place];
      over |= hit(bullet);
      bullet.advance();
      if (bullet.outside())
        theirs.forget(place);
      else
        over |= hit(bullet);
    }
    return over;
  }

  bool move_fish(double& reward) {
    bool over = false;
    for (int next = fish.size - 1; next >= 0; --next) {
      int place = next;
      over |= move_enemy(fish, place, reward);
    }
    return over;
  }

  void come_up(bool ramping, double& reward) {
    at_surface = 1;
    if (divers_aboard == most_divers) {
      divers_aboard = 0;
      reward += oxygen * 10 / most_oxygen;
    }
    oxygen = most_oxygen;
    divers_aboard -= 1;
    if (!ramping || (spawn_every <= 1 && move_every <= 2)) return;
    if (move_every > 2 && ramps % 2 == 1) move_every -= 1;
    if (spawn_every > 1) spawn_every -= 1;
    ramps += 1;
  }

  // A fish or a submarine in a row without one that comes towards it.
  void add_enemy(Random& random) {
    const bool to_right = random.uniform() < 1.0 / 2, is_submarine = random.uniform() < 1.0 / 3;
    const int row = 1 + random.below(8);
    const auto opposed = [&](const Thing& thing) { return thing.y == row && (thing.right != 0) != to_right; };
    if (std::any_of(submarines.begin(), submarines.end(), opposed) || std::any_of(fish.begin(), fish.end(), opposed))
      return;
    const Thing enemy = {to_right ? 0 : SIDE - 1, row, to_right, move_every, is_submarine ? shot_every : 0};
    (is_submarine ? submarines : fish).add(enemy);
  }

  void draw(uint8_t* seen) const {
    Board<channels> board(seen);
    board.set(y, x, 0);
    board.set(y, right ? x - 1 : x + 1, 1);
    for (int column = 0; column < std::max(0, oxygen) * 10 / most_oxygen; ++column) board.set(SIDE - 1, column, 7);
    for (int column = 9 - std::max(0, divers_aboard); column < 9; ++column) board.set(SIDE - 1, column, 8);
    for (const Thing& bullet : ours) board.set(bullet.y, bullet.x, 2);
    for (const Thing& bullet : theirs) board.set(bullet.y, bullet.x, 4);
    draw_movers(board, fish, 5);
    draw_movers(board, submarines, 6);
    draw_movers(board, divers, 9);
  }

  static void draw_movers(Board<channels>& board, const Things& things, int channel) {
    for (const Thing& thing : things) {
      board.set(thing.y, thing.x, channel);
      board.trail(thing.y, thing.x, thing.right != 0, 3);
    }
  }
};

}  // namespace hone
