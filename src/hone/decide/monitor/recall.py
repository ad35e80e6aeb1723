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

from hone.core.decisions import DecisionPolicy, Evidence, Floats
from hone.decide.monitor.tenant import RewardedDecision
from hone.decide.registry.registry import VersionRegistry

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
    """Error of a version's scores on the recent rewards."""

    version: str
    error: float
    """Mean squared difference of reward and score."""
    served: float
    """Its error minus that of the scores that were served."""
    constant: float
    """Its error minus that of the mean of these rewards, the best score that knows no context."""
    high: float
    """Upper end of the one-sided interval of `constant`."""
    count: int

    @property
    def explains(self) -> bool:
        """True if it predicts surely better than a constant, and better than was served. The second alone would not do:
        after a change every version beats the one that was served, right or wrong."""
        return self.high < 0 and self.served < 0


def fit_versions(
    rows: Sequence[RewardedDecision], library: VersionLibrary, tenant: str, *, alpha: float = ALPHA
) -> tuple[VersionFit, ...]:
    """Fit of every older version that has scores to the rows; those that explain them first, by their error.

    Differences of squared errors are paired by row; the interval is normal at level 1 - alpha / versions. Fewer than
    two rows fit nothing.
    """
    versions = library.older(tenant)
    if len(rows) < 2 or not versions:
        return ()
    quantile = NormalDist().inv_cdf(1 - alpha / len(versions))
    reward = np.array([row.reward for row in rows])
    served = (reward - np.array([row.predicted for row in rows])) ** 2
    constant = (reward - reward.mean()) ** 2
    fits: list[VersionFit] = []
    for version in versions:
        predicted = _scores(rows, library.policy(version))
        if predicted is None:
            continue
        errors = (reward - predicted) ** 2
        fits.append(VersionFit(
            version=version, error=float(errors.mean()), served=float((errors - served).mean()),
            constant=float((errors - constant).mean()), high=_upper_end(errors - constant, quantile), count=len(rows),
        ))  # fmt: skip
    return tuple(sorted(fits, key=lambda fit: (not fit.explains, fit.error, fit.version)))


def _upper_end(values: Floats, quantile: float) -> float:
    return float(values.mean() + quantile * values.std(ddof=1) / math.sqrt(len(values)))


def recall_evidence(fit: VersionFit, *, at_s: float) -> Evidence:
    """Evidence for the recall of a version: `ok` if it explains the rewards."""
    words = (
        f"version {fit.version} predicts the last {fit.count} rewards with a mean squared error of {fit.error:.4f}: "
        f"{fit.served:+.4f} beside the served scores, {fit.constant:+.4f} beside a constant (at most {fit.high:+.4f})"
    )
    return Evidence(
        kind="recall", verdict="ok" if fit.explains else "weak", words=words, value=fit.constant, high=fit.high,
        count=fit.count, made_by="monitor", at_s=at_s,
    )  # fmt: skip


def _scores(rows: Sequence[RewardedDecision], policy: DecisionPolicy) -> Floats | None:
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
