// Games of several seats: Connect Four, Kuhn poker, Leduc poker, with the rules and the rows of numbers of OpenSpiel.
//
// A game is plain bytes, so that a copy of it is a position. `mover` is the seat that is to move, CHANCE, or OVER;
// at CHANCE the outcomes are equally likely and are played as actions.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace hone {

constexpr int CHANCE = -1, OVER = -2;

struct ConnectFour {
  static constexpr int seats = 2, actions = 7, outcomes = 0, cells = 126;
  static constexpr bool hidden = false;
  static constexpr int ROWS = 6, COLUMNS = 7, HEIGHT = ROWS + 1;

  // A bit a square, column by column with an empty one on top of each, so that lines do not wrap around.
  uint64_t discs[2];
  int8_t height[COLUMNS];
  int8_t plies;
  int8_t winner;  // -1: none

  void begin() {
    discs[0] = discs[1] = 0;
    std::fill(height, height + COLUMNS, int8_t{0});
    plies = 0;
    winner = -1;
  }

  int mover() const { return winner >= 0 || plies == ROWS * COLUMNS ? OVER : plies % 2; }
  bool legal(int column) const { return mover() != OVER && height[column] < ROWS; }

  void play(int column) {
    const int seat = plies % 2;
    discs[seat] |= uint64_t{1} << (column * HEIGHT + height[column]);
    height[column] += 1;
    plies += 1;
    for (int step : {1, HEIGHT, HEIGHT - 1, HEIGHT + 1}) {
      const uint64_t pairs = discs[seat] & (discs[seat] >> step);
      if (pairs & (pairs >> (2 * step))) winner = static_cast<int8_t>(seat);
    }
  }

  double paid(int seat) const { return winner < 0 ? 0.0 : winner == seat ? 1.0 : -1.0; }

  // Three planes, row by row from the bottom: discs of the first seat, of the second, empty squares.
  void observe(int, float* seen) const {
    std::fill(seen, seen + cells, 0.0f);
    for (int row = 0; row < ROWS; ++row)
      for (int column = 0; column < COLUMNS; ++column) {
        const uint64_t square = uint64_t{1} << (column * HEIGHT + row);
        const int plane = discs[0] & square ? 0 : discs[1] & square ? 1 : 2;
        seen[(plane * ROWS + row) * COLUMNS + column] = 1.0f;
      }
  }
};

// Three cards, one each; a bet of 1 on an ante of 1. Actions: pass (check, fold) and bet (call).
struct Kuhn {
  static constexpr int seats = 2, actions = 2, outcomes = 3, cells = 11;
  static constexpr bool hidden = true;

  int8_t card[2];  // -1: not dealt
  int8_t bets[3];
  int8_t plies;

  void begin() {
    card[0] = card[1] = -1;
    plies = 0;
    std::fill(bets, bets + 3, int8_t{0});
  }

  int mover() const {
    if (card[1] < 0) return CHANCE;
    if (plies < 2) return plies;
    return plies == 2 && !bets[0] && bets[1] ? 0 : OVER;
  }

  bool legal(int action) const {
    if (mover() == CHANCE) return action != card[0];
    return mover() != OVER;
  }

  void play(int action) {
    if (mover() == CHANCE) {
      card[card[0] < 0 ? 0 : 1] = static_cast<int8_t>(action);
      return;
    }
    bets[plies] = static_cast<int8_t>(action);
    plies += 1;
  }

  double paid(int seat) const {
    if (mover() != OVER) return 0.0;
    const bool first_in = bets[0] || (plies == 3 && bets[2]), second_in = bets[1];
    const double stake = first_in && second_in ? 2.0 : 1.0;
    const int winner = first_in != second_in ? (first_in ? 0 : 1) : (card[0] > card[1] ? 0 : 1);
    return winner == seat ? stake : -stake;
  }

  // The seat, its card, and each bet, one-hot.
  void observe(int seat, float* seen) const {
    std::fill(seen, seen + cells, 0.0f);
    seen[seat] = 1.0f;
    if (card[seat] >= 0) seen[2 + card[seat]] = 1.0f;
    for (int ply = 0; ply < plies; ++ply) seen[5 + 2 * ply + bets[ply]] = 1.0f;
  }
};

// Six cards (three ranks, two suits), one each and a public one after the first round; raises of 2, then of 4, at most
// two a round. Actions: fold, call, raise.
struct Leduc {
  static constexpr int seats = 2, actions = 3, outcomes = 6, cells = 30;
  static constexpr bool hidden = true;
  static constexpr int FOLD = 0, CALL = 1, RAISE = 2, MOVES = 4;

  int8_t card[2], board;  // -1: not dealt
  int8_t round, turn;
  int8_t stake[2];
  int8_t raises, calls;
  int8_t folded;  // seat that folded; -1: none
  int8_t shown;   // 1: both called the second round
  int8_t count[2];
  int8_t moves[2][MOVES];

  void begin() {
    std::memset(this, 0, sizeof(*this));
    card[0] = card[1] = board = folded = -1;
    stake[0] = stake[1] = 1;
  }

  int mover() const {
    if (folded >= 0 || shown) return OVER;
    if (card[1] < 0 || (round == 1 && board < 0)) return CHANCE;
    return turn;
  }

  bool legal(int action) const {
    switch (mover()) {
      case OVER:
        return false;
      case CHANCE:
        return action != card[0] && action != card[1];
      default:
        return action == CALL || (action == FOLD ? stake[1 - turn] > stake[turn] : raises < 2);
    }
  }

  void play(int action) {
    if (mover() == CHANCE) {
      (card[0] < 0 ? card[0] : card[1] < 0 ? card[1] : board) = static_cast<int8_t>(action);
      return;
    }
    moves[round][count[round]++] = static_cast<int8_t>(action);
    const int other = std::max(stake[0], stake[1]);
    if (action == FOLD) {
      folded = turn;
      return;
    }
    if (action == RAISE) {
      stake[turn] = static_cast<int8_t>(other + (round == 0 ? 2 : 4));
      raises += 1;
      calls = 0;
    } else {
      stake[turn] = static_cast<int8_t>(other);
      calls += 1;
    }
    turn = static_cast<int8_t>(1 - turn);
    if (calls < (raises ? 1 : 2)) return;
    shown = round == 1;
    round = 1;
    turn = raises = calls = 0;
  }

  double paid(int seat) const {
    if (mover() != OVER) return 0.0;
    if (folded >= 0) return seat == folded ? -stake[folded] : stake[folded];
    int strength[2];
    for (int one = 0; one < 2; ++one) strength[one] = card[one] / 2 + (card[one] / 2 == board / 2 ? 100 : 0);
    if (strength[0] == strength[1]) return 0.0;
    return (strength[seat] > strength[1 - seat]) ? stake[1 - seat] : -stake[seat];
  }

  // The seat, its card, the public card, and each call (10) or raise (01).
  void observe(int seat, float* seen) const {
    std::fill(seen, seen + cells, 0.0f);
    seen[seat] = 1.0f;
    if (card[seat] >= 0) seen[2 + card[seat]] = 1.0f;
    if (board >= 0) seen[8 + board] = 1.0f;
    for (int part = 0; part < 2; ++part)
      for (int move = 0; move < count[part]; ++move)
        if (moves[part][move] != FOLD) seen[14 + 2 * (part * MOVES + move) + (moves[part][move] == RAISE)] = 1.0f;
  }
};

}  // namespace hone
