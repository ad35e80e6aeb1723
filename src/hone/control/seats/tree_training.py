"""What recipes over the whole tree of a small game share: a source that visits every information set, and the job.

Belongs here: wiring of Kuhn and Leduc poker to the one loop. Nothing is sampled: a source gives what a policy is paid
in each information set. The policy that is released is an average over behaviour: last iterates of self-play cycle in
such games. A recipe has its learner, in closed form.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hone.control.job import control_job
from hone.control.networks.mlp import MlpConfig
from hone.control.networks.seats import InformationSetPolicy
from hone.control.seats.adapters import game_maker
from hone.control.seats.compiled_games import CompiledGame, game_tree
from hone.control.seats.evaluation import SeatsEvaluationConfig
from hone.control.seats.game import SeatsConfig
from hone.control.seats.matches import SeatLayout
from hone.control.seats.players import Player, open_player
from hone.control.seats.training import seats_scorer
from hone.control.seats.tree_play import Floats, TreePlay
from hone.core.config import new_default
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.ragged import offsets_of
from hone.core.state import State, integer
from hone.run.job import OpenedRun, RunConfig, RunSettings, TrainingJob, opened_run
from hone.run.loop import Learner, Recipe, Source


@dataclass(kw_only=True)
class TreePolicies:
    """The policy that plays, and the average that is released; `[I, actions]` each."""

    play: TreePlay
    layout: SeatLayout
    released: InformationSetPolicy
    current: Floats

    @classmethod
    def of_game(cls, game: CompiledGame) -> "TreePolicies":
        """Uniform policies of a small game that was reset. Raises ConfigError for a large one."""
        play = TreePlay(tree=game_tree(game.name))
        layout = SeatLayout.from_game(game, f"compiled:{game.name}")
        count, uniform = len(play.tree.seat), play.uniform()
        released = InformationSetPolicy(layout.policy_spaces, MlpConfig(), count=count)
        rows = [layout.row(seat, seen) for seat, seen in zip(play.tree.seat.tolist(), play.tree.seen, strict=True)]
        released.rows.copy_(torch.from_numpy(np.stack(rows)))
        policies = cls(play=play, layout=layout, released=released, current=uniform)
        policies.release(uniform)
        return policies

    def release(self, average: Floats) -> None:
        """Make `average` the released policy."""
        self.released.probabilities.copy_(torch.from_numpy(average))

    @property
    def average(self) -> Floats:
        """The released policy."""
        return self.released.probabilities.numpy()


def infoset_episodes(
    play: TreePlay, seat: int, policy: Floats, reward: Floats, chosen: NDArray[np.bool_], version: int
) -> Episodes:
    """An episode for each information set of `seat`, with the actions that `chosen` `[I, actions]` marks: what the
    policy `[I, actions]` gives them, and the reward of each."""
    sets = np.flatnonzero(play.tree.seat == seat)
    own, actions = np.nonzero(chosen[sets])
    rows, count = sets[own], len(sets)
    with np.errstate(divide="ignore"):
        logp = np.log(policy[rows, actions]).astype(np.float32)
    return Episodes(
        offsets=offsets_of(chosen[sets].sum(axis=1)),
        seen=rows,
        chosen=actions,
        logp=logp,
        version=np.full(len(rows), version, np.int32),
        reward=reward[rows, actions].astype(np.float32),
        group=sets,
        terminated=np.ones(count, np.bool_),
        truncated=np.zeros(count, np.bool_),
        score=(policy * reward).sum(axis=1)[sets],
        seat=np.full(count, seat, np.int16),
    )


@dataclass(kw_only=True)
class TreeSource:
    """Visits the information sets of one seat after the other; a subclass says what it brings from there."""

    policies: TreePolicies
    version: int = -1
    visits: int = 0

    def collect(self) -> Episodes:
        """Episodes of the next seat's information sets."""
        seat = self.visits % self.policies.play.seats
        self.visits += 1
        return self.episodes_of(seat)

    def episodes_of(self, seat: int) -> Episodes:
        """Counterfactual values of every legal action under the policy that plays."""
        play, current = self.policies.play, self.policies.current
        return infoset_episodes(play, seat, current, play.counterfactual(current, seat), play.tree.legal, self.version)

    def publish(self, policy: InformationSetPolicy) -> None:
        """The learner changes the policies in place."""
        del policy
        self.version += 1

    def metrics(self) -> Metrics:
        return {}

    def state(self) -> State:
        return {"version": self.version, "visits": self.visits}

    def restore(self, state: State) -> None:
        self.version, self.visits = integer(state, "version") - 1, integer(state, "visits")


# ------------------------------------------------------------------------------------------------------------------ run


class TreeRunConfig(RunConfig):
    """A small game that is played over its whole tree; a step visits the information sets of one seat."""

    run = new_default(RunSettings(threads=1, log_every=2, rollouts_every=0))
    env: SeatsConfig
    """`compiled:kuhn_poker` or `compiled:leduc_poker`."""
    evaluation: SeatsEvaluationConfig = SeatsEvaluationConfig(episodes=200, sample=True, nash_conv=True)
    """How the released policy is evaluated: by its NashConv, and by matches."""

    def open(self) -> OpenedRun:
        """Open the game and its players. Raises ConfigError for a game without a tree."""
        game = game_maker(self.env)()
        if not isinstance(game, CompiledGame) or not game.hidden:
            raise ConfigError(
                f'{self.recipe}: env.id = {self.env.id!r}: take "compiled:kuhn_poker" or "compiled:leduc_poker"'
            )
        game.reset(self.seed)
        policies = TreePolicies.of_game(game)
        players = {name: open_player(name, policies.layout, game) for name in self.players_of_evaluation()}

        def build(config: TreeRunConfig, opened: dict[str, Player]) -> TrainingJob[Any]:
            parts = config.method(policies)
            recipe = Recipe(source=parts.source, credit=parts.credit, learner=parts.learner)
            job = control_job(recipe, env=None, evaluation=config.evaluation, seed=config.seed)
            return replace(job, evaluate=seats_scorer(config, policies.released, policies.layout, opened))

        return opened_run(players, build)

    def method(self, policies: TreePolicies) -> "TreeMethod":
        """Source, credit and learner of the recipe."""
        del policies
        raise TypeError(f"{type(self).__name__} names no method")

    def players_of_evaluation(self) -> list[str]:
        """Names of the players that the released policy meets."""
        return ["random"] if self.evaluation.against is None else self.evaluation.against


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMethod:
    """Parts of one algorithm of the family."""

    source: Source[InformationSetPolicy]
    credit: Callable[[Episodes, Values], Credits]
    learner: Learner[InformationSetPolicy]
