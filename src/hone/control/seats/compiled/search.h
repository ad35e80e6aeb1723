// Tree search in games of two seats and perfect information: PUCT over the evaluations of a network, for many games
// together, and UCT with random playouts.
#pragma once
#include <cmath>
#include <vector>

#include "../../suite/compiled/world.h"
#include "games.h"

namespace hone {

// A node of a tree; children of a node are neighbours. Values are those of the seat that moved into the node.
struct Node {
  int32_t parent, first, count;  // first child and their number; count 0: a leaf
  int32_t visits;
  double total;
  float prior;
  int16_t action;
  int8_t mover;   // seat that is to move; OVER at an end
  int8_t solved;  // UCT: 0 unknown, 1 won, 2 drawn, 3 lost for the seat that moved into the node
};

// As `_Search` in tree_search.py.
struct Search {
  int64_t trees, capacity;
  const uint8_t* roots;  // [trees, state bytes]
  Node* nodes;           // [trees, capacity]
  int64_t* used;         // [trees] nodes of each
  int32_t* leaf;         // [trees] the leaf that waits for an evaluation; -1: none
  float* seen;           // [trees, cells + seats] its row for the network
  double explore;        // weight of the prior
};

inline Node node_of(int parent, int action, float prior) {
  return {parent, 0, 0, 0, 0.0, prior, static_cast<int16_t>(action), 0, 0};
}

// score = mean value + explore * prior * sqrt(visits of the parent) / (1 + visits); 0 for what was never visited.
inline int best_child(const Node* tree, const Node& node, double explore) {
  const double root = explore * std::sqrt(static_cast<double>(std::max(1, node.visits)));
  int best = node.first;
  double most = -1e300;
  for (int child = node.first; child < node.first + node.count; ++child) {
    const Node& one = tree[child];
    const double mean = one.visits ? one.total / one.visits : 0.0, score = mean + root * one.prior / (1 + one.visits);
    if (score > most) most = score, best = child;
  }
  return best;
}

// Adds the payments of a line to the nodes from `place` up; `paid[s]` is that of seat s.
inline void back_up(Node* tree, int place, const double* paid) {
  for (; place >= 0; place = tree[place].parent) {
    tree[place].visits += 1;
    if (tree[place].parent >= 0) tree[place].total += paid[tree[tree[place].parent].mover];
  }
}

template <class Game>
void add_children(Node* tree, int64_t& used, int place, const Game& game, const float* prior) {
  tree[place].first = static_cast<int32_t>(used);
  for (int action = 0; action < Game::actions; ++action)
    if (game.legal(action)) tree[used++] = node_of(place, action, prior[action]);
  tree[place].count = static_cast<int32_t>(used) - tree[place].first;
}

template <class Game>
struct TreeSearch {
  static constexpr int row = Game::cells + Game::seats;

  static void begin(const Search& search) {
    for (int64_t tree = 0; tree < search.trees; ++tree) {
      Node& root = search.nodes[tree * search.capacity];
      root = node_of(-1, -1, 1.0f);
      root.mover = static_cast<int8_t>(reinterpret_cast<const Game*>(search.roots)[tree].mover());
      search.used[tree] = 1;
      search.leaf[tree] = -1;
    }
  }

  // One line down each tree: an end is backed up at once, a leaf waits with its row. -> number of leaves.
  static int64_t select(const Search& search) {
    int64_t waiting = 0;
    for (int64_t number = 0; number < search.trees; ++number) {
      Node* tree = search.nodes + number * search.capacity;
      Game game = reinterpret_cast<const Game*>(search.roots)[number];
      search.leaf[number] = -1;
      if (tree[0].mover == OVER) continue;
      int place = 0;
      while (tree[place].count) {
        place = best_child(tree, tree[place], search.explore);
        game.play(tree[place].action);
      }
      const int mover = game.mover();
      tree[place].mover = static_cast<int8_t>(mover);
      if (mover == OVER || search.used[number] + Game::actions > search.capacity) {
        double paid[Game::seats];
        for (int seat = 0; seat < Game::seats; ++seat) paid[seat] = game.paid(seat);
        back_up(tree, place, paid);
        continue;
      }
      search.leaf[number] = place;
      float* seen = search.seen + number * row;
      game.observe(mover, seen);
      for (int seat = 0; seat < Game::seats; ++seat) seen[Game::cells + seat] = seat == mover;
      ++waiting;
    }
    return waiting;
  }

