"""Exploration on one bandit: the regret of each method by the arms' true rates."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hone.control.finite.model import FiniteMdp, MdpOutcomes, make_mdp
from hone.control.finite.world import FiniteWorld
from hone.control.tables.explore import (
    ConstantSchedule,
    EpsilonGreedy,
    Exploration,
    ExponentialSchedule,
    SoftmaxActions,
)
from hone.control.tables.explore import UpperConfidenceBound as Ucb
from hone.control.tables.learn import QLearningRule, RateConfig
from hone.control.tables.tables import ActionTable, StateFeatures
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.ragged import Ints
from hone.core.state import State
from hone.credit.returns import reward_as_advantage
from hone.decide.bandits.models import BetaBernoulliPosterior
from hone.decide.bandits.policy import numbered_actions
from hone.lab.control import replicate_mdp, tabular_recipe, train_recipe
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.run.loop import Recipe
from hone.run.report.html import format_number
from hone.sources.live import LiveSource

RATES = np.array([0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7])
"""Probability that each arm pays 1."""
ARMS = len(RATES)
_MEAN = RateConfig(rate=1.0, power=1.0)
"""Each value is the mean reward of its arm."""
_RECENT = RateConfig(rate=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorationMethod:
    """A table with an exploration rule."""

    exploration: Exploration
    initial: float = 0.0
    rate: RateConfig = field(default=_MEAN)


_GREEDY = EpsilonGreedy(epsilon=ConstantSchedule(value=0.0))
_METHODS: Mapping[str, ExplorationMethod | None] = {
    "greedy": ExplorationMethod(exploration=_GREEDY),
    "epsilon 0.1": ExplorationMethod(exploration=EpsilonGreedy(epsilon=ConstantSchedule(value=0.1))),
    "epsilon falling": ExplorationMethod(
        exploration=EpsilonGreedy(
            epsilon=ExponentialSchedule(kind="exponential", start=1.0, end=0.0, half_life=60.0),
        )
    ),
    "optimistic": ExplorationMethod(exploration=_GREEDY, initial=2.0, rate=_RECENT),
    "Boltzmann": ExplorationMethod(
        exploration=SoftmaxActions(kind="boltzmann", temperature=ConstantSchedule(value=0.1))
    ),
    "UCB": ExplorationMethod(exploration=Ucb(kind="ucb", weight=0.5)),
    "Thompson": None,
}
"""Thompson sampling has a posterior, not a table."""


def _bandit_mdp() -> FiniteMdp:
    """A bandit as a single state whose arms pay 1 or 0."""
    arm = np.repeat(np.arange(ARMS), 2)
    nothing = np.zeros(2 * ARMS, np.int64)
    return make_mdp(
        MdpOutcomes(
            state=nothing, action=arm, next_state=nothing, probability=np.column_stack([RATES, 1 - RATES]).reshape(-1),
            reward=np.tile([1.0, 0.0], ARMS), terminates=np.zeros(2 * ARMS, np.bool_),
        ),
        states=1, actions=ARMS, start=np.ones(1), discount=0.9,
    )  # fmt: skip


@dataclass
class ThompsonSampler:
    """Thompson sampling for every copy of the bandit: acts, and learns in closed form."""

    policy: BetaBernoulliPosterior
    version: int = 0

    def publish(self, policy: BetaBernoulliPosterior, version: int) -> None:
        self.policy, self.version = policy, version

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Seed of an iteration's samples, one number for each decision."""
        return draws.random(shape, dtype=np.float32)

    def decide(
        self, seen: Ints, noise: NDArray[np.float32], mask: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, NDArray[np.float32]]:
        """The arm with the greatest sampled rate, in every copy."""
        del mask
        draws = np.random.default_rng(noise.view(np.uint32))
        plausible = self.policy.draw(np.zeros((1, 0)), draws).reshape(-1, ARMS)[seen]
        return plausible.argmax(axis=1), np.full(len(seen), np.nan, np.float32)

    def values(self, episodes: Episodes) -> Values:
        del episodes
        return NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        pulled = episodes.observations.astype(np.int64) * ARMS + episodes.chosen.astype(np.int64)
        reward, arms = credits.advantage.astype(np.float64), numbered_actions(len(self.policy.alpha))
        self.policy.observe(np.zeros((len(pulled), 0)), pulled, reward, np.ones(len(pulled)), arms)
        return dict(credits.metrics)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        del state


