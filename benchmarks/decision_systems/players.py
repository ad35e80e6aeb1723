"""Matchmaking and difficulty: balanced matches after a few games, strengths found again, and levels at a target rate.

Simulated players have standard normal skills and win by the logistic of their difference; the MCTS players of Connect
Four have a strength that nobody here set. Settings are chosen on seeds below 100.
"""

import importlib
import json
import math
import subprocess
import tempfile
import timeit
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from peers import require_peer
from tables import Row

from decision_systems import AcceptanceLine, cpu_seconds, slack
from hone.core.decisions import Floats
from hone.core.random import generator, permutation
from hone.decide.match.difficulty import Difficulty
from hone.decide.match.pairing import MatchQueue, PairingRules, WaitingParty, pair
from hone.decide.match.rating_store import RatedPlayer, suspected_smurfs
from hone.decide.simulators.players import LevelWorld, PlayerWorld
from hone.decide.simulators.recommendation import SimulatedClock
from hone.estimators.ratings import Elo, Rating, RatingSystem, WengLin, fit_ratings, rank_agreement, rate_games
from hone.lab.experiments.elo_without_deviation import NEW, SETTLED, first_games

TITLE = "Matchmaking and difficulty"
SEED = 100
PLAYERS = 300
ROUNDS = 20
ANYBODY = PairingRules(window=0.5)
"""Rules under which everybody plays in every round."""
SYSTEM = WengLin(beta=3.5, damped=False)
"""Scale of the world's games, and skills that stand still."""


def as_rows(system: RatingSystem, count: int) -> Floats:
    """Ratings `[count, 3]` of new players."""
    return np.tile(np.array(system.initial, np.float64), (count, 1))


def played(world: PlayerWorld, pairs: np.ndarray[Any, Any], number: int) -> Floats:
    """Scores of the first players of `pairs` `[M, 2]` in games from `number` on."""
    return np.array([float(world.wins((one,), (other,), number + k)) for k, (one, other) in enumerate(pairs.tolist())])


def skill_pairs(world: PlayerWorld, ratings: Floats, system: RatingSystem) -> np.ndarray[Any, Any]:
    """Everybody's opponent of a round, by `pair`."""
    waiting = [WaitingParty(players=(name,), since_s=0.0) for name in world.names]
    by_name = {name: Rating(*row) for name, row in zip(world.names, ratings.tolist(), strict=True)}
    matches = pair(waiting, by_name, now_s=0.0, rules=ANYBODY, system=system).matches
    number = {name: place for place, name in enumerate(world.names)}
    return np.array([[number[match.players[0][0]], number[match.players[1][0]]] for match in matches])


def random_pairs(world: PlayerWorld, number: int) -> np.ndarray[Any, Any]:
    """Everybody's opponent by chance."""
    return permutation(world.seed, "opponents", number, count=world.players).reshape(-1, 2)


def imbalance(world: PlayerWorld, pairs: np.ndarray[Any, Any]) -> float:
    """Mean of the true |p - 1/2|."""
    return float(np.mean([abs(world.chance((one,), (other,)) - 0.5) for one, other in pairs.tolist()]))


def after_rounds(world: PlayerWorld, *, refit: bool, rounds: int = ROUNDS) -> tuple[float, float]:
    """True imbalance of the matches after the rounds, and the rank correlation of the ratings with the skills.

    Ratings by one update a game or, if `refit`, fitted to all games after each round.
    """
    ratings, pairs, scores = as_rows(SYSTEM, world.players), list[Any](), list[Floats]()
    for number in range(rounds):
        pairs.append(skill_pairs(world, ratings, SYSTEM))
        scores.append(played(world, pairs[-1], number * world.players))
        if refit:
            ratings = fit_ratings(SYSTEM, world.players, np.concatenate(pairs), np.concatenate(scores))
        else:
            ratings = rate_games(SYSTEM, ratings, pairs[-1], scores[-1])
    following = skill_pairs(world, ratings, SYSTEM)
    return imbalance(world, following), rank_agreement(ratings[:, 0], world.skills)


