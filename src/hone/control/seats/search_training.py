"""What recipes that learn from tree search share: config, games by search, rows, the job.

Belongs here: wiring of searches to the one loop. A source plays whole matches in which both seats search with the
network, the learner fits the network to the searches and to the results, and the matches of the last steps are learned
from again.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hone.control.job import control_job
from hone.control.networks.mlp import MlpConfig
from hone.control.networks.numpy_policies import NumpyPolicy
from hone.control.networks.seats import NumpyPolicyValue, PolicyValueNetwork
from hone.control.on_policy import RolloutRunConfig
from hone.control.rows import DecisionRows, as_tensor
from hone.control.seats.adapters import game_maker
from hone.control.seats.compiled_games import CompiledGame, require_searchable
from hone.control.seats.evaluation import SeatsEvaluationConfig
from hone.control.seats.game import SeatsConfig
from hone.control.seats.match_source import MatchSource, WorkersConfig, open_runner
from hone.control.seats.matches import SeatLayout
from hone.control.seats.players import Player, SearchPlayer, TreeSearchConfig, open_player
from hone.control.seats.training import evaluate_seats, seats_scorer
from hone.control.seats.world import LEARNER, LearnerEverywhere
from hone.core.config import new_default
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes, concatenate, pack_episodes, unpack_episodes
from hone.core.state import State, substate
from hone.learner.config import LearnerConfig, learning_rate_schedule, policy_phase
from hone.learner.gradient import GradientLearner
from hone.objectives.terms import LossTerms
from hone.run.job import EvaluationRequest, OpenedRun, RunSettings, TrainingJob, opened_run
from hone.run.loop import Recipe, Source, SourceWrapper


class SearchRunConfig(RolloutRunConfig):
    """A network that learns from its own searches."""

    run = new_default(RunSettings(threads=1, rollouts_every=0))
    env: SeatsConfig  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """`compiled:connect_four`; `num_envs` matches are played together."""
    rollout_steps = new_default(1, "Whole matches, one after another, of each that is played together, per iteration.")
    network = new_default(MlpConfig(hidden=[128, 128], activation="relu"))
    search: TreeSearchConfig = TreeSearchConfig()
    """Tree search by which the policy plays."""
    learner = new_default(LearnerConfig(lr=1e-3, minibatches=32, max_grad_norm=1.0))
    workers: WorkersConfig = WorkersConfig()
    """Who plays the matches."""
    evaluation: SeatsEvaluationConfig = SeatsEvaluationConfig(against=["random", "mcts:100"])  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """How the policy is evaluated."""

    def open(self) -> OpenedRun:
        """Open the game and its players. Raises ConfigError for a game that cannot be searched."""
        game = game_maker(self.env)()
        require_searchable(game)
        assert isinstance(game, CompiledGame)
        game.reset(self.seed)
        layout = SeatLayout.from_game(game, self.env.id)
        players = {name: open_player(name, layout, game) for name in self.players_of_evaluation()}

        def build(config: SearchRunConfig, opened: dict[str, Player]) -> TrainingJob[Any]:
            return _search_job(config, game, layout, opened)

        return opened_run(players, build)

    def method(self) -> "SearchMethod":
        """Credit and loss of the recipe."""
        raise TypeError(f"{type(self).__name__} names no method")

    def players_of_evaluation(self) -> list[str]:
        """Names of the players that the policy is evaluated against; none: it plays every seat."""
        return ["random"] if self.evaluation.against is None else self.evaluation.against

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        matches = self.env.num_envs * self.rollout_steps
        return {
            "matches": f"{self.steps} x {matches} = {self.steps * matches}",
            "optimizer steps": f"{self.learner.optimizer_steps(self.steps)}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchMethod:
    """Parts of one algorithm of the family."""

    credit: Callable[[Episodes, Values], Credits]
    objective: Callable[[PolicyValueNetwork, "SearchRows"], LossTerms]
    window: int
    """Steps whose matches are learned from in each step."""
    mirror: bool
    """Whether every position is learned from with its mirror image."""


@dataclass(frozen=True, kw_only=True)
class SearchRows(DecisionRows):
    """Positions, with the searches from there and the results."""

    seen: Tensor
    search_policy: Tensor
    """`[n, M]` shares of visits."""
    target: Tensor
    """`[n]` result of the match for the seat to move."""
    mask: Tensor
    """`[n, M]` legal actions."""


@dataclass
class RecentMatches(SourceWrapper[PolicyValueNetwork]):
    """Hands on the matches of the last `window` steps of another source."""

    window: int = 1
    recent: deque[Episodes] = field(default_factory=deque[Episodes])

    def collect(self) -> Episodes:
        self.recent.append(self.source.collect())
        while len(self.recent) > self.window:
            self.recent.popleft()
        return concatenate(list(self.recent))

    def state(self) -> State:
        held: State = {str(place): pack_episodes(one) for place, one in enumerate(self.recent)}
        return {"source": self.source.state(), "recent": held}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        held = substate(state, "recent")
        self.recent = deque(unpack_episodes(substate(held, str(place))) for place in range(len(held)))


def search_rows(episodes: Episodes, credits: Credits, *, mirror: tuple[Any, Any] | None, device: str) -> SearchRows:
    """Rows of searched positions; with `mirror` (places of a row's numbers, of the actions) each twice."""
    assert episodes.search_policy is not None
    assert episodes.mask is not None
    assert credits.target is not None
    columns = [episodes.observations, episodes.search_policy, episodes.mask, credits.target]
    if mirror is not None:
        cells, actions = mirror
        seen, search, mask, target = columns
        columns = [
            np.concatenate([seen, seen[:, cells]]),
            np.concatenate([search, search[:, actions]]),
            np.concatenate([mask, mask[:, actions]]),
            np.concatenate([target, target]),
        ]
    seen, search, mask, target = (as_tensor(column, device) for column in columns)
    return SearchRows(weight=torch.ones_like(target), seen=seen, search_policy=search, mask=mask, target=target)


def _search_job(
    config: SearchRunConfig, game: CompiledGame, layout: SeatLayout, players: dict[str, Player]
) -> TrainingJob[Any]:
    method = config.method()
    policy = PolicyValueNetwork(layout.policy_spaces, config.network, seed=config.seed).to(config.run.device)
    mirror = game.mirror if method.mirror else None
    matches = MatchSource(
        runner=open_runner(config.env, config.seed, config.workers),
        seating=LearnerEverywhere(len(layout.seats)),
        learners={LEARNER: policy},
        matches=config.env.num_envs * config.rollout_steps,
        block=config.env.num_envs,
        search=config.search,
    )
    source: Source[Any] = RecentMatches(matches, window=method.window)
    learner = GradientLearner(
        policy=policy,
        layout=lambda episodes, credits: search_rows(episodes, credits, mirror=mirror, device=config.run.device),
        phases=[policy_phase(policy, method.objective, config.learner)],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
    )
    recipe = Recipe(source=source, credit=method.credit, learner=learner)
    job = control_job(recipe, env=None, evaluation=config.evaluation, seed=config.seed)
    score = seats_scorer(config, policy, layout, players, player_of=partial(_searching_player, config.search))

    def notices() -> list[str]:
        lines, matches.runner.notices = [*job.pop_notices(), *matches.runner.notices], []
        return lines

    return replace(job, evaluate=score, open_folder=matches.open_folder, close=matches.close, pop_notices=notices)


def evaluate_search(config: SearchRunConfig, request: EvaluationRequest) -> Metrics:
    """`hone eval`: matches of the policy with its search, as in the run's own evaluations, with other seeds.

    Raises HoneError for a policy that cannot be read, and for a game that fails.
    """
    return evaluate_seats(config, request, partial(_searching_player, config.search))


def _searching_player(search: TreeSearchConfig, policy: NumpyPolicy) -> NumpyPolicy | Player:
    """The player of evaluations: the network with its search, or alone."""
    if not search.evaluation_simulations:
        return policy
    assert isinstance(policy, NumpyPolicyValue)
    return SearchPlayer(policy=policy, search=search)
