// The C functions of games: positions by the name of the game, and the searches.
#include "search.h"

#define HONE_OUT extern "C" __attribute__((visibility("default")))

namespace hone {
namespace {

struct Entry {
  const char* name;
  int32_t sizes[6];  // state bytes, seats, actions, outcomes, cells, hidden
  void (*begin)(uint8_t*);
  int32_t (*mover)(const uint8_t*);
  void (*legal)(const uint8_t*, uint8_t*, int32_t);
  int32_t (*play)(uint8_t*, int32_t);
  void (*paid)(const uint8_t*, double*);
  void (*observe)(const uint8_t*, int32_t, float*);
};

template <class Game>
const Game& position(const uint8_t* state) {
  return *reinterpret_cast<const Game*>(state);
}

template <class Game>
constexpr Entry entry(const char* name) {
  return {
      name,
      {sizeof(Game), Game::seats, Game::actions, Game::outcomes, Game::cells, Game::hidden},
      [](uint8_t* state) {
        std::memset(state, 0, sizeof(Game));
        reinterpret_cast<Game*>(state)->begin();
      },
      [](const uint8_t* state) -> int32_t { return position<Game>(state).mover(); },
      [](const uint8_t* state, uint8_t* out, int32_t count) {
        for (int32_t action = 0; action < count; ++action) out[action] = position<Game>(state).legal(action);
      },
      [](uint8_t* state, int32_t action) -> int32_t {
        auto& game = *reinterpret_cast<Game*>(state);
        const int choices = game.mover() == CHANCE ? Game::outcomes : Game::actions;
        if (action < 0 || action >= choices || !game.legal(action)) return 0;
        game.play(action);
        return 1;
      },
      [](const uint8_t* state, double* out) {
        for (int32_t seat = 0; seat < Game::seats; ++seat) out[seat] = position<Game>(state).paid(seat);
      },
      [](const uint8_t* state, int32_t seat, float* seen) { position<Game>(state).observe(seat, seen); },
  };
}

constexpr Entry GAMES[] = {
    entry<ConnectFour>("connect_four"),
    entry<Kuhn>("kuhn_poker"),
    entry<Leduc>("leduc_poker"),
};

}  // namespace
}  // namespace hone

using hone::GAMES;

// The number of a game; -1 where none has the name.
HONE_OUT int32_t hone_find_game(const char* name) {
  int32_t number = 0;
  for (const hone::Entry& game : GAMES) {
    if (std::strcmp(game.name, name) == 0) return number;
    ++number;
  }
  return -1;
}

HONE_OUT void hone_game_sizes(int32_t game, int32_t* sizes) {
  std::copy(GAMES[game].sizes, GAMES[game].sizes + 6, sizes);
}
HONE_OUT void hone_begin_game(int32_t game, uint8_t* state) { GAMES[game].begin(state); }
HONE_OUT int32_t hone_game_mover(int32_t game, const uint8_t* state) { return GAMES[game].mover(state); }
HONE_OUT void hone_game_legal(int32_t game, const uint8_t* state, uint8_t* out, int32_t count) {
  GAMES[game].legal(state, out, count);
}
HONE_OUT int32_t hone_play_game(int32_t game, uint8_t* state, int32_t action) {
  return GAMES[game].play(state, action);
}
HONE_OUT void hone_game_paid(int32_t game, const uint8_t* state, double* out) { GAMES[game].paid(state, out); }
HONE_OUT void hone_game_observe(int32_t game, const uint8_t* state, int32_t seat, float* seen) {
  GAMES[game].observe(state, seat, seen);
}

// Searches: Connect Four is the one game here of perfect information.
HONE_OUT int64_t hone_node_bytes() { return sizeof(hone::Node); }
HONE_OUT void hone_begin_search(const hone::Search* search) { hone::TreeSearch<hone::ConnectFour>::begin(*search); }
HONE_OUT int64_t hone_select_leaves(const hone::Search* search) {
  return hone::TreeSearch<hone::ConnectFour>::select(*search);
}
HONE_OUT void hone_expand_leaves(const hone::Search* search, const float* logits, const float* values) {
  hone::TreeSearch<hone::ConnectFour>::expand(*search, logits, values);
}
// Visits [trees, actions] of the moves at the roots, and the roots' mean values [trees] for the seat to move.
HONE_OUT void hone_search_visits(const hone::Search* search, int32_t* visits, double* values) {
  for (int64_t number = 0; number < search->trees; ++number) {
    const hone::Node* tree = search->nodes + number * search->capacity;
    double total = 0.0;
    int32_t count = 0;
    for (int child = tree[0].first; child < tree[0].first + tree[0].count; ++child) {
      visits[number * hone::ConnectFour::actions + tree[child].action] = tree[child].visits;
      total += tree[child].total;
      count += tree[child].visits;
    }
    values[number] = count ? total / count : 0.0;
  }
}
// Mixes noise [trees, actions], a distribution over actions, into the priors of the moves at expanded roots.
HONE_OUT void hone_mix_noise(const hone::Search* search, const float* noise, float share) {
  for (int64_t number = 0; number < search->trees; ++number) {
    hone::Node* tree = search->nodes + number * search->capacity;
    const float* own = noise + number * hone::ConnectFour::actions;
    for (int child = tree[0].first; child < tree[0].first + tree[0].count; ++child)
      tree[child].prior = (1 - share) * tree[child].prior + share * own[tree[child].action];
  }
}
// UCT with random playouts -> its move; visits [actions].
HONE_OUT int32_t hone_rollout_search(const uint8_t* state, int32_t simulations, double explore, uint64_t seed,
                                     int32_t* visits) {
  hone::RolloutSearch<hone::ConnectFour> search{{}, {seed}, explore};
  search.run(*reinterpret_cast<const hone::ConnectFour*>(state), simulations);
  std::fill(visits, visits + hone::ConnectFour::actions, 0);
  return search.best(visits);
}