  // Takes the evaluations of the waiting leaves: logits [trees, actions], and values [trees] of the seat to move.
  static void expand(const Search& search, const float* logits, const float* values) {
    for (int64_t number = 0; number < search.trees; ++number) {
      const int place = search.leaf[number];
      if (place < 0) continue;
      Node* tree = search.nodes + number * search.capacity;
      Game game = reinterpret_cast<const Game*>(search.roots)[number];
      int path[512], length = 0;
      for (int at = place; tree[at].parent >= 0; at = tree[at].parent) path[length++] = tree[at].action;
      while (length) game.play(path[--length]);
      const float* own = logits + number * Game::actions;
      float prior[Game::actions], most = -1e30f, sum = 0.0f;
      for (int action = 0; action < Game::actions; ++action)
        if (game.legal(action)) most = std::max(most, own[action]);
      for (int action = 0; action < Game::actions; ++action) {
        prior[action] = game.legal(action) ? std::exp(own[action] - most) : 0.0f;
        sum += prior[action];
      }
      for (float& one : prior) one /= sum;
      add_children(tree, search.used[number], place, game, prior);
      double paid[2];
      const int mover = tree[place].mover & 1;
      paid[mover] = values[number];
      paid[1 - mover] = -values[number];
      back_up(tree, place, paid);
    }
  }
};

// UCT with one random playout a leaf (Kocsis & Szepesvari, 2006), which proves what it can (Winands et al., 2008):
// a move into a won position is won, and where all replies are won for the other, it is lost.
template <class Game>
struct RolloutSearch {
  std::vector<Node> tree;
  Random random;
  double explore;

  static double worth(int solved) { return 2.0 - solved; }

  double score(const Node& node, const Node& child) const {
    if (child.solved) return worth(child.solved);
    if (!child.visits) return 1e300;
    return child.total / child.visits + explore * std::sqrt(std::log(static_cast<double>(node.visits)) / child.visits);
  }

  int pick(int place) {  // the best child; of several, one at random
    const Node& node = tree[place];
    int best = node.first, ties = 0;
    double most = -1e301;
    for (int child = node.first; child < node.first + node.count; ++child) {
      const double own = score(node, tree[child]);
      if (own > most) most = own, ties = 0;
      if (own == most && random.below(++ties) == 0) best = child;
    }
    return best;
  }

  static int random_move(const Game& game, Random& random) {
    int moves[Game::actions], count = 0;
    for (int action = 0; action < Game::actions; ++action)
      if (game.legal(action)) moves[count++] = action;
    return moves[random.below(count)];
  }

  void prove(int place) {  // up from a child that became known
    for (; place >= 0; place = tree[place].parent) {
      Node& node = tree[place];
      int best = 3;  // for the seat that is to move in the node
      bool all = true;
      for (int child = node.first; child < node.first + node.count; ++child) {
        all = all && tree[child].solved;
        if (tree[child].solved) best = std::min<int>(best, tree[child].solved);
      }
      if (best != 1 && !all) return;
      node.solved = static_cast<int8_t>(4 - best);
    }
  }

  void run(const Game& root, int simulations) {
    tree.assign(1, node_of(-1, -1, 1.0f));
    tree.reserve(1 + static_cast<size_t>(simulations) * Game::actions);
    tree[0].mover = static_cast<int8_t>(root.mover());
    const float none[Game::actions] = {};
    for (int step = 0; step < simulations && !tree[0].solved; ++step) {
      Game game = root;
      int place = 0;
      while (tree[place].count && !tree[place].solved) {
        place = pick(place);
        game.play(tree[place].action);
      }
      tree[place].mover = static_cast<int8_t>(game.mover());
      if (!tree[place].solved && game.mover() != OVER && (tree[place].visits || place == 0)) {
        int64_t used = static_cast<int64_t>(tree.size());
        tree.resize(tree.size() + Game::actions);
        add_children(tree.data(), used, place, game, none);
        tree.resize(static_cast<size_t>(used));
        place = pick(place);
        game.play(tree[place].action);
        tree[place].mover = static_cast<int8_t>(game.mover());
      }
      double paid[Game::seats];
      if (tree[place].solved) {
        const int seat = tree[tree[place].parent].mover;
        paid[seat] = worth(tree[place].solved);
        paid[1 - seat] = -paid[seat];
      } else {
        const bool ended = game.mover() == OVER;
        while (game.mover() != OVER) game.play(random_move(game, random));
        for (int seat = 0; seat < Game::seats; ++seat) paid[seat] = game.paid(seat);
        if (ended && place > 0) {
          const double own = paid[tree[tree[place].parent].mover];
          tree[place].solved = static_cast<int8_t>(own > 0 ? 1 : own < 0 ? 3 : 2);
          prove(tree[place].parent);
        }
      }
      back_up(tree.data(), place, paid);
    }
  }

  // The move: a proved win, else the most visited that is not lost; of equals, the greater mean.
  int best(int32_t* visits) const {
    int chosen = -1;
    double most = -1e300;
    for (int child = tree[0].first; child < tree[0].first + tree[0].count; ++child) {
      const Node& one = tree[child];
      visits[one.action] = one.visits;
      const double mean = one.visits ? one.total / one.visits : 0.0;
      const double own = one.solved == 1 ? 1e18 : one.solved == 3 ? -1e18 + one.visits : one.visits + 1e-3 * mean;
      if (own > most) most = own, chosen = one.action;
    }
    return chosen;
  }
};

}  // namespace hone
