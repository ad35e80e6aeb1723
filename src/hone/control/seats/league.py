"""Leagues: a population of frozen policies, whom the learners meet, and what the population is worth.

*Main* is the policy that is released. *Exploiters* learn against the present main alone, join the population and begin
anew (Vinyals et al., 2019). *Members* are frozen: snapshots of both, and anchors, which never learn. A new member plays
every other one; the table of payoffs gives the equilibrium of the population (the Nash mixture; Lanctot et al., 2017),
ratings with their deviations, and the opponents of the next matches.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from hone.control import on_policy
from hone.control.acting import predict_values
from hone.control.job import control_job
from hone.control.networks.actor_critic import ActorCritic, ControlPolicy
from hone.control.networks.mlp import DiscreteActions
from hone.control.rows import StepRows, step_rows
from hone.control.seats.adapters import game_maker
from hone.control.seats.compiled_games import game_tree
from hone.control.seats.evaluation import open_arena
from hone.control.seats.exploitability import infoset_probabilities
from hone.control.seats.league_page import EXPLOITABILITY, write_league_page
from hone.control.seats.match_log import MatchLog
from hone.control.seats.match_source import MatchSource, WorkersConfig, open_runner
from hone.control.seats.matches import SeatLayout
from hone.control.seats.opponents import EXPLOITER, OpponentPool, PastOpponents, match_scores, pfsp_weights
from hone.control.seats.players import Player, PolicyPlayer
from hone.control.seats.training import NamedPlayers, SeatsRunConfig, apart_by, seats_scorer, snapshot_gate
from hone.control.seats.tree_play import TreePlay
from hone.control.seats.world import LEARNER, SeatWorld, open_seat_world
from hone.control.spaces import gaussian_spaces
from hone.core.config import new_default
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.core.random import key, uniforms
from hone.core.state import State, array, integer, substate
from hone.estimators.ratings import WengLin, nash_mixture, rate_games
from hone.learner.gradient import GradientLearner
from hone.run.job import OpenedRun, TrainingJob, opened_run
from hone.run.loop import Recipe, Source
from hone.sources.asynchronous import AsyncSource

Floats = NDArray[np.float64]
RATINGS: Final = WengLin()
_SHARPNESS: Final = {"main": 1.0, "nash": 50.0}
"""Factor of the logits of an exploiter that joins the population."""
Duel = Callable[[Player, Player, int], tuple[Floats, Floats]]
"""Two players and a number that seeds their matches -> scores and returns of the first, in every seat alike."""


class LeagueOpponents(PastOpponents):
    """The population, and whom main meets."""

    kind: Literal["league"] = "league"  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Names this alternative."""
    matchmaking: Literal["pfsp", "nash", "uniform", "latest"] = "pfsp"
    """Members that main meets: `pfsp`, by (1 - p)^2 with the chance p to beat them; `nash`, by the equilibrium of the
    payoffs; `uniform`; `latest`, the newest one alone."""
    exploiters: int = Field(default=1, ge=0, le=8)
    """Policies that learn to beat the present main, or the population."""
    exploiters_meet: Literal["main", "nash"] = "main"
    """Opponents of the exploiters: the present main, or members by the equilibrium of the payoffs. An exploiter then
    learns a best response to the equilibrium (policy-space response oracles; Lanctot et al., 2017), and joins nearly
    as its mode, as best responses are pure."""
    payoffs: Literal["score", "return", "exact"] = "score"
    """Payoffs whose equilibrium is taken: `score` (won, drawn or lost), `return` (the payments, where matches are won
    by more or less, as in poker), or `exact`, the expected returns from the whole tree of Kuhn or Leduc poker."""
    reset_every: int = Field(default=20, ge=1)
    """Iterations after which an exploiter joins the population, and begins anew."""
    payoff_matches: int = Field(default=32, ge=2)
    """Matches of a new member with each other one."""
    anchors: list[str] = ["random"]
    """Members that never learn, so that the ratings of several runs compare: players as in `evaluation.against`."""


