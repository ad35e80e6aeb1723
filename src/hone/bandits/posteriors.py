"""Conjugate posteriors over the rewards of a bandit's arms.

A posterior samples one plausible reward per arm and decision; acting on the greatest is Thompson sampling (Thompson,
1933). Acting and learning are in `thompson.py`.
"""

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.strict_json import strict_json

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FORMAT = 1


class Posterior(Protocol):
    """Belief about K arms, given contexts of d numbers."""

    kind: str

    def draw(self, context: Floats, draws: np.random.Generator) -> Floats:
        """Plausible rewards `[n, K]` for contexts `[n, d]`, an independent draw for each."""
        ...

    def mean(self, context: Floats) -> Floats:
        """Expected rewards `[n, K]`."""
        ...

    def observe(self, context: Floats, arm: Ints, reward: Floats) -> None:
        """Learn from decisions `[n, d]`, `[n]`, `[n]`; raises DataError for rewards that the model has no room for."""
        ...

    def parameters(self) -> dict[str, Floats]:
        """All that it consists of."""
        ...

    def load_parameters(self, numbers: dict[str, Floats]) -> None:
        """Load the result of `parameters`; raises DataError for other names or shapes."""
        ...


class BetaBernoulliPosterior:
    """Arms with rewards 0 or 1, each with a Beta(`alpha`, `beta`) posterior of its rate; contexts are ignored."""

    kind = "beta_bernoulli"

    def __init__(self, arms: int, *, alpha: float = 1.0, beta: float = 1.0) -> None:
        self.alpha = np.full(arms, alpha)
        self.beta = np.full(arms, beta)

    def draw(self, context: Floats, draws: np.random.Generator) -> Floats:
        return draws.beta(self.alpha, self.beta, size=(len(context), len(self.alpha)))

    def mean(self, context: Floats) -> Floats:
        rate = self.alpha / (self.alpha + self.beta)
        return np.broadcast_to(rate, (len(context), len(rate)))

    def observe(self, context: Floats, arm: Ints, reward: Floats) -> None:
        del context
        wrong = np.flatnonzero((reward != 0.0) & (reward != 1.0))
        if len(wrong):
            raise DataError(
                f"reward {reward[wrong[0]]} of decision {wrong[0]}: a Beta-Bernoulli bandit learns from 0 and 1 only; "
                'use model.kind = "linear" for other rewards'
            )
        self.alpha += np.bincount(arm, weights=reward, minlength=len(self.alpha))
        self.beta += np.bincount(arm, weights=1.0 - reward, minlength=len(self.beta))

    def parameters(self) -> dict[str, Floats]:
        return {"alpha": self.alpha.copy(), "beta": self.beta.copy()}

    def load_parameters(self, numbers: dict[str, Floats]) -> None:
        _require_fit(self.parameters(), numbers)
        self.alpha, self.beta = numbers["alpha"].copy(), numbers["beta"].copy()


class LinearGaussianPosterior:
    """Arms with reward x . theta_k plus Gaussian noise; theta_k ~ N(0, 1 / prior_precision) (Agrawal & Goyal, 2013).

    With noise variance s^2 the posterior of theta_k is N(A^-1 b, A^-1), A = prior_precision I + sum x x' / s^2 and b =
    sum x r / s^2.
    """

    kind = "linear_gaussian"

    def __init__(self, arms: int, features: int, *, noise: float = 1.0, prior_precision: float = 1.0) -> None:
        self.precision = np.repeat(np.eye(features)[None] * prior_precision, arms, axis=0)
        """`[K, d, d]` A."""
        self.information = np.zeros((arms, features))
        """`[K, d]` b."""
        self.noise = noise

    def draw(self, context: Floats, draws: np.random.Generator) -> Floats:
        arms, features = self.information.shape
        # With A = L L', theta = A^-1 b + L'^-1 z has covariance A^-1.
        lower = np.linalg.cholesky(self.precision)
        spread = np.linalg.solve(np.swapaxes(lower, 1, 2), np.eye(features))
        noise = draws.standard_normal((len(context), arms, features))
        theta = self._center() + np.einsum("kij,nkj->nki", spread, noise)
        return np.einsum("nd,nkd->nk", context, theta)

    def mean(self, context: Floats) -> Floats:
        return context @ self._center().T

    def observe(self, context: Floats, arm: Ints, reward: Floats) -> None:
        if not np.isfinite(reward).all():
            where = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise DataError(f"reward {reward[where]} of decision {where} is not finite")
        scaled = context / self.noise**2
        np.add.at(self.precision, arm, np.einsum("ni,nj->nij", scaled, context))
        np.add.at(self.information, arm, scaled * reward[:, None])

    def parameters(self) -> dict[str, Floats]:
        return {"precision": self.precision.copy(), "pull": self.information.copy(), "noise": np.array(self.noise)}

    def load_parameters(self, numbers: dict[str, Floats]) -> None:
        _require_fit(self.parameters(), numbers)
        self.precision, self.information = numbers["precision"].copy(), numbers["pull"].copy()
        self.noise = float(numbers["noise"])

    def _center(self) -> Floats:
        return np.linalg.solve(self.precision, self.information[:, :, None])[:, :, 0].astype(np.float64, copy=False)


def save_posterior(posterior: Posterior, folder: Path) -> None:
    """Write `policy.json`: kind and numbers, which survive the text exactly."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {name: values.tolist() for name, values in posterior.parameters().items()}
    text = json.dumps({"format": FORMAT, "kind": posterior.kind, "numbers": numbers}, indent=1)
    (folder / "policy.json").write_text(text + "\n", encoding="utf-8")


def load_posterior(posterior: Posterior, folder: Path) -> None:
    """Read a posterior saved by `save_posterior` into one of the same kind and size; raises DataError."""
    path = folder / "policy.json"
    try:
        saved: Any = strict_json(path.read_bytes())
        kind, numbers = saved["kind"], saved["numbers"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: cannot read the posterior: {error!r}") from error
    if kind != posterior.kind:
        raise DataError(f"{path}: a {kind} posterior; this run's is {posterior.kind}")
    posterior.load_parameters({name: np.array(values, dtype=np.float64) for name, values in numbers.items()})


def _require_fit(here: dict[str, Floats], saved: dict[str, Floats]) -> None:
    shapes = {name: values.shape for name, values in here.items()}
    others = {name: values.shape for name, values in saved.items()}
    if shapes != others:
        raise DataError(f"the saved posterior has {others}, this run's has {shapes}")
