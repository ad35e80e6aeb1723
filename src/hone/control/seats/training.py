"""What the recipes over several seats share: config, source, opponents, evaluation, the job.

Belongs here: wiring of a `SeatWorld` to an on-policy method. Does not: any branch about which algorithm runs. A recipe
is the config of an on-policy recipe with `SeatsRunConfig` before it.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from hone.control import on_policy
from hone.control.acting import NetworkActor, predict_values
from hone.control.environments.world import VectorActor
from hone.control.job import control_job, updates_per_step
from hone.control.networks.actor_critic import ActorCritic, ControlPolicy
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.mlp import BoxActions, PolicySpaces
from hone.control.networks.numpy_policies import HasNumpyPolicy, NumpyPolicy
from hone.control.networks.seats import CentralActorCritic, SeatPolicies
from hone.control.normalise import with_normalisation
from hone.control.rows import step_rows
from hone.control.seats.adapters import game_maker
from hone.control.seats.evaluation import (
    Arena,
    Floats,
    SeatsEvaluationConfig,
    evaluate_policy,
    gate_evidence,
    open_arena,
)
from hone.control.seats.exploitability import nash_conv_metrics, require_small_game
from hone.control.seats.game import SeatsConfig, seat_groups
from hone.control.seats.matches import SeatLayout
from hone.control.seats.opponents import FixedOpponents, Gate, OpponentPool, OpponentsConfig, PastOpponents
from hone.control.seats.players import Player, open_player
from hone.control.seats.world import LEARNER, SeatWorld, open_seat_world
from hone.control.spaces import gaussian_spaces
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.ragged import Ints
from hone.core.random import key
from hone.core.state import State
from hone.run.job import EvaluationRequest, EvaluationResult, OpenedRun, RecipeParts, TrainingJob, opened_run
from hone.run.loop import Recipe, Source
from hone.sources.live import LiveSource

Credit = Callable[[Episodes, Values], Credits]


class _PlaysSeats(Protocol):
    """A config of matches: of policies that learn from rollouts, or of a team."""

    @property
    def env(self) -> SeatsConfig: ...

    @property
    def evaluation(self) -> SeatsEvaluationConfig: ...

    @property
    def seed(self) -> int: ...

    def players_of_evaluation(self) -> list[str]:
        """Names of the players that the policy is evaluated against; none: it plays every seat."""
        ...


class SeatsRunConfig(on_policy.OnPolicyRunConfig):
    """A policy, or several, that play the seats of a game and learn from each rollout."""

    env: SeatsConfig  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """The game, and the matches played together."""
    opponents: OpponentsConfig | None = None
    """Opponents of self-play; unset: the policy plays every seat, and is evaluated so."""
    evaluation: SeatsEvaluationConfig = SeatsEvaluationConfig()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """How the policy is evaluated."""

    collects_ahead: ClassVar[bool] = False
    """Whether matches may be collected while the policy learns."""
    central_critic: ClassVar[bool] = False
    """Whether the critic reads the state of the whole match."""
    e_values: ClassVar[Callable[[Floats], Floats] | None] = None
    """Scores in [-1, 1] -> log e-value after each, for the gate of snapshots."""

    def open(self) -> OpenedRun:
        """Open and check the game, its players and their fit to the config. Raises HoneError."""
        world = open_seat_world(self.env, decisions=self.batch, seed=self.seed, whole_state=self.central_critic)
        with contextlib.ExitStack() as on_fault:
            on_fault.callback(world.close)
            players = self._check(world)
            on_fault.pop_all()

        def build(config: SeatsRunConfig, world: SeatWorld) -> TrainingJob[Any]:
            return _seats_job(config, world, config.method(), players)

        return opened_run(world, build, warnings=world.warnings, close=world.close)

    def _check(self, world: SeatWorld) -> "NamedPlayers":
        """The players that the config names. Raises ConfigError with all faults at once."""
        game, layout = world.matches[0].game, world.layout
        faults = list(self._faults(layout.seats))
        named = NamedPlayers()
        evaluated = self.players_of_evaluation(), named.evaluation
        for names, players in ((self.players_of_opponents(), named.opponents), evaluated):
            for name in names:
                try:
                    players[name] = open_player(name, layout, game)
                except ConfigError as error:
                    faults.extend(error.messages)
        if self.evaluation.nash_conv:
            faults.extend(require_small_game(game))
        if faults:
            raise ConfigError(*faults)
        gaussian_spaces(layout.policy_spaces, self.network)
        return named

    def _faults(self, seats: Sequence[str]) -> Iterator[str]:
        """Keys that do not go with the game or with each other."""
        method, network, separate = self.method(), self.network, False
        try:
            separate = max(seat_groups(self.env.sharing, seats)) > 0
        except ValueError as error:
            yield str(error)
        if method.max_staleness and not self.collects_ahead:
            yield "algorithm.max_staleness: collecting ahead is for one agent; set it to 0"
        if network.memory is not None:
            yield "network.memory: policies of several seats have none; leave it out"
        if network.encoder != "auto" or network.encoders or network.module is not None:
            yield "network.encoder, encoders and module: observations of seats are flattened; leave them out"
        if separate and not method.use_critic:
            yield f'{self.recipe} without a critic needs env.sharing = "shared"'
        if separate and method.normalise.observations:
            yield 'algorithm.normalise.observations = true needs env.sharing = "shared"; set it to false'
        if self.opponents is not None and len(seats) < 2:
            yield f"opponents: {self.env.id} has one seat"
        if separate and self.opponents is not None and not isinstance(self.opponents, FixedOpponents):
            yield 'opponents need one policy for every seat: set env.sharing = "shared"'
        if isinstance(self.opponents, PastOpponents) and self.opponents.gate is not None and len(seats) != 2:
            yield f"opponents.gate: the test is for two seats, and {self.env.id} has {len(seats)}"

    @property
    def batch(self) -> int:
        """Decisions of the learner per iteration."""
        return self.env.num_envs * self.rollout_steps

    def players_of_opponents(self) -> list[str]:
        """Names of opponents that do not learn."""
        return self.opponents.players if isinstance(self.opponents, FixedOpponents) else []

    def players_of_evaluation(self) -> list[str]:
        """Names of the players that the policy is evaluated against; none: it plays every seat."""
        if self.evaluation.against is not None:
            return self.evaluation.against
        return [] if self.opponents is None else ["random"]

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        updates = self.learner.optimizer_steps(1)
        return {
            "decisions per iteration": f"{self.env.num_envs} matches x {self.rollout_steps} = {self.batch}",
            "decisions": f"{self.steps * self.batch}",
            "minibatch": f"about {self.batch // self.learner.minibatches} decisions",
            "optimizer steps": f"{self.learner.optimizer_steps(self.steps)}",
            "updates per environment step": updates_per_step(updates, self.batch),
            "evaluated against": ", ".join(self.players_of_evaluation()) or "itself in every seat",
        }

    @classmethod
    def parts(cls) -> RecipeParts:
        return on_policy.control_parts(cls.method, source="Live(seats)")


@dataclass(frozen=True, slots=True)
class NamedPlayers:
    """Players that a config names, opened."""

    opponents: dict[str, Player] = field(default_factory=dict[str, Player])
    evaluation: dict[str, Player] = field(default_factory=dict[str, Player])


# --------------------------------------------------------------------------------------------------------------- source


@dataclass(frozen=True, slots=True)
class LearnerSeats:
    """The episodes of a world that the learner played: those of frozen opponents do not reach it."""

    world: SeatWorld

    def rollout(self, actor: VectorActor) -> Episodes:
        episodes = self.world.rollout(actor)
        assert episodes.played_by is not None
        return episodes.take(np.flatnonzero(episodes.played_by == LEARNER))

    def state(self) -> State:
        return self.world.state()

    def restore(self, state: State) -> None:
        self.world.restore(state)


@dataclass
class _SelfPlayActor(NetworkActor):
    """The policy that learns, which is shown to the pool of opponents at each publication."""

    pool: OpponentPool | None = None

    def publish(self, policy: HasNumpyPolicy, version: int) -> None:
        super().publish(policy, version)
        if self.pool is not None:
            assert isinstance(policy, ControlPolicy)
            self.pool.consider(policy, version)


def _by_policy(credit: Credit, groups: tuple[int, ...]) -> Credit:
    """`credit` of the episodes of each policy by themselves; `groups` has the policy of each seat."""
    if not max(groups):
        return credit

    def policies(episodes: Episodes) -> Ints:
        assert episodes.seat is not None
        return np.array(groups)[episodes.seat]

    return apart_by(credit, policies)


def apart_by(credit: Credit, learner_of: Callable[[Episodes], Ints]) -> Credit:
    """`credit` of the episodes of each learner by themselves: what standardises advantages must not mix those of
    learners that are paid differently. `learner_of` gives the number of each episode's learner `[E]`."""

    def apart(episodes: Episodes, values: Values) -> Credits:
        group = learner_of(episodes)
        advantage = np.zeros(episodes.decisions, np.float32)
        target: np.ndarray | None = None
        metrics: dict[str, float] = {}
        for number in np.unique(group).tolist():
            index = np.flatnonzero(group == number)
            rows = np.flatnonzero(group[episodes.owner] == number)
            known = len(values.value) > 0
            own = Values(value=values.value[rows], final=values.final[index]) if known else values
            credits = credit(episodes.take(index), own)
            advantage[rows] = credits.advantage
            if credits.target is not None:
                target = np.zeros(episodes.decisions, np.float32) if target is None else target
                target[rows] = credits.target
            metrics |= credits.metrics
        return Credits(advantage=advantage, target=target, metrics=metrics)

    return apart