def balance(seeds: range) -> Iterator[AcceptanceLine]:
    """Balanced matches after 20 rounds, beside opponents by chance."""
    worlds = [PlayerWorld(players=PLAYERS, seed=seed) for seed in seeds]
    with cpu_seconds() as spent:
        runs = [after_rounds(world, refit=True) for world in worlds]
    online = np.mean([after_rounds(world, refit=False) for world in worlds], axis=0)
    values, agreements = [run[0] for run in runs], [run[1] for run in runs]
    yield AcceptanceLine(
        figure="imbalance of a match after 20 rounds", value=float(np.mean(values)), at_most=0.14, seeds=len(seeds),
        cpu_s=spent.spent,
        words=f"{PLAYERS} players, worst seed {max(values):.3f}; ratings by one update a game {online[0]:.3f}",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="rank correlation of ratings and skills after 20 rounds", value=float(np.mean(agreements)),
        at_least=0.96, seeds=len(seeds),
        words=f"worst seed {min(agreements):.3f}; ratings by one update a game {online[1]:.3f}",
    )  # fmt: skip
    chance = [imbalance(world, random_pairs(world, ROUNDS)) for world in worlds]
    yield AcceptanceLine(
        figure="imbalance of opponents by chance", value=float(np.mean(chance)), at_least=0.25, negative=True,
        seeds=len(seeds),
    )  # fmt: skip


def newcomers(seeds: range) -> Iterator[AcceptanceLine]:
    """Log-loss of the predictions for new players, with a deviation and without."""
    worlds = [PlayerWorld(players=SETTLED + NEW, seed=seed) for seed in seeds]
    with cpu_seconds() as spent:
        runs = [first_games(world, SYSTEM) for world in worlds]
    losses = {"WengLin": [float(np.mean(run[0])) for run in runs], "known": [float(np.mean(run[1])) for run in runs]}
    losses["Elo"] = [float(first_games(world, Elo())[0].mean()) for world in worlds]
    excess = {name: np.array(losses[name]) - np.array(losses["known"]) for name in ("WengLin", "Elo")}
    yield AcceptanceLine(
        figure="new players, log-loss of 10 games above that of the true skills", value=float(excess["WengLin"].mean()),
        at_most=0.125, seeds=len(seeds), cpu_s=spent.spent,
        words=f"nats, worst seed {excess['WengLin'].max():.3f}; true skills {np.mean(losses['known']):.3f}",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="new players, the same of Elo without a deviation", value=float(excess["Elo"].mean()), at_least=0.135,
        negative=True, seeds=len(seeds),
        words=f"above the others' in {int((excess['Elo'] > excess['WengLin']).sum())} of {len(seeds)} seeds",
    )  # fmt: skip


def one_queue(seed: int, seconds: int) -> tuple[list[float], list[float]]:
    """Waits of parties in seconds, and expected imbalances of matches, in a queue with an arrival a second."""
    world, clock = PlayerWorld(players=5000, seed=seed), SimulatedClock()
    line = MatchQueue(clock=clock, rules=PairingRules(team_size=3, max_wait_s=30.0))
    ratings = {name: Rating(25 + 25 / 3 * skill, 2.0) for name, skill in zip(world.names, world.skills, strict=True)}
    random, free = generator(seed, "arrivals"), iter(world.names)
    waits, gaps = list[float](), list[float]()
    for _ in range(seconds):
        for size in random.choice([1, 2, 3], int(random.poisson(1.0)), p=[0.7, 0.2, 0.1]).tolist():
            near = {region: float(random.uniform(0.02, 0.16)) for region in ("west", "east")}
            line.join([next(free) for _ in range(size)], near)
        for number in line.offer(ratings):
            match = line.start(number)
            gaps.append(match.imbalance)
            waits += [clock.time_s - party.since_s for team in match.teams for party in team]
        clock.time_s += 1.0
    return waits, gaps


