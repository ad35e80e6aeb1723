"""What a credit may ask of policies: one number per decision, computed by the trainer without a gradient.

Belongs here: the policy that learns, frozen ones that it is compared with, and questions to them as columns of
episodes. A frozen policy is loaded when a recipe first asks for it, once, and its fingerprint is part of the run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.state import Stateful
from hone.credit.grouping import CreditFunction, DecisionColumn
from hone.credit.kl_reward import (
    AdaptiveKlController,
    FixedKlController,
    KlController,
    KlRewardCredit,
    absolute,
    k1,
    k2,
    k3,
)
from hone.learner.share import shared_network, shared_question
from hone.models.language.quantised_linear import BITS
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.objectives.weights import token_sum
from hone.text.evaluate.open_policy import open_policy
from hone.text.loss import chosen_logp, collision_probability
from hone.text.open_text import TextDataConfig
from hone.text.rows import TokenBatch, TokenLayout
from hone.text.update_trace import UpdateTrace

KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3, "absolute": absolute}
RewardKlEstimator = Literal["k1", "k2", "k3", "absolute"]
REFERENCE_NAME = "the reference policy (model.path)"


@dataclass
class TextPolicies:
    """The policy that learns, and those that it is compared with."""

    policy: TokenPolicy
    open_frozen: Callable[[str | None], TokenPolicy]
    """A policy folder, or None for the policy that the run started from -> that policy, never stepped."""
    micro_batch_tokens: int
    device: str
    fingerprints: dict[str, str] = field(default_factory=dict[str, str])
    """Fingerprints of the frozen ones; a resume must find them unchanged."""
    trace: UpdateTrace = field(default_factory=UpdateTrace)
    """Figures of the tokens of each update, for the step's rollouts."""
    frozen_policies: dict[str | None, tuple[TokenPolicy, str]] = field(
        default_factory=dict[str | None, tuple[TokenPolicy, str]]
    )
    """Those that were opened, with their fingerprints, by their folder."""
    fingerprint: Callable[[TokenPolicy], str] = TokenPolicy.fingerprint
    """Fingerprint of a policy; weights without numbers have none."""

    def reference(self) -> TokenPolicy:
        """The policy as it was when the run started."""
        return self._open_frozen_once(None, REFERENCE_NAME)

    def teacher(self, path: str, *, key: str) -> TokenPolicy:
        """The policy in a folder. Raises DataError, naming the config's `key`, where its tokens are not ours."""
        policy = self._open_frozen_once(path, f"the teacher ({key})")
        require_same_tokens(self.policy.tokenizer, policy.tokenizer, f"{key} = {path!r}")
        return policy

    def logp(self, policy: TokenPolicy) -> DecisionColumn:
        """The log-probability of each choice under `policy`, nats."""
        ask = partial(self.logp_of, policy)
        return ask if policy is self.policy else shared_question(ask)

    def logp_of(self, policy: TokenPolicy, episodes: Episodes) -> NDArray[np.floating]:
        """`[N]` log-probability of each choice under `policy`, nats."""
        return self._evaluate_tokens(episodes, question=partial(chosen_logp, policy))

    def frozen(self, path: str | None, *, key: str) -> TokenPolicy:
        """A policy that nobody keeps in memory: the start of the run, or the one in a folder. Raises DataError, naming
        the config's `key`, where its tokens are not ours."""
        policy = self.open_frozen(path).requires_grad_(requires_grad=False)
        require_same_tokens(self.policy.tokenizer, policy.tokenizer, f"{key} = {path!r}")
        return policy

    def collision_probability(self) -> DecisionColumn:
        """sum over the vocabulary of pi(v)^2 at each decision, of the policy as it stands."""
        return partial(self._evaluate_tokens, question=partial(collision_probability, self.policy))

    def _evaluate_tokens(
        self, episodes: Episodes, *, question: Callable[[TokenBatch], tuple[Tensor]]
    ) -> NDArray[np.floating]:  # fmt: skip
        layout = TokenLayout(scheme=token_sum, device=self.device)
        rows = layout(episodes.split_rows(), Credits(advantage=np.ones(episodes.decisions, np.float32)))
        return rows.evaluate(question, self.micro_batch_tokens)[0].astype(np.float64)

    def _open_frozen_once(self, path: str | None, name: str) -> TokenPolicy:
        if path not in self.frozen_policies:
            opened = self.open_frozen(path).requires_grad_(requires_grad=False)
            fingerprint = self.fingerprint(opened)  # of the whole policy
            self.frozen_policies[path] = (shared_network(opened), fingerprint)
        policy, self.fingerprints[name] = self.frozen_policies[path]
        return policy