@dataclass(kw_only=True)
class PayoffTable:
    """Matches between members of a population, by their names."""

    names: list[str] = field(default_factory=list[str])
    pairs: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """`[M, 2]` places in `names`."""
    scores: Floats = field(default_factory=lambda: np.zeros(0))
    """`[M]` of the first of each pair."""
    returns: Floats = field(default_factory=lambda: np.zeros(0))
    """`[M]` of the first of each pair, against the other's, which is as much less than 0."""

    def record(self, one: str, other: str, scores: Floats, returns: Floats | None = None) -> None:
        """Take note of matches between two members; without `returns` each was for 1."""
        self.names += [name for name in (one, other) if name not in self.names]
        pair = [[self.names.index(one), self.names.index(other)]] * len(scores)
        self.pairs = np.concatenate([self.pairs, np.array(pair, np.int64).reshape(-1, 2)])
        self.scores = np.concatenate([self.scores, scores])
        self.returns = np.concatenate([self.returns, 2 * scores - 1 if returns is None else returns])

    def matrix(self, names: Sequence[str]) -> Floats:
        """`[n, n]` mean score of each of `names` against each other; 1/2 where two have not met."""
        return 0.5 + 0.5 * self.mean_returns(names, 2 * self.scores - 1)

    def mean_returns(self, names: Sequence[str], returns: Floats) -> Floats:
        """`[n, n]` mean of the returns `[M]` of each of `names` against each other; 0 where two have not met."""
        size = len(self.names)
        both = np.concatenate([self.pairs, self.pairs[:, ::-1]])
        cells, paid = both[:, 0] * size + both[:, 1], np.concatenate([returns, -returns])
        played = np.bincount(cells, minlength=size * size)
        total = np.bincount(cells, paid, minlength=size * size)
        means = np.where(played > 0, total / np.maximum(played, 1), 0.0).reshape(size, size)
        places = [self.names.index(name) for name in names]
        return means[np.ix_(places, places)]

    def mixture(self, names: Sequence[str], *, by_score: bool = True) -> Floats:
        """`[n]` equilibrium weights of `names` in the game of choosing one of them, by 2 * score - 1 or by returns."""
        return nash_mixture(self.mean_returns(names, 2 * self.scores - 1 if by_score else self.returns)).row

    def ratings(self) -> Floats:
        """`[P, 3]` Weng-Lin ratings of all members, after all matches in their order."""
        fresh = np.tile(np.array(RATINGS.initial, np.float64), (len(self.names), 1))
        return rate_games(RATINGS, fresh, self.pairs, self.scores)

    def state(self) -> State:
        return {
            "names": list(self.names), "pairs": self.pairs.copy(), "scores": self.scores.copy(),
            "returns": self.returns.copy(),
        }  # fmt: skip

    def restore(self, state: State) -> None:
        names = state["names"]
        assert isinstance(names, list)
        self.names, self.pairs = [str(name) for name in names], array(state, "pairs").astype(np.int64)
        self.scores = array(state, "scores").astype(np.float64)
        earlier = "returns" not in state  # saved before there were returns
        self.returns = 2 * self.scores - 1 if earlier else array(state, "returns").astype(np.float64)


