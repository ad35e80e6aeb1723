"""Evaluation by matches: the policy in every seat against each of a list of players, with intervals; and the gate.

Matches of one evaluation have seeds of their own, and the policy takes the seats in turn. A match scores 1 for a win,
1/2 for a draw and 0 for a loss; its return is what the policy's seat was paid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.control.job import ControlEvaluationConfig
from hone.control.networks.numpy_policies import NumpyPolicy
from hone.control.seats.game import Array, SeatGame
from hone.control.seats.matches import RunningMatch, SeatLayout, next_turn, run_game_code
from hone.control.seats.opponents import GateConfig, match_scores
from hone.control.seats.players import Player, PolicyPlayer
from hone.core.credit import Metrics
from hone.core.random import generator, key
from hone.estimators.means import Estimate, mean_interval

Floats = NDArray[np.float64]
_TOGETHER = 64
"""Matches that are played at one time."""


class SeatsEvaluationConfig(ControlEvaluationConfig):
    """Matches against other players."""

    episodes: int = Field(default=200, ge=1)
    """Matches of an evaluation against each player, in every seat alike."""
    against: list[str] | None = None
    """Players: `random`, `mcts:SIMULATIONS`, `file.py:function`, the folder of a policy or of a run; an empty list: the
    policy plays every seat. Unset: `random` where there are `opponents`, otherwise an empty list."""
    sample: bool = False
    """Draw the policy's actions from its probabilities; otherwise it takes the likeliest one. A game of hidden
    information wants the former."""
    nash_conv: bool = False
    """Compute how much all players together could gain by the best answers (NashConv), for the policy and for the mean
    of the pool; for small games of OpenSpiel, such as Kuhn and Leduc poker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """Games in which policies are evaluated."""

    games: Sequence[SeatGame]
    """As many as are played at one time."""
    layout: SeatLayout
    max_steps: int
    """Steps of a match after which it is truncated."""

    def play(self, seating: Sequence[Sequence[Player]], *, seed: int) -> Floats:
        """Returns `[n, S]` of n matches, of which `seating` `[n, S]` names the players. Raises UserCodeError."""
        return run_game_code("evaluation", lambda: self._play(seating, seed))

    def _play(self, seating: Sequence[Sequence[Player]], seed: int) -> Floats:
        returns = np.zeros((len(seating), len(self.layout.seats)))
        waiting, running = list(range(len(seating)))[::-1], list[RunningMatch]()

        def begin(match: RunningMatch) -> None:
            if waiting:
                number = waiting.pop()
                match.begin(number, key(seed, "evaluation", number) & 0x3FFFFFFF, ())
                running.append(match)

        for game in self.games:
            begin(RunningMatch(game=game, layout=self.layout, max_steps=self.max_steps))
        tick = 0
        while running:
            tick += 1
            turn, places = next_turn(running)
            players = [seating[running[match].number][seat] for match, seat in places]
            # The action of each decision of `turn`, by its player: one call of each.
            draws = generator(seed, "evaluation moves", tick)
            chosen: dict[int, Array] = {}
            for player in dict.fromkeys(players):
                rows = np.array([row for row, one in enumerate(players) if one is player])
                chosen |= dict(zip(rows.tolist(), player.choose(turn.take(rows), draws), strict=True))
            moves = iter([chosen[row] for row in range(len(players))])
            for match in list(running):
                match.play({seat: next(moves) for seat in match.movers})
                if not match.movers:
                    returns[match.number] = match.returns
                    running.remove(match)
                    begin(match)
        return returns


def open_arena(make: Callable[[], SeatGame], layout: SeatLayout, *, matches: int, max_steps: int) -> Arena:
    """Games for so many matches, of which a few are played at one time."""
    games = [make() for _ in range(min(matches, _TOGETHER))]
    return Arena(games=games, layout=layout, max_steps=max_steps)


def evaluate_policy(
    policy: NumpyPolicy | Player, arena: Arena, players: dict[str, Player], config: SeatsEvaluationConfig, *, seed: int
) -> tuple[Estimate, Metrics]:
    """Evaluate a policy, or a player that searches with one, against each of `players`; without any, it plays every
    seat.

    Returns the estimate of the score against the first player, or of the mean return over seats, and the metrics
    `eval/PLAYER/score`, `/low`, `/high`, `/return` and, by seat, `/seat0/score` ...
    """
    mine = policy if isinstance(policy, Player) else PolicyPlayer(policy, greedy=not config.sample)
    seats, count = len(arena.layout.seats), config.episodes
    mine_at = [match % seats for match in range(count)]
    estimates: list[Estimate] = []
    metrics: Metrics = {"eval/episodes": float(count)}
    for reference, other in players.items():
        returns = arena.play([[mine if seat == own else other for seat in range(seats)] for own in mine_at], seed=seed)
        scores = np.array([match_scores(row, own) for row, own in zip(returns, mine_at, strict=True)])
        own, name = mean_interval(scores), Path(reference).name.replace(":", "_")
        estimates.append(own)
        metrics |= {f"eval/{name}/score": own.mean, f"eval/{name}/low": own.low, f"eval/{name}/high": own.high}
        metrics[f"eval/{name}/return"] = float(returns[np.arange(count), mine_at].mean())
        for seat in range(min(seats, count)):
            part = mean_interval(scores[seat::seats])
            metrics |= {
                f"eval/{name}/seat{seat}/score": part.mean,
                f"eval/{name}/seat{seat}/low": part.low,
                f"eval/{name}/seat{seat}/high": part.high,
            }
    if not players:
        returns = arena.play([[mine] * seats] * count, seed=seed)
        estimates.append(mean_interval(returns.mean(axis=1)))
        metrics |= {f"eval/seat{seat}/return": float(returns[:, seat].mean()) for seat in range(seats)}
    first = estimates[0]
    return first, {"eval/score": first.mean, "eval/low": first.low, "eval/high": first.high, **metrics}


def gate_evidence(
    arena: Arena, new: Player, champion: Player, gate: GateConfig, e_values: Callable[[Floats], Floats], *, seed: int
) -> float:
    """Largest e-value of the hypothesis that `new` is no better than `champion`, over matches of two seats.

    A pair of matches, one in each seat, scores the mean of 2 s - 1 in [-1, 1], whose mean is at most 0 under it;
    `e_values` maps the scores so far to the log e-value after each. Stops at 1/alpha, after `gate.matches` at most.
    """
    scores: list[float] = []
    seating, best = [[new, champion], [champion, new]], 0.0
    while 2 * len(scores) + 2 <= gate.matches and best < 1 / gate.alpha:
        rounds = min(16, gate.matches // 2 - len(scores))
        returns = arena.play(seating * rounds, seed=key(seed, "gate", len(scores)))
        won = [match_scores(row, place % 2) for place, row in enumerate(returns)]
        scores += (2 * np.reshape(won, (rounds, 2)).mean(axis=1) - 1).tolist()
        best = float(np.exp(np.minimum(e_values(np.array(scores)).max(), 700.0)))
    return best
