"""KL to a reference policy as part of the reward, with fixed and adaptive coefficients, and distillation.

KL as a loss is in `objectives.kl`. Estimates are on sampled actions, in nats.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.ragged import row_sums
from hone.core.state import State, number
from hone.credit.grouping import CreditFunction, DecisionColumn, behaviour_logp, checked_column
from hone.credit.returns import scored_decisions

Floats = NDArray[np.float64]
KlEstimator: TypeAlias = Callable[[Floats], Floats]
"""log pi - log pi_ref of the actions `[N]` -> estimates of KL(pi || pi_ref) `[N]`, in nats."""

LOG_RATIO_BOUND = 20.0


def k1(gap: Floats) -> Floats:
    """log pi - log pi_ref: unbiased, of either sign (Schulman, 2020). In a reward its gradient is that of the KL."""
    return gap


def k2(gap: Floats) -> Floats:
    """(log pi - log pi_ref)^2 / 2: never negative, biased (Schulman, 2020)."""
    return 0.5 * gap**2


def k3(gap: Floats) -> Floats:
    """exp(-d) + d - 1 with d = log pi - log pi_ref: unbiased, never negative (Schulman, 2020). -d is clamped to +-20.

    Elsewhere: verl and SkyRL cap the value at 10, too, OpenRLHF and AReaL cap every estimator at +-10; TRL does
    neither.
    """
    return np.expm1(-np.clip(gap, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)) + gap


def absolute(gap: Floats) -> Floats:
    """|log pi - log pi_ref| (verl's `abs`): never negative; on the policy's samples its mean is no KL divergence."""
    return np.abs(gap)


@dataclass(frozen=True, slots=True, kw_only=True)
class KlEstimate:
    """KL of the policy of one batch to the reference."""

    episode_nats: float
    """Nats: the mean over episodes of the sum over their decisions."""
    decision_nats: float
    """Nats: the mean over episodes of the mean over their decisions."""
    episodes: int
    """Episodes with a decision."""


class KlController(Protocol):
    """Chooses the coefficient of the KL reward, per nat."""

    @property
    def weight(self) -> float:
        """Coefficient for the next batch."""
        ...

    def observe(self, distance: KlEstimate) -> None:
        """Updates the coefficient after a batch that was rewarded with `weight`."""

    def state(self) -> State:
        """Everything a resumed run needs."""
        ...

    def restore(self, state: State) -> None:
        """Load a state that `state` returned."""


class FixedKlController:
    """A constant coefficient. verl's default is 0.001, RLOO's in TRL 0.05."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def observe(self, distance: KlEstimate) -> None:
        del distance

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        del state


class AdaptiveKlController:
    """e = clip(KL / target - 1, -0.2, 0.2); weight *= 1 + e * episodes / horizon (Ziegler et al. 2019, 1909.08593).

    `target` is in nats per episode, as in the paper, with `unit="episode"`, and per decision with `unit="decision"`, as
    in verl (with target 0.1, horizon 10000, first weight 0.001). The two differ by the length of an answer.
    """

    def __init__(
        self,
        *,
        weight: float = 0.2,
        target: float = 6.0,
        horizon: float = 10_000.0,
        unit: Literal["episode", "decision"] = "episode",
    ) -> None:
        self.weight = weight
        self.target = target
        self.horizon = horizon
        self.unit = unit

    def observe(self, distance: KlEstimate) -> None:
        result = distance.episode_nats if self.unit == "episode" else distance.decision_nats
        error = min(max(result / self.target - 1.0, -0.2), 0.2)
        self.weight *= 1.0 + error * distance.episodes / self.horizon

    def state(self) -> State:
        return {"weight": self.weight}

    def restore(self, state: State) -> None:
        """Load the coefficient; raises DataError for a state without one."""
        self.weight = number(state, "weight")


class KlRewardCredit:
    """Wraps a credit: r_t -= weight * k_t at each decision, and so R -= weight * sum of k_t (Ziegler et al. 2019).

    A group's baseline (RLOO, as in its paper) and returns to go (PPO, REINFORCE++) include the KL. Elsewhere:
    OpenRLHF's RLOO adds it after the baseline, slime's REINFORCE++-baseline per token, not summed. An answer without a
    score stays without. `current` gives log pi of each action, by default as recorded by the behaviour policy;
    `reference` that of the reference, both in nats `[N]`; DataError where one is not finite. Keep its `state()` with a
    checkpoint: an adaptive weight is part of the run.
    """

    def __init__(
        self,
        credit: CreditFunction,
        *,
        reference: DecisionColumn,
        controller: KlController,
        current: DecisionColumn = behaviour_logp,
        estimator: KlEstimator = k1,
    ) -> None:
        self.credit = credit
        self.reference = reference
        self.controller = controller
        self.current = current
        self.estimator = estimator

    def __call__(self, episodes: Episodes, values: Values) -> Credits:
        now = checked_column(self.current, episodes, "the policy's log-probability")
        gap = now - checked_column(self.reference, episodes, "the reference's log-probability")
        nats = self.estimator(gap)
        weight = self.controller.weight
        price = weight * np.where(scored_decisions(episodes), nats, 0.0)
        shaped = replace(
            episodes,
            reward=(episodes.reward - price).astype(np.float32),
            score=episodes.score - row_sums(price, episodes.offsets),
        )
        credits = self.credit(shaped, values)
        distance = estimate_kl(episodes, nats)
        self.controller.observe(distance)
        metrics = {"reward/kl_nats": distance.episode_nats, "reward/kl_coef": weight}
        return replace(credits, metrics={**credits.metrics, **metrics})

    def state(self) -> State:
        return self.controller.state()

    def restore(self, state: State) -> None:
        self.controller.restore(state)


def estimate_kl(episodes: Episodes, nats: Floats) -> KlEstimate:
    """KL of a batch from estimates `[N]`; answers without a score count too."""
    length = episodes.lengths
    whole = row_sums(nats, episodes.offsets)[length > 0]
    if not len(whole):
        return KlEstimate(episode_nats=0.0, decision_nats=0.0, episodes=0)
    return KlEstimate(
        episode_nats=float(whole.mean()), decision_nats=float((whole / length[length > 0]).mean()), episodes=len(whole)
    )


def distillation_credit(
    episodes: Episodes,
    _values: Values,
    *,
    teacher: DecisionColumn,
    current: DecisionColumn = behaviour_logp,
    weight: float = 1.0,
) -> Credits:
    """A_t = -weight (log pi - log pi_teacher) of each action: on-policy distillation, reverse KL with discount 0
    (Thinking Machines, 2025; MiniLLM, Gu et al. 2023, 2306.08543, discounts by 1).

    A constant to the loss: differentiated instead, its expected gradient would not depend on the teacher. Scores, also
    missing ones, are ignored. Elsewhere: slime adds it to any other advantage.
    """
    now = checked_column(current, episodes, "the policy's log-probability")
    nats = now - checked_column(teacher, episodes, "the teacher's log-probability")
    metrics = {"distill/kl_nats": estimate_kl(episodes, nats).episode_nats}
    return Credits(advantage=(-weight * nats).astype(np.float32), metrics=metrics)