@dataclass(kw_only=True)
class LeaguePool(OpponentPool):
    """Draws opponents from the population, takes new members, and keeps their payoffs."""

    rules: LeagueOpponents
    duel: Duel
    anchors: Mapping[str, Player]
    table: PayoffTable = field(default_factory=PayoffTable)
    log: MatchLog | None = None
    exploiters: "dict[int, Exploiter]" = field(default_factory=dict[int, "Exploiter"])
    """By role, from 1 on."""
    renewed: int = 0
    """Version at which exploiters last joined the population."""
    solved: tuple[tuple[str, ...], int, Floats] = ((), 0, np.zeros(0))
    """Members and number of matches whose equilibrium is known, and its weights."""
    exploited: list[float] = field(default_factory=list[float])
    """Scores of exploiters since they were told."""

    def draw(self, match: int) -> Sequence[int]:
        """Main against itself or a member; in the other matches, each exploiter in turn against main or a member."""
        number, role = divmod(match, 1 + self.rules.exploiters)
        seat = number % self.seats
        chance, pick = uniforms(self.seed, "opponents", match, count=2)
        meets_main = self.rules.exploiters_meet == "main" if role else chance < self.rules.latest
        other = LEARNER
        if self.snapshots and not meets_main:
            below = np.cumsum(self.member_weights() if role else self._weights()) <= pick
            other = self.snapshots[min(int(below.sum()), len(self.snapshots) - 1)].version
        return [LEARNER - role if place == seat else other for place in range(self.seats)]

    def _weights(self) -> Floats:
        count = len(self.snapshots)
        if self.rules.matchmaking == "pfsp":
            return pfsp_weights(np.array([snapshot.chance for snapshot in self.snapshots]), "hard")
        if self.rules.matchmaking == "nash":
            return self.member_weights()
        return np.eye(count)[-1] if self.rules.matchmaking == "latest" else np.full(count, 1 / count)

    def record(self, players: Sequence[int], returns: Floats) -> None:
        """Take note of a match of main with a member, or of an exploiter."""
        lowest = min(players)
        if lowest < LEARNER:
            self.exploited.append(match_scores(returns, list(players).index(lowest)))
        else:
            super().record(players, returns)

    def consider(self, policy: ControlPolicy, version: int) -> None:
        """Take a snapshot of main, when it is time and it passes the gate, and measure it."""
        before = set(self.digests)
        super().consider(policy, version)
        for number in set(self.digests) - before:
            self._measure(number, version)
        if version > self.renewed and version % self.rules.reset_every == 0:
            self.renewed = version
            for role, exploiter in self.exploiters.items():
                number = role * EXPLOITER + version
                self.add(exploiter.sharpened(_SHARPNESS[self.rules.exploiters_meet]), number)
                self._measure(number, version)
                exploiter.begin_anew()

    def _measure(self, number: int, version: int) -> None:
        """Let a new member play every other one, and write what follows from the payoffs."""
        name, mine = member_name(number), self.player(number)
        others = dict(self.anchors)
        self.table.record(name, name, np.zeros(0))  # the first one has nobody to play
        for other in [one.version for one in self.snapshots if one.version != number]:
            try:
                others[member_name(other)] = self.player(other)
            except DataError as error:
                self.retire(other, "; ".join(error.messages))
        for other, player in others.items():
            self.table.record(name, other, *self.duel(mine, player, len(self.table.scores)))
        if self.log is None:
            return
        members = [member_name(snapshot.version) for snapshot in self.snapshots]
        every = [*self.anchors, *members]
        matrix, ratings = self.table.matrix(every), self.table.ratings()
        kind = "exploiter" if number >= EXPLOITER else "main"
        self.log.add("members", [(name, version, kind)])
        row = matrix[every.index(name)].tolist() if name in every else []
        self.log.add("payoffs", [(version, name, other, score) for other, score in zip(every, row, strict=bool(row))])
        weights = zip(members, self.member_weights().tolist(), strict=True)
        self.log.add("weights", [(version, *pair) for pair in weights])
        rows = zip(self.table.names, ratings[:, :2].tolist(), strict=True)
        self.log.add("ratings", [(version, one, *rating) for one, rating in rows])

    def member_weights(self) -> Floats:
        """Equilibrium weights of the snapshots; solved again only where members or payoffs have changed."""
        names = tuple(member_name(snapshot.version) for snapshot in self.snapshots)
        if self.solved[:2] != (names, len(self.table.scores)):
            weights = self.table.mixture(names, by_score=self.rules.payoffs == "score")
            self.solved = (names, len(self.table.scores), weights)
        return self.solved[2]

    def metrics(self) -> Metrics:
        exploited, self.exploited = self.exploited, []
        more: Metrics = {"league/exploiter_score": float(np.mean(exploited))} if exploited else {}
        return {**super().metrics(), **more}

    def state(self) -> State:
        return {**super().state(), "table": self.table.state(), "renewed": self.renewed}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.table.restore(substate(state, "table"))
        self.renewed = integer(state, "renewed")


def member_name(number: int) -> str:
    """Name of a snapshot in tables: `main 40`, `exploiter 60`."""
    role, version = divmod(number, EXPLOITER)
    return f"exploiter{role} {version}" if role else f"main {version}"


@dataclass
class Exploiter:
    """An exploiter's learner, with the state that it begins with."""

    learner: GradientLearner[ActorCritic, StepRows]

    def __post_init__(self) -> None:
        self.first = self.state()

    @property
    def policy(self) -> ActorCritic:
        """Its present policy."""
        return self.learner.policy

    def sharpened(self, factor: float) -> ActorCritic:
        """A copy whose logits are `factor` times as large."""
        policy = copy.deepcopy(self.policy)
        with torch.no_grad():
            for parameter in policy.actor.layer_parameters[-1]:
                parameter.mul_(factor)
        return policy

    def begin_anew(self) -> None:
        """Go back to the first weights, and forget all steps."""
        self.restore(self.first)

    def state(self) -> State:
        tensors = self.policy.state_dict()
        weights: State = {name: value.detach().cpu().numpy().copy() for name, value in tensors.items()}
        return {"learner": self.learner.state(), "weights": weights}

    def restore(self, state: State) -> None:
        weights = substate(state, "weights")
        self.policy.load_state_dict({name: torch.from_numpy(array(weights, name).copy()) for name in weights})
        self.learner.restore(substate(state, "learner"))


