"""Small bandit policies for tests: models with random rows in them, and hypothesis strategies of wrapped stacks."""

import numpy as np
from hypothesis import strategies as st

from hone.core.decisions import ActionSet, Bools, Floats
from hone.decide.bandits.greedy import (
    BoltzmannPolicy,
    EpsilonGreedyPolicy,
    GaussianThompsonPolicy,
    LinUcbPolicy,
    SquareCbPolicy,
)
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.policy import BanditPolicy, numbered_actions
from hone.decide.bandits.wrappers import (
    ActionRange,
    Clipped,
    EpsilonFloor,
    Fallback,
    ForbiddenActions,
    Masked,
    Routed,
    Shielded,
)

ARMS, FEATURES = 4, 3
ACTIONS = numbered_actions(ARMS)


class ModuloShield:
    """Shield that forbids the action whose number is the first feature's size, and falls back on action 1."""

    certificate = ""

    def __init__(self, *, everything: bool = False) -> None:
        self.everything = everything

    def allowed(self, context: Floats, actions: ActionSet) -> Bools:
        if self.everything:
            return np.zeros(len(actions), dtype=np.bool_)
        return np.arange(len(actions)) != int(abs(context[0]) * 3) % len(actions)

    def fallback(self, context: Floats, actions: ActionSet) -> int:
        return 1


def learnt_model(seed: int, rows: int = 25) -> LinearGaussianPosterior:
    """A model of `ARMS` arms that has learnt from random rows."""
    rng = np.random.default_rng(seed)
    model = LinearGaussianPosterior(ARMS, FEATURES)
    contexts = rng.normal(size=(rows, FEATURES))
    model.observe(contexts, rng.integers(0, ARMS, rows), rng.normal(size=rows), np.ones(rows), ACTIONS)
    return model


def base_policies() -> st.SearchStrategy[BanditPolicy]:
    """Policies without wrappers."""
    models = st.integers(0, 50).map(learnt_model)
    return st.one_of(
        models.map(lambda model: LinUcbPolicy(model, 1.0)),
        models.map(lambda model: EpsilonGreedyPolicy(model, 0.3)),
        models.map(lambda model: BoltzmannPolicy(model, 0.5)),
        models.map(lambda model: SquareCbPolicy(model, 1.0)),
        models.map(GaussianThompsonPolicy),
    )


def wrapped(inner: st.SearchStrategy[BanditPolicy]) -> st.SearchStrategy[BanditPolicy]:
    """One wrapper around policies of `inner`."""
    forbidden = st.sets(st.sampled_from(ACTIONS.names), max_size=ARMS - 1).map(lambda names: tuple(sorted(names)))
    ranges = st.tuples(st.integers(0, ARMS - 1), st.integers(0, ARMS - 1)).map(lambda ends: ActionRange(*sorted(ends)))
    filters = st.one_of(forbidden.map(ForbiddenActions), ranges)
    return st.one_of(
        st.builds(Masked, inner, filters),
        st.builds(Clipped, inner, filters),
        st.builds(Fallback, inner, inner, st.floats(-0.5, 0.5)),
        st.builds(Shielded, inner, st.booleans().map(lambda everything: ModuloShield(everything=everything))),
        st.builds(lambda one, other: Routed([one, other], [0.3, 0.7]), inner, inner),
        inner.map(lambda policy: policy if policy.restricts() else EpsilonFloor(policy, 0.1)),
    )


def stacks() -> st.SearchStrategy[BanditPolicy]:
    """Policies in up to a few wrappers."""
    return st.recursive(base_policies(), wrapped, max_leaves=4)
