"""hone's training loop on a puzzle: problems that are trained in seconds and evaluated exactly.

Rollouts on a puzzle, rows of answers, and the assembly of `train.loop`. Losses and credit come from `objectives` and
`credit`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.ragged import Ints, ranges
from hone.core.random import generator
from hone.core.reduction import ONE_PROCESS, Reduction, whole_batch
from hone.core.state import State, integer
from hone.credit.group import group_relative
from hone.lab.exact import scored_episodes
from hone.lab.policies import frozen_copy, log_softmax, pretrained_network, puzzle_metrics, sample_rows
from hone.lab.puzzles import Floats, Puzzle, addition
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters
from hone.learner.gradient import GradientLearner, OptimizerPhase
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.objectives.weights import WeightingScheme, token_mean
from hone.run.loop import Recipe, train
from hone.sources.live import LiveSource

_LogitDistortion = Callable[[Tensor, Tensor, int], Tensor]
"""`(logits [n, V], seen [n, F], step) -> logits`: simulated mismatch of the inference engine to the trainer."""


# ------------------------------------------------------------------------------------ acting (a world)


@dataclass(slots=True)
class DelayedActor:
    """Acts by the policy of `delay` publications ago; implements `hone.sources.live.Actor`."""

    delay: int = 0
    policies: deque[tuple[nn.Module, int]] = field(default_factory=deque[tuple[nn.Module, int]])

    def publish(self, policy: nn.Module, version: int) -> None:
        self.policies.append((frozen_copy(policy), version))
        if len(self.policies) > self.delay + 1:
            self.policies.popleft()

    @property
    def current(self) -> tuple[nn.Module, int]:
        """The acting policy and its version."""
        return self.policies[0]


@dataclass(slots=True, kw_only=True)
class PuzzleWorld:
    """Samples `samples` answers to each of `prompts` questions, and scores them; implements `RolloutEnvironment`."""

    puzzle: Puzzle
    seed: int
    prompts: int
    samples: int
    distort: _LogitDistortion | None = None
    step: int = 0

    def rollout(self, actor: DelayedActor) -> Episodes:
        draws = generator(self.seed, "lab/play", self.step)
        count = len(self.puzzle.questions)
        asked = draws.permutation(count)[: self.prompts] if self.prompts < count else np.arange(count)
        policy, version = actor.current
        episodes = sample_answers(
            policy, self.puzzle, np.repeat(asked, self.samples), draws, version=version, distort=self._distort
        )
        self.step += 1
        return episodes

    def _distort(self, logits: Tensor, seen: Tensor) -> Tensor:
        return logits if self.distort is None else self.distort(logits, seen, self.step)

    def state(self) -> State:
        return {"step": self.step}

    def restore(self, state: State) -> None:
        self.step = integer(state, "step")


@torch.no_grad()
def sample_answers(
    policy: nn.Module,
    puzzle: Puzzle,
    questions: Ints,
    draws: np.random.Generator,
    *,
    version: int = 0,
    distort: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Episodes:
    """One sampled and scored answer to each of `questions` `[E]`; `draws` are its random numbers."""
    count, length = len(questions), puzzle.answers.shape[1]
    before = np.full(count, puzzle.vocab_size)
    seen = np.empty((count, length, puzzle.questions.shape[1] + 2), dtype=np.int64)
    chosen = np.empty((count, length), dtype=np.int64)
    logp = np.empty((count, length), dtype=np.float32)
    for position in range(length):
        seen[:, position] = puzzle.observation(questions, position, before)
        rows = torch.from_numpy(seen[:, position])
        logits = policy(rows)
        table = torch.log_softmax(logits if distort is None else distort(logits, rows), dim=1).numpy()
        before = sample_rows(np.exp(table), draws.random(count))
        chosen[:, position], logp[:, position] = before, table[np.arange(count), before]
    scores = puzzle.score(questions, chosen)
    return replace(
        scored_episodes(scores, questions, lengths=np.full(count, length)),
        seen=seen.reshape(count * length, -1),
        chosen=chosen.reshape(-1),
        logp=logp.reshape(-1),
        version=np.full(count * length, version, np.int32),
        final=seen[:, -1],
    )


# ------------------------------------------------------------------------------------------- learning


@dataclass(frozen=True, slots=True, kw_only=True)
class PuzzleBatch:
    """n decisions as tensors; implements `TensorBatch`."""

    seen: Tensor
    chosen: Tensor
    behaviour_logp: Tensor
    """`[n]` nats, under the behaviour policy."""
    old_logp: Tensor
    """`[n]` nats, under the policy at the start of the update, computed by the trainer."""
    advantage: Tensor
    weight: Tensor
    episode: Tensor
    """`[n]` number of the decision's episode within this batch."""

    def logp(self, policy: nn.Module) -> Tensor:
        """`[n]` nats, with gradient."""
        return log_softmax(policy, self.seen).gather(1, self.chosen[:, None]).squeeze(1)