@dataclass(kw_only=True)
class LeagueLearner:
    """Main's learner, and one for each exploiter; each learns from its own episodes."""

    learners: Mapping[int, GradientLearner[ActorCritic, StepRows]]
    """By the numbers of the players: -1 is main."""
    pool: LeaguePool

    def __post_init__(self) -> None:
        exploiters = {number: one for number, one in self.learners.items() if number != LEARNER}
        self.pool.exploiters = {LEARNER - number: Exploiter(one) for number, one in exploiters.items()}

    @property
    def policy(self) -> ActorCritic:
        """Main."""
        return self.learners[LEARNER].policy

    def values(self, episodes: Episodes) -> Values:
        """Each critic's values of the episodes of its policy."""
        value, final = np.zeros(episodes.decisions, np.float32), np.zeros(len(episodes), np.float32)
        for number, index in self._own(episodes):
            own = self.learners[number].values(episodes.take(index))
            if own is NO_VALUES:
                return NO_VALUES
            value[np.isin(episodes.owner, index)], final[index] = own.value, own.final
        return Values(value=value, final=final)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """One update of each learner; returns main's metrics."""
        metrics: Metrics = {}
        for number, index in self._own(episodes):
            rows = np.isin(episodes.owner, index)
            own = Credits(
                advantage=credits.advantage[rows],
                target=None if credits.target is None else credits.target[rows],
                metrics=credits.metrics,
            )
            latest = self.learners[number].update(episodes.take(index), own)
            metrics = latest if number == LEARNER else metrics
        return metrics

    def _own(self, episodes: Episodes) -> list[tuple[int, Ints]]:
        """The episodes of each learner, main's first."""
        assert episodes.played_by is not None
        parts = [(number, np.flatnonzero(episodes.played_by == number)) for number in sorted(self.learners)[::-1]]
        return [(number, index) for number, index in parts if len(index)]

    def state(self) -> State:
        exploiters: State = {str(role): one.state() for role, one in self.pool.exploiters.items()}
        return {"main": self.learners[LEARNER].state(), "exploiters": exploiters}

    def restore(self, state: State) -> None:
        self.learners[LEARNER].restore(substate(state, "main"))
        for role, one in self.pool.exploiters.items():
            one.restore(substate(substate(state, "exploiters"), str(role)))


# ------------------------------------------------------------------------------------------------------------------ run


class LeagueRunConfig(SeatsRunConfig):
    """A league over an on-policy recipe: its config comes after this one among the bases."""

    rollout_steps = new_default(1, "Whole matches, one after another, of each that is played together, per iteration.")
    league: LeagueOpponents = LeagueOpponents()
    """The population, and whom main meets."""
    workers: WorkersConfig = WorkersConfig()
    """Who plays the matches; with `algorithm.max_staleness` they play while the policies learn."""

    collects_ahead = True

    def open(self) -> OpenedRun:
        """Open and check the game, the anchors and the players of evaluations. Raises HoneError."""
        world = open_seat_world(self.env.model_copy(update={"num_envs": 1}), decisions=1, seed=self.seed)
        with contextlib.ExitStack() as on_fault:
            on_fault.callback(world.close)
            players = self._check(world)
            on_fault.pop_all()

        def build(config: LeagueRunConfig, world: SeatWorld) -> TrainingJob[Any]:
            return _league_job(config, world, players)

        return opened_run(world, build, warnings=world.warnings, close=world.close)

    def _faults(self, seats: Sequence[str]) -> Iterator[str]:
        yield from super()._faults(seats)
        if len(seats) != 2:
            yield f"{self.env.id} has {len(seats)} seats: payoffs of a league are of two"
        if self.opponents is not None:
            yield "opponents: a league has its own; give their keys to the table league"
        if self.env.sharing != "shared":
            yield 'a league needs one policy for every seat: set env.sharing = "shared"'
        normalise = self.method().normalise
        if normalise.observations or normalise.rewards:
            yield "algorithm.normalise: members of a league read observations as they are; leave it out"
        if self.league.payoffs == "exact" and self.env.id not in ("compiled:kuhn_poker", "compiled:leduc_poker"):
            yield (
                'league.payoffs = "exact" needs the whole tree of a game: compiled:kuhn_poker or compiled:leduc_poker; '
                f'{self.env.id} has none here: take "return"'
            )
        if self.central_critic:
            yield f"{self.recipe}: a league has no critic of the whole match"

    def players_of_opponents(self) -> list[str]:
        """Names of the members that never learn."""
        return self.league.anchors

    def players_of_evaluation(self) -> list[str]:
        """Names of the players that main is evaluated against; none: it plays every seat."""
        return ["random"] if self.evaluation.against is None else self.evaluation.against