def with_state(episodes: Episodes) -> Episodes:
    """Episodes whose observations are followed by the state of the whole match, as a central critic reads them."""
    if episodes.state is None or episodes.final_state is None:
        return episodes
    assert episodes.final is not None
    seen = np.concatenate([episodes.observations, episodes.state], axis=1)
    return replace(episodes, seen=seen, final=np.concatenate([episodes.final, episodes.final_state], axis=1))


# ------------------------------------------------------------------------------------------------------------------ job


def _seat_policy(config: SeatsRunConfig, space: PolicySpaces, groups: tuple[int, ...], state_size: int) -> Any:  # noqa: ANN401 - ActorCritic, or SeatPolicies with the same methods
    """The network of all seats, or one for each group of them."""
    if max(groups):
        return SeatPolicies(space, config.network, seed=config.seed, groups=groups, state_size=state_size)
    if state_size:
        return CentralActorCritic(space, config.network, seed=config.seed, state_size=state_size)
    return ActorCritic(space, config.network, seed=config.seed, critic=config.method().use_critic)


def _seats_job(
    config: SeatsRunConfig, world: SeatWorld, method: on_policy.OnPolicyMethod, players: NamedPlayers
) -> TrainingJob[Any]:
    """Training job of the policies that play the seats of `world`."""
    layout, groups = world.layout, seat_groups(config.env.sharing, world.layout.seats)
    space = gaussian_spaces(layout.policy_spaces, config.network)
    policy = _seat_policy(config, space, groups, world.state_size).to(config.run.device)
    squashed = isinstance(space.actions, BoxActions) and space.actions.gaussian == "squashed"
    plain = type(policy) is ActorCritic and not squashed
    inner = method.layout

    def rows(episodes: Episodes, credits: Credits) -> Any:  # noqa: ANN401 - the method's rows
        seen = with_state(episodes)
        if inner is not None:
            return inner(policy, seen, credits)
        return step_rows(seen, credits, device=config.run.device)

    parts = on_policy.PolicyParts(
        policy=policy,
        layout=rows,
        predict_values=lambda policy, episodes: predict_values(policy, with_state(episodes)),
        is_plain=plain,
    )
    learner = on_policy.on_policy_learner(config, method, parts)
    pool = _pool(config, world, players)
    if pool is not None:
        world.seating = pool
    actor = _SelfPlayActor(policy.numpy_policy(), pool=pool)
    source: Source[Any] = LiveSource(LearnerSeats(world), actor, actor_metrics=world.metrics)
    source = source if method.wrap_source is None else method.wrap_source(source)
    source = with_normalisation(source, method.normalise, size=space.inputs.size, discount=method.discount)
    recipe = Recipe(source=source, credit=_by_policy(method.credit, groups), learner=learner)
    job = control_job(recipe, env=None, evaluation=config.evaluation, seed=config.seed)
    score = seats_scorer(config, policy, layout, players.evaluation, pool)

    def open_folder(folder: Path) -> None:
        if pool is not None:
            pool.folder = folder / "opponents"

    return replace(
        job,
        evaluate=score,
        warnings=world.warnings,
        pop_notices=lambda: [*job.pop_notices(), *world.pop_notices()],
        open_folder=open_folder,
    )


