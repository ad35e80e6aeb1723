"""Teams: cooperative games in which all seats move at once, as transitions of the whole team, for VDN and QMIX.

A decision is the team's: the rows of all seats and, where a mixer reads it, the state of the whole match; its reward is
the mean of the seats'. A seat that has ended sees zeros and has one action. Acting is by seat, from its own row.
"""

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from hone.control.environments.world import VectorActor
from hone.control.job import control_job, updates_per_step
from hone.control.networks.mlp import DiscreteActions, MlpConfig
from hone.control.networks.numpy_policies import NumpyPolicy
from hone.control.networks.team import TeamValues
from hone.control.off_policy import IterationReplayConfig, ScheduledExplorer, off_policy_parts
from hone.control.phases import LearningMethod, TdAlgorithm, method_learner, optimizer_phase, polyak_updater
from hone.control.replay.mixed import ReplaySource
from hone.control.replay.priority import PrioritizedSampler
from hone.control.replay.ring import RingBuffer
from hone.control.rows import TransitionRows, transition_rows
from hone.control.seats.evaluation import SeatsEvaluationConfig
from hone.control.seats.game import Array, SeatsConfig
from hone.control.seats.matches import Bools, Floats, RunningMatch, next_turn, run_game_code
from hone.control.seats.players import RandomPlayer
from hone.control.seats.training import NamedPlayers, seats_scorer, with_state
from hone.control.seats.world import MatchWorld, NoiseBlocks, match_state, open_matches, replay_matches
from hone.control.value_based import LinearEpsilon, exploration_level
from hone.control.value_rows import with_recency
from hone.core.config import new_default
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.random import generator, key
from hone.core.state import State, array, integer, substate
from hone.credit.returns import one_step_target
from hone.learner.config import ReplayLearnerConfig
from hone.objectives.td import td_target
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.run.job import OpenedRun, RecipeParts, RunConfig, RunSettings, TrainingJob, opened_run
from hone.run.loop import Recipe, Source
from hone.sources.live import LiveSource

# --------------------------------------------------------------------------------------------------------------- world


@dataclass(kw_only=True)
class _TeamWorld(MatchWorld):
    """Many matches of a cooperative game at a time, `steps` of each per rollout."""

    steps: int
    with_state: bool

    def __post_init__(self) -> None:
        self.group = np.zeros(len(self.matches), np.int64)

    @property
    def state_size(self) -> int:
        """Numbers of the state of a match; 0 where no mixer reads it."""
        return len(self.matches[0].whole_state()) if self.with_state else 0

    def rollout(self, actor: VectorActor) -> Episodes:
        """Transitions of the team, each an episode of one decision: `seen` `[n, S * row]`, `state` `[n, Z]`, `chosen`
        `[n, S]`, `mask` `[n, S * choices]`. Raises UserCodeError where the game fails or breaks its contract."""
        return run_game_code(self.name, lambda: self._rollout(actor))

    def _rollout(self, actor: VectorActor) -> Episodes:
        if not self.started:
            self.started = True
            for match in self.matches:
                self._begin(match)
        self.rollouts += 1
        noise = NoiseBlocks(actor, generator(self.seed, "act", self.rollouts))
        seats, count = len(self.layout.seats), len(self.matches)
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        for _ in range(self.steps):
            joint, masks, states = map(np.stack, zip(*map(self._view, self.matches), strict=True))
            legal = masks.reshape(count * seats, -1) if self.layout.masked else None
            chosen, logp = actor.decide(joint.reshape(count * seats, -1), noise.take(count * seats), legal)
            chosen, logp = chosen.reshape(count, seats), logp.reshape(count, seats).sum(axis=1)
            for place, match in enumerate(self.matches):
                self._play(match, chosen[place], columns)
            for name, values in zip(_TICKS, (joint, chosen, logp, masks, states), strict=True):
                columns[name].append(values)
        flat = {name: np.concatenate(columns[name]) for name in _TICKS}
        number = len(flat["logp"])
        return Episodes(
            offsets=np.arange(number + 1),
            seen=flat["seen"],
            chosen=flat["chosen"],
            logp=flat["logp"],
            version=np.full(number, actor.version, np.int32),
            reward=np.array(columns["reward"], np.float32),
            group=np.array(columns["group"], np.int64),
            terminated=np.array(columns["terminated"]),
            truncated=np.array(columns["truncated"]),
            final=np.stack(columns["final"]),
            score=np.array(columns["score"]),
            mask=flat["mask"] if self.layout.masked else None,
            final_mask=np.stack(columns["final_mask"]) if self.layout.masked else None,
            state=flat["state"] if self.with_state else None,
            final_state=np.stack(columns["final_state"]) if self.with_state else None,
        )

    def _begin(self, match: RunningMatch) -> None:
        number, self.begun = self.begun, self.begun + 1
        match.begin(number, key(self.seed, "match", number) & 0x3FFFFFFF, ())

    def _view(self, match: RunningMatch) -> tuple[Floats, Bools, Floats]:
        """Rows of all seats `[S * row]`, their legal actions `[S * choices]` and the state `[Z]`; seats that have ended
        see zeros and have action 0. After the end of a match nothing is decided, and every action is legal."""
        seats, size = len(self.layout.seats), self.layout.row_size
        joint = np.zeros((seats, size), np.float32)
        legal = np.zeros((seats, self.layout.policy_spaces.choices.count), np.bool_)
        state = match.whole_state() if self.with_state else np.zeros(0, np.float32)
        if not match.movers:
            for seat in range(seats):
                joint[seat] = self.layout.row(seat, match.game.observe(seat).seen)
            return joint.ravel(), ~legal.ravel(), state
        rows, masks = match.views()
        legal[:, 0] = True
        for number, seat in enumerate(match.movers):
            joint[seat], legal[seat] = rows[number], masks[number] if masks else True
        return joint.ravel(), legal.ravel(), state

    def _play(self, match: RunningMatch, chosen: Array, columns: dict[str, list[Any]]) -> None:
        step = match.play({seat: chosen[seat] for seat in match.movers})
        columns["reward"].append(sum(step.rewards.values()) / len(self.layout.seats))
        over = not match.movers
        truncated = over and not step.terminated
        columns["terminated"].append(over and not truncated)
        columns["truncated"].append(truncated)
        columns["group"].append(match.number)
        columns["score"].append(float(match.returns.mean()))
        for name, values in zip(("final", "final_mask", "final_state"), self._view(match), strict=True):
            columns[name].append(values)
        if over:
            self._begin(match)

    def state(self) -> State:
        exact = self.started and self.inexact_reason is None
        running: State = {str(place): match_state(match) for place, match in enumerate(self.matches)} if exact else {}
        view = np.stack([self._view(match)[0] for match in self.matches]) if exact else np.zeros((0, 0), np.float32)
        return {"rollouts": self.rollouts, "begun": self.begun, "running": running, "view": view}

    def restore(self, state: State) -> None:
        """Play the running matches again; where a game cannot be repeated, new ones begin, with a notice."""
        self.rollouts, self.begun, self.started = integer(state, "rollouts"), integer(state, "begun"), False
        running = substate(state, "running")
        if not running or self.inexact_reason is not None:
            return
        again = replay_matches(self.matches, running)
        self.started = again and np.array_equal([self._view(match)[0] for match in self.matches], array(state, "view"))
        if not self.started:
            self.pending_notices.append(f"{self.name}: replayed matches differ, so the resumed run begins new ones")