def regret(way: ExplorationMethod | None, *, seed: int, pulls: int, copies: int) -> tuple[Floats, Floats]:
    """Expected regret of each pull, a mean over copies `[pulls]`, and of all pulls of each copy `[copies]`."""
    world = FiniteWorld(
        mdp=replicate_mdp(_bandit_mdp(), copies), steps=1, seed=seed, copies=copies, seen=np.arange(copies)
    )
    world.restore({**world.state(), "seen": np.arange(copies)})  # one player to each bandit
    lost, by_copy = np.empty(pulls), np.zeros(copies)

    def watch(step: int, episodes: Episodes) -> None:
        short = RATES.max() - RATES[episodes.chosen.astype(np.int64)]
        lost[step - 1] = short.mean()
        by_copy[episodes.observations.astype(np.int64)] += short

    if way is None:
        player = ThompsonSampler(BetaBernoulliPosterior(copies * ARMS))
        train_recipe(
            Recipe(source=LiveSource(world, player), credit=reward_as_advantage, learner=player),
            steps=pulls,
            watch=watch,
        )
    else:
        table = ActionTable(StateFeatures(count=copies, actions=ARMS), explore=way.exploration, initial=way.initial)
        train_recipe(
            tabular_recipe(world, table, QLearningRule(actions=ARMS), rate=way.rate, credit=reward_as_advantage),
            steps=pulls,
            watch=watch,
        )
    return lost, by_copy


def claims_of(total: dict[str, float], late: dict[str, float], pulls: int) -> list[BoundedClaim]:
    """Claims on the regret of all pulls and of a late pull, by method."""
    return [
        at_least("regret of greedy over Thompson", total["greedy"] / total["Thompson"], 1.5),
        at_least("regret of epsilon 0.1 over Thompson", total["epsilon 0.1"] / total["Thompson"], 1.1),
        at_most("late regret of Thompson over its mean", late["Thompson"] * pulls / total["Thompson"], 0.7),
        at_least("late regret of greedy over its mean", late["greedy"] * pulls / total["greedy"], 0.8),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    pulls, copies = (800, 120) if quick else (1000, 300)
    result = {name: regret(way, seed=seed, pulls=pulls, copies=copies) for name, way in _METHODS.items()}
    total = {name: float(lost.sum()) for name, (lost, _) in result.items()}
    late = {name: float(lost[-pulls // 10 :].mean()) for name, (lost, _) in result.items()}
    spread = {name: float(by_copy.std()) for name, (_, by_copy) in result.items()}
    best = min(total, key=total.__getitem__)
    return ExperimentResult(
        header=("method", f"regret of {pulls} pulls", "standard deviation over runs", "regret of a late pull"),
        rows=[
            (name, format_number(total[name]), format_number(spread[name]), f"{late[name]:.3f}") for name in _METHODS
        ],
        panels=[
            line_plot(
                "cumulative regret",
                "pulls",
                range(1, pulls + 1),
                {name: np.cumsum(lost) for name, (lost, _) in result.items()},
            )
        ],
        verdict=(
            f"On ten arms, the best with a success rate of 0.7, {pulls} pulls have a regret of {total['greedy']:.0f} "
            f"with the greedy policy (standard deviation over runs {spread['greedy']:.0f}), "
            f"{total['epsilon 0.1']:.0f} with epsilon 0.1, {total['epsilon falling']:.0f} with a falling epsilon, "
            f"{total['optimistic']:.0f} with optimism, {total['Boltzmann']:.0f} with Boltzmann exploration, "
            f"{total['UCB']:.0f} with UCB and {total['Thompson']:.0f} with Thompson sampling. {best} has the lowest "
            f"regret. A late pull still has a regret of {late['greedy']:.3f} with the greedy policy and "
            f"{late['Thompson']:.3f} with Thompson sampling."
        ),
        claims=claims_of(total, late, pulls),
        figures={f"regret/{name}": value for name, value in total.items()},
    )


EXPERIMENT = Experiment(
    title="Exploration in one bandit",
    question="How much regret does each exploration method have, early and late?",
    run=_run,
    source="Thompson, 1933; Auer et al., 2002; Sutton & Barto, 2018, chapter 2",
)