def queue_waits(seeds: range, seconds: int) -> Iterator[AcceptanceLine]:
    """Waits of a queue of teams of three: parties of one to three, two regions."""
    with cpu_seconds() as spent:
        runs = [one_queue(seed, seconds) for seed in seeds]
    waits, gaps = (np.concatenate([run[k] for run in runs]) for k in (0, 1))
    yield AcceptanceLine(
        figure="wait in a queue of teams of three, 95th percentile, s", value=float(np.quantile(waits, 0.95)),
        at_most=30.0, seeds=len(seeds), cpu_s=spent.spent,
        words=f"{len(waits)} parties, median {np.median(waits):.0f} s; expected imbalance {np.mean(gaps):.3f}",
    )  # fmt: skip


def smurf_hunt(seeds: range, *, fast: bool) -> Iterator[AcceptanceLine]:
    """Strong players under new names: found within 10 games of theirs, and how many others are suspected."""
    found = suspected = everybody = 0
    with cpu_seconds() as spent:
        for seed in seeds:
            world, pairs, scores = PlayerWorld(players=300, seed=seed, smurfs=15), list[Any](), list[Floats]()
            for turn in range(25):
                pairs.append(permutation(seed, "settle", turn, count=200).reshape(-1, 2))
                scores.append(played(world, pairs[-1], 150 * turn))
            caught: set[int] = set()
            for turn in range(10):  # the hundred new names, of which 15 are smurfs, are paired by skill like all
                ratings = fit_ratings(SYSTEM, 300, np.concatenate(pairs), np.concatenate(scores))
                pairs.append(skill_pairs(world, ratings, SYSTEM))
                scores.append(played(world, pairs[-1], 150 * (25 + turn)))
                ratings = fit_ratings(SYSTEM, 300, np.concatenate(pairs), np.concatenate(scores))
                rows = [
                    RatedPlayer(name=str(k), rating=Rating(*row), games=turn + 1 + 25 * (k < 200))
                    for k, row in enumerate(ratings.tolist())
                ]
                caught |= {int(name) for name in suspected_smurfs(rows)}
            found += sum(k >= 285 for k in caught)
            honest = [k for k in range(200, 285) if world.skills[k] < 1.28]
            suspected += sum(k in caught for k in honest)
            everybody += len(honest)
    yield AcceptanceLine(
        figure="smurfs found within 10 games", value=found / (15 * len(seeds)),
        at_least=0.75 if fast else 0.85, seeds=len(seeds),
        cpu_s=spent.spent, words="15 smurfs two to three deviations above the mean, among 100 new names; wider if fast",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="new players below the best tenth that are suspected", value=suspected / everybody, at_most=0.05,
        seeds=len(seeds), words=f"{suspected} of {everybody}",
    )  # fmt: skip


Chooser = Callable[[LevelWorld, int, int], int]


def sessions(world: LevelWorld, kind: str, players: int, rounds: int) -> tuple[Floats, Floats]:
    """Distances from the target `[players, rounds]`, and rounds `[players]` until each one leaves for good."""
    game, errors, stays = Difficulty(seed=world.seed), np.zeros((players, rounds)), np.full(players, float(rounds))
    for player in range(players):
        level, streak = world.levels // 2, 0
        for number in range(rounds):
            if kind == "adaptive":
                level = game.choose(str(player), round=number).action
            errors[player, number] = abs(world.chance(player, level, number) - world.target)
            passed, left = world.plays(player, level, number)
            if left:
                stays[player] = min(stays[player], number + 1)
            if kind == "adaptive":
                game.record(str(player), level, passed=passed)
            elif kind == "staircase":  # up after two passes, down after a failure
                streak = streak + 1 if passed else 0
                step = -1 if not passed else streak == 2
                streak = 0 if streak == 2 else streak
                level = min(max(level + int(step), 0), world.levels - 1)
    return errors, stays