Objective = Callable[[nn.Module, PuzzleBatch], LossTerms]
_Credit = Callable[[Episodes, Values], Credits]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PuzzleRows:
    """Rows of whole episodes; implements `TrainingRows`."""

    episodes: Episodes
    advantage: NDArray[np.float32]
    old_logp: NDArray[np.float32]
    scheme: WeightingScheme
    scale: Floats | None = None

    def __len__(self) -> int:
        return len(self.episodes)

    def sizes(self) -> NDArray[np.int64]:
        return self.episodes.lengths

    def take(self, rows: NDArray[np.int64]) -> Self:
        where = ranges(self.episodes.offsets[:-1][rows], self.episodes.lengths[rows])
        return replace(
            self,
            episodes=self.episodes.take(rows),
            advantage=self.advantage[where],
            old_logp=self.old_logp[where],
            scale=None if self.scale is None else self.scale[rows],
        )

    def weighted(self, reduction: Reduction = ONE_PROCESS) -> Self:
        return replace(self, scale=whole_batch(self.scheme, reduction)(self.episodes.lengths))

    def tensors(self) -> PuzzleBatch:
        scale = np.zeros(len(self)) if self.scale is None else self.scale
        owner = self.episodes.owner
        return PuzzleBatch(
            seen=torch.from_numpy(np.ascontiguousarray(self.episodes.observations)),
            chosen=torch.from_numpy(self.episodes.chosen.astype(np.int64)),
            behaviour_logp=torch.from_numpy(self.episodes.logp),
            old_logp=torch.from_numpy(self.old_logp),
            advantage=torch.from_numpy(self.advantage),
            weight=torch.from_numpy(scale[owner].astype(np.float32)),
            episode=torch.from_numpy(owner),
        )


def clipped_objective(policy: nn.Module, batch: PuzzleBatch) -> LossTerms:
    """PPO's clipped surrogate, against the log-probabilities at the start of the update."""
    return clipped_surrogate(batch.logp(policy), batch.old_logp, batch.advantage)


@dataclass(frozen=True, slots=True, kw_only=True)
class PuzzleTraining:
    """Settings of a training on a puzzle; the defaults learn addition in about two seconds."""

    puzzle: Puzzle = field(default_factory=addition)
    objective: Objective = clipped_objective
    credit: _Credit = group_relative
    scheme: WeightingScheme = token_mean
    steps: int = 100
    prompts: int = 36
    samples: int = 8
    learning_rate: float = 0.005
    epochs: int = 1
    minibatches: int = 1
    max_grad_norm: float | None = 1.0
    delay: int = 0
    """Number of publications that the behaviour policy is behind."""
    distort: _LogitDistortion | None = None
    gradient_descent: bool = False
    """Plain gradient descent: Adam without moments and with an epsilon far above any gradient."""


DESCENT_EPSILON = 1e4
"""Such an epsilon: Adam's step is then rate / FAR times the gradient."""

_PolicyMetrics = Callable[[nn.Module], Metrics]


def train_seeds(plan: PuzzleTraining, *, seed: int, runs: int, pretraining: int = 15) -> dict[str, Floats]:
    """Metrics of `runs` trainings with different seeds, `[runs, steps]` each; accuracy and entropy are among them.

    Each training starts from a network after `pretraining` supervised steps.
    """
    result = [
        train_policy(
            pretrained_network(plan.puzzle, seed=run_seed, steps=pretraining),
            plan,
            seed=run_seed,
            watch=lambda policy: puzzle_metrics(policy, plan.puzzle),
        )
        for run_seed in range(10 * seed, 10 * seed + runs)
    ]
    return {name: np.stack([each[name] for each in result]) for name in result[0]}


def final_accuracy(curves: dict[str, Floats]) -> float:
    """Share of questions solved after the last step, a mean over the seeds of `train_seeds`."""
    return float(curves["solved"][:, -1].mean())


def train_policy(
    policy: nn.Module, plan: PuzzleTraining, *, seed: int, watch: _PolicyMetrics | None = None
) -> dict[str, Floats]:
    """Train `policy` in place by hone's loop; metrics by name, each `[steps]` (NaN for steps without the metric)."""
    parameters = FlatParameters(policy.parameters())
    phase: OptimizerPhase[nn.Module, PuzzleBatch] = OptimizerPhase(
        name="policy",
        objective=plan.objective,
        parameters=parameters,
        optimizer=Adam(parameters, betas=(0.0, 0.0), eps=DESCENT_EPSILON)
        if plan.gradient_descent
        else Adam(parameters),
        max_grad_norm=plan.max_grad_norm,
    )

    def layout(episodes: Episodes, credits: Credits) -> _PuzzleRows:
        with torch.no_grad():
            table = log_softmax(policy, torch.from_numpy(np.ascontiguousarray(episodes.observations)))
        before = table.numpy()[np.arange(episodes.decisions), episodes.chosen.astype(np.int64)]
        return _PuzzleRows(episodes=episodes, advantage=credits.advantage, old_logp=before, scheme=plan.scheme)

    learner: GradientLearner[nn.Module, PuzzleBatch] = GradientLearner(
        policy=policy,
        layout=layout,
        phases=[phase],
        seed=seed,
        learning_rate=lambda _: plan.learning_rate * DESCENT_EPSILON if plan.gradient_descent else plan.learning_rate,
        epochs=plan.epochs,
        minibatches=plan.minibatches,
    )
    world = PuzzleWorld(puzzle=plan.puzzle, seed=seed, prompts=plan.prompts, samples=plan.samples, distort=plan.distort)
    history: list[Metrics] = []

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        del step, credits
        history.append({**metrics, "reward": float(episodes.score.mean()), **(watch(policy) if watch else {})})

    source: LiveSource[nn.Module] = LiveSource(world=world, actor=DelayedActor(delay=plan.delay))
    train(Recipe(source=source, credit=plan.credit, learner=learner), steps=plan.steps, callback=report)
    names = dict.fromkeys(name for metrics in history for name in metrics)
    return {name: np.array([metrics.get(name, np.nan) for metrics in history]) for name in names}