_TICKS = ("seen", "chosen", "logp", "mask", "state")
_COLUMNS = (*_TICKS, "reward", "terminated", "truncated", "group", "score", "final", "final_mask", "final_state")


def _require_team(match: RunningMatch, name: str, seed: int) -> list[str]:
    """Faults of a game that is no team's: actions that are not numbered, or seats that take turns in a random match."""
    if not isinstance(match.layout.actions, DiscreteActions):
        return [f"{name}: VDN and QMIX need numbered actions, and a seat has {match.layout.actions}; use mappo"]
    player, live = RandomPlayer(match.layout), set(range(len(match.layout.seats)))
    while match.movers and set(match.movers) == live:
        chosen = player.choose(next_turn([match])[0], generator(seed, "check", len(match.moves)))
        step = match.play(dict(zip(match.movers, chosen, strict=True)))
        live -= {*step.terminated, *step.truncated}
    if match.movers:
        return [f"{name}: seats take turns, and VDN and QMIX need all of them at once; use ippo or mappo"]
    return []


# -------------------------------------------------------------------------------------------------------------- config


class TeamRunConfig(RunConfig):
    """A team that learns the sum, or a mixture, of its seats' action values from a replay buffer."""

    run = new_default(RunSettings(threads=1, log_every=100, checkpoint_every=1000))
    env: SeatsConfig
    """The game, and the matches played together."""
    network: MlpConfig = MlpConfig(hidden=[64, 64], activation="relu")
    """The network of action values, shared by all seats."""
    exploration: LinearEpsilon = LinearEpsilon(end=0.05)
    """Random actions of each seat; `decay_env_steps` counts the team's decisions."""
    replay: IterationReplayConfig = IterationReplayConfig(collect=8, batch=64, capacity=50_000, warmup=500)
    """The replay buffer of the team's transitions."""
    algorithm: TdAlgorithm = TdAlgorithm(tau=0.01)
    """Discount factor and target networks."""
    learner: ReplayLearnerConfig = ReplayLearnerConfig(lr=5e-4, max_grad_norm=10.0, updates_per_iteration=8)
    """The optimizer."""
    evaluation: SeatsEvaluationConfig = SeatsEvaluationConfig()
    """How the team is evaluated."""

    state_mixer: ClassVar[bool] = False
    """Whether the values are mixed by the state; otherwise they are added."""

    @property
    def mixer_units(self) -> int:
        """Units of the mixer; 0: the values are added."""
        return 0

    @property
    def iteration_decisions(self) -> int:
        """Decisions of the team per iteration."""
        return self.env.num_envs * self.replay.collect

    def players_of_evaluation(self) -> list[str]:
        """None: the team plays every seat."""
        return []

    def open(self) -> OpenedRun:
        """Open and check the game. Raises HoneError."""
        faults = [] if self.env.sharing == "shared" else [f"env.sharing = {self.env.sharing}: a team has one network"]
        if self.evaluation.against or self.evaluation.nash_conv:
            faults.append("evaluation.against and evaluation.nash_conv are for opponents: a team has none")
        if faults:
            raise ConfigError(*faults)
        matches, reason = open_matches(self.env, self.seed)
        world = _TeamWorld(
            name=self.env.id,
            matches=matches,
            layout=matches[0].layout,
            steps=self.replay.collect,
            seed=self.seed,
            with_state=self.state_mixer,
            inexact_reason=reason,
            warnings=[] if reason is None else [f"{self.env.id}: a resume will begin new matches: {reason}"],
        )
        with contextlib.ExitStack() as on_fault:
            on_fault.callback(world.close)
            if faults := _require_team(matches[0], self.env.id, self.seed):
                raise ConfigError(*faults)
            on_fault.pop_all()
        return opened_run(world, _team_job, warnings=world.warnings, close=world.close)

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        updates = self.learner.optimizer_steps(1)
        return {
            "decisions of the team": f"{self.replay.warmup} or a little more to begin with, and {self.steps} x "
            f"{self.iteration_decisions}",
            "updates": f"{self.steps} iterations x {updates} = {self.steps * updates}",
            "updates per environment step": updates_per_step(updates, self.iteration_decisions),
            "update": f"{self.replay.batch} transitions of the team",
        }

    def exploration_policy(self, policy: TeamValues, version: int) -> NumpyPolicy:
        """Behaviour policy of the iteration that `version` begins; random actions in the warm-up."""
        if version == 0:
            return policy.greedy_policy(epsilon=1.0)
        done = self.replay.warmup + version * self.iteration_decisions
        return policy.greedy_policy(epsilon=exploration_level(self.exploration, done))

    @classmethod
    def parts(cls) -> RecipeParts:
        return off_policy_parts(_team_objective, source="Replay(Live(team))")


