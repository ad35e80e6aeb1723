"""CFR+: regret matching in every information set of a small game, averaged over behaviour (Tammelin, 2014).

R_t(s, a) = max(0, R_{t-1}(s, a) + v(s, a) - sum_b pi(b | s) v(s, b)) with counterfactual values v, pi in proportion to
R, and the average of pi weighted by t. Seats are visited in turn.
"""

from dataclasses import dataclass, field

import numpy as np

from hone.control.networks.seats import InformationSetPolicy
from hone.control.seats.training import evaluate_seats
from hone.control.seats.tree_play import Floats, regret_matching
from hone.control.seats.tree_training import TreeMethod, TreePolicies, TreeRunConfig, TreeSource
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.state import State, array, integer
from hone.credit.returns import expected_baseline
from hone.run.job import RecipeParts, RecipeSpec


@dataclass(kw_only=True)
class _RegretLearner:
    """CFR+ (Tammelin, 2014): regrets never fall below 0, play is in proportion to them, and the average weighs
    iteration t by t."""

    policies: TreePolicies
    regrets: Floats = field(init=False)
    summed: Floats = field(init=False)
    updates: int = 0

    def __post_init__(self) -> None:
        self.regrets, self.summed = np.zeros_like(self.policies.current), np.zeros_like(self.policies.current)

    @property
    def policy(self) -> InformationSetPolicy:
        """The average, which is released."""
        return self.policies.released

    def values(self, episodes: Episodes) -> Values:
        del episodes
        return NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Add the regrets of one seat's information sets, and play by them."""
        play, tree = self.policies.play, self.policies.play.tree
        assert episodes.seat is not None
        seat, sets = int(episodes.seat[0]), episodes.group
        cells = episodes.observations.astype(np.int64), episodes.chosen.astype(np.int64)
        self.regrets[cells] = np.maximum(self.regrets[cells] + credits.advantage, 0.0)
        self.policies.current[sets] = regret_matching(self.regrets[sets], tree.legal[sets])
        iteration, self.updates = 1 + self.updates // play.seats, self.updates + 1
        own = play.reach(self.policies.current, seat=seat)[play.first_histories]
        self.summed[sets] += iteration * own[sets, None] * self.policies.current[sets]
        total = self.summed.sum(axis=1, keepdims=True)
        self.policies.release(np.where(total > 0, self.summed / np.where(total > 0, total, 1.0), play.uniform()))
        return {"tree/regret": float(self.regrets.max())}

    def state(self) -> State:
        return {
            "updates": self.updates,
            "regrets": self.regrets.copy(),
            "summed": self.summed.copy(),
            "current": self.policies.current.copy(),
        }

    def restore(self, state: State) -> None:
        self.updates = integer(state, "updates")
        for mine, name in ((self.regrets, "regrets"), (self.summed, "summed"), (self.policies.current, "current")):
            mine[:] = array(state, name)


class CfrPlusConfig(TreeRunConfig):
    """Counterfactual regrets over the whole tree."""

    def method(self, policies: TreePolicies) -> TreeMethod:
        """Source, credit and learner of the recipe."""
        source, learner = TreeSource(policies=policies), _RegretLearner(policies=policies)
        return TreeMethod(source=source, credit=expected_baseline, learner=learner)


ENTRY = RecipeSpec(
    summary="poker: counterfactual regrets over the whole tree, averaged over behaviour",
    paper="Tammelin, Solving Large Imperfect Information Games Using CFR+, 2014",
    config=CfrPlusConfig,
    parts=RecipeParts(source="Tree(game)", credit=[expected_baseline], loss=[regret_matching]),
    evaluate=evaluate_seats,
    limitation="visits every history in each step: small games only.",
)
