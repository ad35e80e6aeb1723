"""Recall: the older version of a policy that explains the recent rewards best.

Drift that comes back (a season, a campaign that runs again) is answered in as many rewards as it takes to recognise it,
instead of those that it takes to learn it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

import numpy as np

from hone.core.decisions import DecisionPolicy, Evidence
from hone.serve.monitor.tenant import RewardedDecision
from hone.store.registry.registry import VersionRegistry

ALPHA = 0.01
"""Probability of a needless recall at one look, over all older versions."""


class VersionLibrary(Protocol):
    """Older versions of the policy in service."""

    def older(self, tenant: str) -> Sequence[str]:
        """Versions that served a tenant before the present one, each once."""
        ...

    def policy(self, version: str) -> DecisionPolicy:
        """The policy of a version; its choices must have scores."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFit:
    """How well the scores of a version predict the recent rewards."""

    version: str
    error: float
    """Mean squared difference of reward and score."""
    difference: float
    """Its error minus that of the scores that were served."""
    high: float
    """Upper end of the one-sided interval of the difference."""
    count: int


def fit_versions(
    rows: Sequence[RewardedDecision], library: VersionLibrary, tenant: str, *, alpha: float = ALPHA
) -> tuple[VersionFit, ...]:
    """Fit of every older version that has scores to the rows, best first.

    The difference of squared errors is paired by row; its interval is normal at level 1 - alpha / versions. Fewer than
    two rows fit nothing.
    """
    versions = library.older(tenant)
    if len(rows) < 2 or not versions:
        return ()
    quantile = NormalDist().inv_cdf(1 - alpha / len(versions))
    reward = np.array([row.reward for row in rows])
    served = (reward - np.array([row.predicted for row in rows])) ** 2
    fits: list[VersionFit] = []
    for version in versions:
        predicted = _scores(rows, library.policy(version))
        if predicted is None:
            continue
        errors = (reward - predicted) ** 2
        difference = errors - served
        spread = float(difference.std(ddof=1)) / math.sqrt(len(rows))
        mean = float(difference.mean())
        fits.append(VersionFit(
            version=version, error=float(errors.mean()), difference=mean, high=mean + quantile * spread, count=len(rows)
        ))  # fmt: skip
    return tuple(sorted(fits, key=lambda fit: (fit.error, fit.version)))


def recall_evidence(fit: VersionFit, *, at_s: float) -> Evidence:
    """Evidence for the recall of a version: `ok` if it predicts better than the scores that were served."""
    better = fit.high < 0
    words = (
        f"version {fit.version} predicts the last {fit.count} rewards with a mean squared error of {fit.error:.4f}, "
        f"{abs(fit.difference):.4f} {'less' if fit.difference < 0 else 'more'} than the served scores; the upper end "
        f"of the difference is {fit.high:.4f}"
    )
    return Evidence(
        kind="recall", verdict="ok" if better else "weak", words=words, value=fit.difference, high=fit.high,
        count=fit.count, made_by="monitor", at_s=at_s,
    )  # fmt: skip


def _scores(rows: Sequence[RewardedDecision], policy: DecisionPolicy) -> np.ndarray | None:
    """Score of the executed action of each row; None if the policy has none, or one that is not finite."""
    predicted: list[float] = []
    for row in rows:
        decision = row.decision
        scores = policy.act(decision.context, decision.actions, decision.draw_key).scores
        if scores is None or not math.isfinite(scores[decision.executed]):
            return None
        predicted.append(float(scores[decision.executed]))
    return np.array(predicted)


class RegistryLibrary:
    """The versions of a registry that were live in a service, latest first; at most `most` of them are tried."""

    def __init__(
        self, registry: VersionRegistry, service: str, load: Callable[[Path], DecisionPolicy], *, most: int = 16
    ) -> None:
        self.registry, self.service, self._load, self._most = registry, service, load, most
        self._opened: dict[str, DecisionPolicy] = {}

    def older(self, tenant: str) -> Sequence[str]:
        """Versions that were live before the present one; all tenants of a service share them."""
        del tenant
        live = self.registry.live(self.service)
        moved = [move.version for move in reversed(self.registry.moves(self.service)) if move.after == "live"]
        return [version for version in dict.fromkeys(moved) if version != live][: self._most]

    def policy(self, version: str) -> DecisionPolicy:
        """Open a version. Raises DataError for a damaged one."""
        if version not in self._opened:
            self._opened[version] = self._load(self.registry.policy_folder(version))
        return self._opened[version]