def _league_learners(
    config: LeagueRunConfig, layout: SeatLayout, method: on_policy.OnPolicyMethod
) -> dict[int, GradientLearner[ActorCritic, StepRows]]:
    """Learners of main and of the exploiters, by their numbers as players."""
    space = gaussian_spaces(layout.policy_spaces, config.network)
    learners: dict[int, GradientLearner[ActorCritic, StepRows]] = {}
    for role in range(1 + config.league.exploiters):
        seed = key(config.seed, "exploiter", role) & 0x3FFFFFFF if role else config.seed
        policy = ActorCritic(space, config.network, seed=seed, critic=method.use_critic).to(config.run.device)
        inner = method.layout
        rows = partial(step_rows, device=config.run.device) if inner is None else partial(inner, policy)
        plain = isinstance(space.actions, DiscreteActions)
        parts = on_policy.PolicyParts(policy=policy, layout=rows, predict_values=predict_values, is_plain=plain)
        learners[LEARNER - role] = on_policy.on_policy_learner(config, method, parts)
    return learners


def _duel_of(config: LeagueRunConfig, layout: SeatLayout) -> Duel:
    """Matches of two members, as many in either seat; with exact payoffs their returns are the expected ones."""
    arenas = partial(open_arena, game_maker(config.env), layout, max_steps=config.env.max_match_steps)
    is_exact = config.league.payoffs == "exact"
    play = TreePlay(tree=game_tree(config.env.id.removeprefix("compiled:"))) if is_exact else None

    def duel(one: Player, other: Player, number: int) -> tuple[Floats, Floats]:
        count = 2 * (config.league.payoff_matches // 2)
        seating = [[one, other], [other, one]] * (count // 2)
        returns = arenas(matches=count).play(seating, seed=key(config.seed, "payoffs", number))
        scores = np.array([match_scores(row, place % 2) for place, row in enumerate(returns)])
        paid = np.array([(row[place % 2] - row[1 - place % 2]) / 2 for place, row in enumerate(returns)])
        if play is not None and isinstance(one, PolicyPlayer) and isinstance(other, PolicyPlayer):
            paid[:] = play.mean_return(*infoset_probabilities(play, layout, [one.policy, other.policy]))
        return scores, paid

    return duel


def _league_job(config: LeagueRunConfig, world: SeatWorld, players: NamedPlayers) -> TrainingJob[Any]:
    """Training job of a league: main, its exploiters, and the population."""
    layout, method = world.layout, config.method()
    learners, duel = _league_learners(config, layout, method), _duel_of(config, layout)
    pool = LeaguePool(
        seats=len(layout.seats),
        seed=config.seed,
        config=config.league,
        rules=config.league,
        gate=snapshot_gate(config, config.league, layout),
        duel=duel,
        anchors=players.opponents,
    )
    matches = MatchSource(
        runner=open_runner(config.env, config.seed, config.workers),
        seating=pool,
        pool=pool,
        learners={number: learner.policy for number, learner in learners.items()},
        matches=config.env.num_envs * config.rollout_steps,
        block=config.env.num_envs,
    )
    ahead = AsyncSource(matches, max_staleness=method.max_staleness, in_background=method.max_staleness > 0)
    source: Source[Any] = ahead if method.max_staleness else matches
    main = learners[LEARNER].policy
    recipe = Recipe(
        source=source,
        credit=apart_by(method.credit, played_by),
        learner=LeagueLearner(learners=learners, pool=pool),
    )
    job = control_job(recipe, env=None, evaluation=config.evaluation, seed=config.seed)

    def open_folder(folder: Path) -> None:
        matches.open_folder(folder)
        pool.log = matches.log

    def write_figures(metrics: Metrics) -> None:
        if pool.log is not None:
            named = {name.removeprefix("eval/"): value for name, value in metrics.items()}
            rows = [(matches.version, name, named[name]) for name in ("score", *EXPLOITABILITY) if name in named]
            pool.log.add("figures", rows)

    def closing_lines() -> list[str]:
        return [] if matches.folder is None else [f"league: {write_league_page(matches.folder)}"]

    def close() -> None:
        ahead.close()
        matches.close()

    def notices() -> list[str]:
        lines = [*job.pop_notices(), *pool.notices, *matches.runner.notices]
        pool.notices.clear()
        matches.runner.notices.clear()
        return lines

    score = seats_scorer(config, main, layout, players.evaluation, pool, on_metrics=write_figures)
    return replace(
        job, evaluate=score, warnings=world.warnings, pop_notices=notices, open_folder=open_folder,
        closing_lines=closing_lines, close=close,
    )  # fmt: skip


def played_by(episodes: Episodes) -> Ints:
    """The learner of each episode, as its number as a player."""
    assert episodes.played_by is not None
    return episodes.played_by.astype(np.int64)