def difficulty(seeds: range, players: int, rounds: int = 100) -> Iterator[AcceptanceLine]:
    """Levels at 65%: distance of the true chance from the target after 20 rounds; retention beside the middle level."""
    worlds = [LevelWorld(levels=21, seed=seed, learning=0.002) for seed in seeds]
    results: dict[str, list[tuple[Floats, Floats]]] = {}
    with cpu_seconds() as spent:
        for kind in ("adaptive", "staircase", "fixed"):
            results[kind] = [sessions(world, kind, players, rounds) for world in worlds]
    errors = {kind: [float(run[0][:, 20:].mean()) for run in runs] for kind, runs in results.items()}
    yield AcceptanceLine(
        figure="difficulty, distance from 65% after 20 rounds", value=float(np.mean(errors["adaptive"])), at_most=0.08,
        seeds=len(seeds), cpu_s=spent.spent,
        words=f"{players} players, worst seed {max(errors['adaptive']):.3f}; "
        f"a staircase {np.mean(errors['staircase']):.3f}",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="difficulty, distance of the middle level for all", value=float(np.mean(errors["fixed"])), at_least=0.15,
        negative=True, seeds=len(seeds),
    )  # fmt: skip
    gains = np.concatenate([a[1] - f[1] for a, f in zip(results["adaptive"], results["fixed"], strict=True)])
    low = float(gains.mean() - 1.645 * gains.std(ddof=1) / math.sqrt(len(gains)))
    stays = {kind: float(np.mean([run[1].mean() for run in runs])) for kind, runs in results.items()}
    yield AcceptanceLine(
        figure="retention, lower 95% limit of the rounds gained over the middle level", value=low, at_least=0.0,
        seeds=len(seeds),
        words=f"{len(gains)} players, paired; rounds until they leave {stays['adaptive']:.1f} and {stays['fixed']:.1f}",
    )  # fmt: skip


def connect_four(seeds: range, games: int) -> Iterator[AcceptanceLine]:
    """Order of MCTS players of 1 to 128 simulations, found again from 240 games."""
    if find_spec("pyspiel") is None:
        print("connect four: left out, OpenSpiel is not installed (pip install open-spiel)", flush=True)
        return
    agreements: list[float] = []
    with cpu_seconds() as spent:
        for seed in seeds:
            random, pairs, scores = generator(seed, "connect four"), list[Any](), list[float]()
            for number in range(games):
                one, other = random.choice(8, 2, replace=False).tolist()
                pairs.append([one, other])
                scores.append(game_of_mcts(2**one, 2**other, 1000 * seed + number))
            ratings = fit_ratings(SYSTEM, 8, np.array(pairs), np.array(scores))
            agreements.append(rank_agreement(ratings[:, 0], np.arange(8.0)))
    yield AcceptanceLine(
        figure="Connect Four, rank correlation of ratings and simulations", value=float(np.mean(agreements)),
        at_least=0.95, seeds=len(seeds), cpu_s=spent.spent,
        words=f"8 MCTS players of 1 to 128 simulations, {games} games, worst seed {min(agreements):.3f}",
    )  # fmt: skip


def game_of_mcts(one: int, other: int, seed: int) -> float:
    """Score of an MCTS player with `one` simulations who moves first, against one with `other`."""
    library: Any = importlib.import_module("pyspiel")  # an extra
    game = library.load_game("connect_four")
    evaluator = library.RandomRolloutEvaluator(1, seed)
    bots = [
        library.MCTSBot(game, evaluator, 2.0, simulations, 1, False, seed + place, False)
        for place, simulations in enumerate((one, other))
    ]
    state = game.new_initial_state()
    while not state.is_terminal():
        state.apply_action(bots[state.current_player()].step(state))
    return (float(state.returns()[0]) + 1) / 2