# ------------------------------------------------------------------------------------------------------------------ job


def _team_objective(policy: TeamValues, rows: TransitionRows) -> LossTerms:
    """Squared error of Q_tot(s, a) against r + discount * Q_tot_target(s', a'), where each seat's a' is its best action
    by the present values (double Q-learning, as in QMIX's own experiments)."""
    values = policy.seat_values(rows.seen, rows.mask)
    taken = values.gather(2, rows.chosen[:, :, None]).squeeze(2)
    with torch.no_grad():
        best = policy.seat_values(rows.next_seen, rows.next_mask).argmax(dim=2, keepdim=True)
        ahead = policy.seat_values(rows.next_seen, rows.next_mask, target=True).gather(2, best).squeeze(2)
        worth = policy.team_value(ahead, rows.next_seen, target=True)
    return squared_error(policy.team_value(taken, rows.seen), td_target(rows.reward, rows.discount, worth))


def _team_job(config: TeamRunConfig, world: _TeamWorld) -> TrainingJob[TeamValues]:
    """Training job of a team that plays the matches of `world`."""
    layout = world.layout
    policy = TeamValues(
        layout.policy_spaces, config.network, seed=config.seed, seats=len(layout.seats),
        state_size=world.state_size, mixer_units=config.mixer_units,
    ).to(config.run.device)  # fmt: skip
    pairs = [(policy.target_values, policy.values), (policy.target_mixer, policy.mixer)]
    update = polyak_updater(pairs if config.mixer_units else pairs[:1])
    phase = optimizer_phase(
        "values", _team_objective, [*policy.values.parameters(), *policy.mixer.parameters()], config.learner
    )

    def layout_rows(transitions: Episodes, credits: Credits, done: int) -> TransitionRows:
        del done
        noise = np.zeros((len(transitions), 0), np.float32)
        return transition_rows(with_state(transitions), credits, noise, device=config.run.device)

    ring, ages = RingBuffer(config.replay.capacity), with_recency(None, config.replay.half_life)
    method = LearningMethod(
        policy=policy,
        phases=[phase],
        layout=layout_rows,
        credit=partial(one_step_target, discount=config.algorithm.discount),
        after_step=lambda _, __: update(config.algorithm.tau),
        shuffle=ages is not None,
    )
    actor = ScheduledExplorer(policy.numpy_policy(), exploration_policy=config.exploration_policy)
    source: Source[TeamValues] = ReplaySource(
        LiveSource(world, actor),
        buffer=ring if ages is None else PrioritizedSampler(ring, ages),
        sample_size=config.replay.batch * config.learner.updates_per_iteration,
        warmup=config.replay.warmup,
        seed=config.seed,
    )
    learner = method_learner(config, config.learner, method)
    recipe = Recipe(source=source, credit=method.credit, learner=learner)
    job = control_job(recipe, env=None, evaluation=config.evaluation, seed=config.seed)
    return replace(
        job,
        evaluate=seats_scorer(config, policy, layout, NamedPlayers().evaluation),
        warnings=world.warnings,
        pop_notices=lambda: [*job.pop_notices(), *world.pop_notices()],
    )
