"""Every compiled game and both searches in a build with sanitizers; run by test_control_seats_compiled.py."""

import numpy as np

from hone.control.seats import compiled_games
from hone.native.build import build, load_functions


def main() -> None:
    path = build(compiled_games.SOURCE, checked=True).path
    functions = load_functions(path, compiled_games._LABEL, compiled_games._SIGNATURES)
    # instead of the usual build
    compiled_games._functions = lambda: functions  # pyright: ignore[reportAttributeAccessIssue]
    draws = np.random.default_rng(0)
    for name in compiled_games.COMPILED_GAMES:
        game = compiled_games.CompiledGame(name)
        for match in range(200):
            game.reset(match)
            while game.to_move():
                seat = game.mover()
                game.step({seat: draws.choice(np.flatnonzero(game.observe(seat).mask))})

    def evaluate(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return draws.normal(size=(len(seen), 7)), np.tanh(draws.normal(size=len(seen)))

    game = compiled_games.CompiledGame("connect_four")
    game.reset(0)
    while game.to_move():
        compiled_games.rollout_search(game, simulations=150, seed=7)
        result = compiled_games.tree_search([game, game], evaluate, simulations=40, noise=np.full((2, 7), 1 / 7))
        game.step({game.mover(): result.visits[0].argmax()})
    print("ok")


if __name__ == "__main__":
    main()
