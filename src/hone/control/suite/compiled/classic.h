// Classic control: the equations and constants of Gymnasium's CartPole-v1 and Pendulum-v1, in the same order of
// operations, so that states agree to the rounding of sine and cosine.
#pragma once
#include <cmath>
#include <initializer_list>

#include "world.h"

namespace hone {

struct CartPole {
  using Action = int64_t;
  using Cell = float;
  static constexpr int cells = 4;

  double x, speed, angle, turn;

  void begin(Random& random) {
    for (double* part : {&x, &speed, &angle, &turn}) *part = -0.05 + 0.1 * random.uniform();
  }

  bool act(Action action, Random&, const Rules&, double& reward) {
    constexpr double pole = 0.1, total = 1.1, length = 0.5, moment = pole * length, step_s = 0.02;
    const double force = action == 1 ? 10.0 : -10.0, cosine = std::cos(angle), sine = std::sin(angle);
    const double push = (force + moment * (turn * turn) * sine) / total;
    const double swing = (9.8 * sine - cosine * push) / (length * (4.0 / 3.0 - pole * (cosine * cosine) / total));
    const double drive = push - moment * swing * cosine / total;
    x += step_s * speed;
    speed += step_s * drive;
    angle += step_s * turn;
    turn += step_s * swing;
    reward = 1.0;
    constexpr double edge = 2.4, fallen = 12 * 2 * M_PI / 360;
    return x < -edge || x > edge || angle < -fallen || angle > fallen;
  }

  void observe(const Rules& rules, Cell* seen) const {
    seen[0] = static_cast<float>(x);
    seen[1] = rules.hidden ? 0.0f : static_cast<float>(speed);
    seen[2] = static_cast<float>(angle);
    seen[3] = rules.hidden ? 0.0f : static_cast<float>(turn);
  }
};

struct Pendulum {
  using Action = float;
  using Cell = float;
  static constexpr int cells = 3;

  double angle, turn;

  void begin(Random& random) {
    angle = -M_PI + 2 * M_PI * random.uniform();
    turn = -1.0 + 2.0 * random.uniform();
  }

  bool act(Action action, Random&, const Rules&, double& reward) {
    const float torque = std::fmin(std::fmax(action, -2.0f), 2.0f);
    const double round = std::fmod(angle + M_PI, 2 * M_PI), off = (round < 0 ? round + 2 * M_PI : round) - M_PI;
    reward = -(off * off + 0.1 * (turn * turn) + 0.001f * (torque * torque));
    turn += (15.0 * std::sin(angle) + 3.0f * torque) * 0.05;
    turn = std::fmin(std::fmax(turn, -8.0), 8.0);
    angle += turn * 0.05;
    return false;
  }

  void observe(const Rules& rules, Cell* seen) const {
    seen[0] = static_cast<float>(std::cos(angle));
    seen[1] = static_cast<float>(std::sin(angle));
    seen[2] = rules.hidden ? 0.0f : static_cast<float>(turn);
  }
};

// A shuffled deck is dealt card by card; the action names the suit of the first card (POPGym's RepeatFirst, Morad and
// others, 2023). The observation is a flag for the first card and the suit as four numbers.
struct RepeatFirst {
  using Action = int64_t;
  using Cell = float;
  static constexpr int cells = 5, cards = 52, suits = 4;

  uint8_t deck[cards];
  int32_t dealt;

  void begin(Random& random) {
    for (int card = 0; card < cards; ++card) deck[card] = static_cast<uint8_t>(card % suits);
    for (int card = cards - 1; card > 0; --card) {
      const int other = random.below(card + 1);
      const uint8_t held = deck[card];
      deck[card] = deck[other];
      deck[other] = held;
    }
    dealt = 0;
  }

  bool act(Action action, Random&, const Rules&, double& reward) {
    constexpr double share = 1.0 / (cards - 1);
    reward = action == deck[0] ? share : -share;
    dealt += 1;
    return dealt == cards - 1;
  }

  void observe(const Rules&, Cell* seen) const {
    std::memset(seen, 0, cells * sizeof(Cell));
    seen[0] = dealt == 0 ? 1.0f : 0.0f;
    seen[1 + deck[dealt]] = 1.0f;
  }
};

}  // namespace hone
