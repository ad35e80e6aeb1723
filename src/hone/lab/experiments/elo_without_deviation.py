"""Elo without a deviation: a rating that does not know how little it knows is slow where players are new."""

import numpy as np

from hone.core.decisions import Floats, Ints
from hone.core.random import permutation
from hone.decide.simulators.players import PlayerWorld
from hone.estimators.ratings import Elo, Rating, RatingSystem, WengLin, rate_games
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot

SETTLED, NEW = 200, 60
GAMES = 10
"""First games of each new player."""
_WARM_UP = 60
"""Games of each settled player before."""
DEVIATION, SMALL, LARGE = "mean and deviation", "Elo, k = 32", "Elo, k = 96"


def first_games(world: PlayerWorld, system: RatingSystem) -> tuple[Floats, Floats]:
    """Log-losses of the predictions of each new player's first games `[GAMES, NEW]`: by ratings, by the true skills."""
    ratings = np.tile(np.array(system.initial, np.float64), (world.players, 1))

    def play(pairs: Ints, turn: int) -> tuple[Floats, Floats]:
        teams = [((one,), (other,)) for one, other in pairs.tolist()]
        chances = np.array([world.chance(one, other) for one, other in teams])
        return np.array([world.wins(one, other, turn) for one, other in teams], np.float64), chances

    for turn in range(_WARM_UP):
        pairs = permutation(world.seed, "settle", turn, count=SETTLED).reshape(-1, 2)
        ratings = rate_games(system, ratings, pairs, play(pairs, turn)[0])
    losses, least = np.zeros((GAMES, NEW)), np.zeros((GAMES, NEW))
    for turn in range(GAMES):
        settled = permutation(world.seed, "meet", turn, count=SETTLED)[:NEW]
        pairs = np.stack([np.arange(SETTLED, SETTLED + NEW), settled], axis=1)
        scores, chances = play(pairs, _WARM_UP + turn)
        p = np.array([
            system.expected_score([Rating(*ratings[one])], [Rating(*ratings[other])]) for one, other in pairs.tolist()
        ])  # fmt: skip
        losses[turn] = -np.log(np.where(scores == 1.0, p, 1 - p))
        least[turn] = -np.log(np.where(scores == 1.0, chances, 1 - chances))
        ratings = rate_games(system, ratings, pairs, scores)
    return losses, least


def claims_of(excess: dict[str, Floats]) -> list[BoundedClaim]:
    """Claims on the log-loss above that of the true skills, nats a game `[worlds]`."""
    mean = {name: float(values.mean()) for name, values in excess.items()}
    return [
        at_most("excess loss with a deviation", mean[DEVIATION], 0.14),
        at_least("excess loss of Elo with small steps over that", mean[SMALL] - mean[DEVIATION], 0.02),
        at_least("excess loss of Elo with large steps over that", mean[LARGE] - mean[DEVIATION], 0.01),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    worlds = [PlayerWorld(players=SETTLED + NEW, seed=1000 * seed + run) for run in range(4 if quick else 12)]
    excess: dict[str, Floats] = {}
    paths: dict[str, Floats] = {}
    systems = {DEVIATION: WengLin(beta=3.5, damped=False), SMALL: Elo(), LARGE: Elo(k=96.0)}
    for name, system in systems.items():
        runs = [first_games(world, system) for world in worlds]
        above = np.array([losses - least for losses, least in runs])
        excess[name], paths[name] = above.mean(axis=(1, 2)), above.mean(axis=(0, 2))
    return ExperimentResult(
        header=("rating", "excess log-loss, nats a game", "worst world", "in games 8 to 10"),
        rows=[
            (name, f"{values.mean():.3f}", f"{values.max():.3f}", f"{paths[name][-3:].mean():.3f}")
            for name, values in excess.items()
        ],
        panels=[
            line_plot(
                "log-loss above that of the true skills", "game of a new player", np.arange(1.0, GAMES + 1), paths
            )
        ],
        verdict=(
            f"Predictions of the first {GAMES} games of new players lose {excess[DEVIATION].mean():.3f} nats a game "
            f"more than the true skills would, if ratings know their deviation. Elo loses {excess[SMALL].mean():.3f} "
            f"with steps of 32 points and {excess[LARGE].mean():.3f} with steps of 96: small steps learn slowly of new "
            "players, and large ones forget their knowledge of settled ones."
        ),
        claims=claims_of(excess),
        figures={"worlds": float(len(worlds))},
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Elo without a deviation",
    question="Is a number enough for a rating, or must it know how sure it is?",
    run=_run,
    source="Glickman, 1999; Weng and Lin, 2011",
)