def _pool(config: SeatsRunConfig, world: SeatWorld, players: NamedPlayers) -> OpponentPool | None:
    opponents = config.opponents
    if not isinstance(opponents, PastOpponents | FixedOpponents):
        return None
    gate = None if isinstance(opponents, FixedOpponents) else snapshot_gate(config, opponents, world.layout)
    return OpponentPool(
        seats=len(world.layout.seats),
        seed=config.seed,
        config=opponents,
        fixed=list(players.opponents.values()),
        gate=gate,
    )


def snapshot_gate(config: SeatsRunConfig, opponents: PastOpponents, layout: SeatLayout) -> Gate:
    """The test that a new snapshot must pass, by matches against the newest one of the pool."""
    make = game_maker(config.env)

    def gate(new: Player, champion: Player, number: int) -> float:
        assert opponents.gate is not None
        assert config.e_values is not None, "the recipe names no sequential test"
        matches, max_steps = opponents.gate.matches, config.env.max_match_steps
        arena = open_arena(make, layout, matches=matches, max_steps=max_steps)
        seed = key(config.seed, "gate", number)
        return gate_evidence(arena, new, champion, opponents.gate, config.e_values, seed=seed)

    return gate


def seats_scorer(
    config: _PlaysSeats,
    policy: HasNumpyPolicy,
    layout: SeatLayout,
    players: dict[str, Player],
    pool: OpponentPool | None = None,
    player_of: Callable[[NumpyPolicy], NumpyPolicy | Player] = lambda policy: policy,
    on_metrics: Callable[[Metrics], None] | None = None,
) -> Callable[[], EvaluationResult]:
    """Evaluation of the policy by matches; `player_of` makes the player that stands for it, and `on_metrics` hears
    every evaluation's metrics."""
    make, opened = game_maker(config.env), list[Arena]()
    matches, max_steps = config.evaluation.episodes, config.env.max_match_steps

    def score() -> EvaluationResult:
        if not opened:
            opened.append(open_arena(make, layout, matches=matches, max_steps=max_steps))
        acting = policy.numpy_policy()
        estimate, metrics = evaluate_policy(player_of(acting), opened[0], players, config.evaluation, seed=config.seed)
        if config.evaluation.nash_conv:
            past = [] if pool is None else [one.numpy_policy() for one in pool.policies()]
            weights = None if pool is None else pool.member_weights()
            metrics |= nash_conv_metrics(opened[0].games[0], layout, acting, past, weights)
        if on_metrics is not None:
            on_metrics(metrics)
        return EvaluationResult(estimate=estimate, metrics=metrics)

    return score


def evaluate_seats(
    config: _PlaysSeats,
    request: EvaluationRequest,
    player_of: Callable[[NumpyPolicy], NumpyPolicy | Player] = lambda policy: policy,
) -> Metrics:
    """`hone eval` of a policy of several seats: matches as in the run's own evaluations, with other seeds. Raises
    HoneError."""
    make = game_maker(config.env)
    game = make()
    game.reset(request.seed)
    layout = SeatLayout.from_game(game, config.env.id)
    chosen = config.evaluation.model_copy(update={"episodes": request.episodes})
    players = {name: open_player(name, layout, game) for name in config.players_of_evaluation()}
    acting = load_policy(request.policy).numpy_policy()
    arena = open_arena(make, layout, matches=request.episodes, max_steps=config.env.max_match_steps)
    _, metrics = evaluate_policy(player_of(acting), arena, players, chosen, seed=request.seed)
    return metrics | (nash_conv_metrics(game, layout, acting, []) if chosen.nash_conv else {})