def speed(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Processor time of a pairing and of a rating."""
    world = PlayerWorld(players=300, seed=SEED)
    ratings = as_rows(WengLin(), 300) + np.stack([world.skills * 8, np.zeros(300), np.zeros(300)], axis=1)
    by_name = {name: Rating(*row) for name, row in zip(world.names, ratings.tolist(), strict=True)}
    waits = generator(SEED, "waits").uniform(0, 30, 300).tolist()
    waiting = [WaitingParty(players=(name,), since_s=-wait) for name, wait in zip(world.names, waits, strict=True)]
    pair(waiting, by_name, now_s=0.0)
    spent: list[float] = []
    for _ in range(7):
        with cpu_seconds() as one:
            pair(waiting, by_name, now_s=0.0)
        spent.append(one.spent)
    yield AcceptanceLine(
        figure="pairing of 300 players in time, CPU ms", value=1e3 * float(np.median(spent)),
        at_most=50 * slack(fast=fast),
    )  # fmt: skip
    system, teams = WengLin(), [[Rating(25, 4)], [Rating(28, 5)]]
    rounds = min(timeit.repeat(lambda: system.rate(teams, (1, 2)), number=2000, repeat=3, timer=_cpu)) / 2000
    yield AcceptanceLine(figure="rating of a game, us", value=1e6 * rounds, at_most=50 * slack(fast=fast))


def _cpu() -> float:
    import time  # noqa: PLC0415

    return time.process_time()


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """All figures."""
    seeds = range(SEED, SEED + (4 if fast else 10))
    yield from newcomers(seeds)
    yield from queue_waits(seeds, 200 if fast else 1200)
    yield from balance(seeds)
    yield from smurf_hunt(seeds, fast=fast)
    yield from difficulty(seeds[:3] if fast else seeds, 40)
    yield from connect_four(range(SEED, SEED + (1 if fast else 5)), 240)
    yield from speed(fast=fast)


def peers() -> Iterator[Row]:
    """openskill's Plackett-Luce and Thurstone-Mosteller on the same games of two players and of teams with draws."""
    python, script = require_peer("openskill"), Path(__file__).resolve().parents[1] / "openskill_peer.py"
    for name, form, teams in (
        ("logistic", "logistic", 1),
        ("normal", "normal", 1),
        ("logistic, teams of 3", "logistic", 3),
    ):
        own: list[float] = []
        games: list[list[Any]] = []
        for seed in range(SEED, SEED + 5):
            games.append(peer_games(seed, teams))
            own.append(log_loss(games[-1], WengLin(form=form)))  # type: ignore[arg-type]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "games.json"
            path.write_text(json.dumps(games), encoding="utf-8")
            answer = subprocess.run(
                [str(python), str(script), str(path), form], check=True, capture_output=True, text=True
            ).stdout
        other = json.loads(answer)
        difference = float(np.mean(own) - np.mean(other["losses"]))
        yield Row(
            row=f"log-loss, {name}: worst seed {max(own):.4f}", value=float(np.mean(own)), unit="nats", seeds=5,
            peer=other["version"], peer_value=float(np.mean(other["losses"])),
            ratio=float(np.mean(own) / np.mean(other["losses"])), bar="the peer's + 0.005", met=difference <= 0.005,
        )  # fmt: skip


def peer_games(seed: int, size: int) -> list[Any]:
    """3,000 games of two teams of 90 players: `[team, team, score of the first]`."""
    world, random = PlayerWorld(players=90, seed=seed), generator(seed, "peer games", size)
    games: list[Any] = []
    for number in range(3000):
        chosen = random.choice(90, 2 * size, replace=False).tolist()
        one, other = chosen[:size], chosen[size:]
        games.append([one, other, int(world.wins(tuple(one), tuple(other), number))])
    return games


def log_loss(games: Sequence[Any], system: WengLin) -> float:
    """Mean log-loss of the predictions before each game, after the first 1,000."""
    ratings, losses = [system.initial] * 90, list[float]()
    for number, (one, other, won) in enumerate(games):
        teams = [[ratings[player] for player in team] for team in (one, other)]
        p = system.expected_score(teams[0], teams[1])
        if number >= 1000:
            losses.append(-math.log(p if won else 1 - p))
        after = system.rate(teams, (0, 1) if won else (1, 0))
        for team, rated in zip((one, other), after, strict=True):
            for player, rating in zip(team, rated, strict=True):
                ratings[player] = rating
    return float(np.mean(losses))