def require_same_tokens(ours: Tokenizer, theirs: Tokenizer, named: str) -> None:
    """Raises DataError for the tokenizer of another policy that is not the policy's own."""
    if ours.backend.get_vocab(with_added_tokens=True) != theirs.backend.get_vocab(with_added_tokens=True):
        raise DataError(
            f"{named}: its tokenizer ({theirs.size} tokens) is not the policy's ({ours.size} tokens), so it cannot "
            "judge the policy's tokens; take a policy of the same family"
        )


def text_policies(config: TextDataConfig, policy: TokenPolicy, *, micro_batch_tokens: int) -> TextPolicies:
    """The policy of a run, and the way to those that it is compared with."""

    def frozen(path: str | None) -> TokenPolicy:
        """Another folder, or the policy that the run started from: the base of a new adapter, or loaded once more."""
        if path is None and policy.adapter is not None and policy.adapter.starts_at_base:
            return policy.base_policy()
        other: dict[str, str | None] = {} if path is None else {"path": path, "new": None}
        if config.model.weights in BITS:  # codes are the base of an adapter
            other["weights"] = "float32"
        source = config.model.model_copy(update={"lora": None, **other})
        same = policy.tokenizer if path is None else None
        return open_policy(
            source, seed=config.seed, device=config.run.device, temperature=policy.temperature, tokenizer=same
        )

    return TextPolicies(
        policy=policy, open_frozen=frozen, micro_batch_tokens=micro_batch_tokens, device=config.run.device
    )


# ------------------------------------------------------------------------------------ the price of a distance


class FixedKlCoef(Config):
    """Constant coefficient of the KL penalty in the reward."""

    kind: Literal["fixed"] = "fixed"
    """Names this alternative."""
    weight: float = Field(default=0.0, ge=0)
    """Price of a nat; 0 keeps no reference."""
    estimator: RewardKlEstimator = "k1"
    """KL estimator on the sampled tokens; in a reward, k1 has the gradient of the KL of whole answers."""

    def controller(self) -> KlController:
        return FixedKlController(self.weight)


class AdaptiveKlCoef(Config):
    """Coefficient of the KL penalty in the reward, adapted towards a target KL."""

    kind: Literal["adaptive"]
    """Names this alternative."""
    weight: float = Field(default=0.2, gt=0)
    """Initial coefficient."""
    target_nats: float = Field(default=6.0, gt=0)
    """Target KL in nats, at which the coefficient stays constant."""
    unit: Literal["episode", "decision"] = "episode"
    """Unit of the target: a whole answer, or a token."""
    horizon: float = Field(default=10_000.0, gt=0)
    """Answers over which the coefficient can change by 20%."""
    estimator: RewardKlEstimator = "k1"
    """KL estimator on the sampled tokens; in a reward, k1 has the gradient of the KL of whole answers."""

    def controller(self) -> KlController:
        return AdaptiveKlController(weight=self.weight, target=self.target_nats, horizon=self.horizon, unit=self.unit)


KlCoef = Annotated[FixedKlCoef | AdaptiveKlCoef, Field(discriminator="kind")]


def with_kl_reward(
    credit: CreditFunction, kl_coef: FixedKlCoef | AdaptiveKlCoef, policies: TextPolicies
) -> tuple[CreditFunction, Stateful | None]:  # fmt: skip
    """`credit` with the distance to the reference paid in the reward, and what of it is part of a run's state."""
    if isinstance(kl_coef, FixedKlCoef) and kl_coef.weight == 0:
        return credit, None
    with_price = KlRewardCredit(
        credit,
        reference=policies.logp(policies.reference()),
        controller=kl_coef.controller(),
        estimator=KL_ESTIMATORS[kl_coef.estimator],
    )
    return with_price, with_price
