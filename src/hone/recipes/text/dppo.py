"""DPPO: a token's gradient ends where its probability, not its ratio, has moved too far (2026).

A = R - mean of the group; loss = -sg[r] A log pi, 0 where A pushes a token on whose divergence from whoever acted is
above a threshold: |p - q| or the KL of "this token or another", or either over the likeliest tokens. Mask and ratio are
both against whoever acted. The thresholds, 0.15 and 0.05 nats, are those of verl's example; the cap on the ratio is
off.
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.credit.group import Scale, group_relative
from hone.objectives.kl import kl_penalty
from hone.objectives.terms import Terms
from hone.objectives.trust import binary_kl, binary_tv, dppo, top_kl, top_tv, trusted
from hone.objectives.weights import constant_length
from hone.train.job import Parts
from hone.train.text.loss import Denominator, Loss, TokenView, denominator_of
from hone.train.text.loss_adapters import Penalties, penalised
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, TextRun, by_gradient, groups, text_entry, untruncated


class BinaryTv(Config):
    """|p - q| of the chosen token."""

    kind: Literal["tv"] = "tv"
    """Names this alternative."""
    rise_probability: float = Field(default=0.15, gt=0, lt=1)
    """A praised token is trusted to rise this far."""
    fall_probability: float = Field(default=0.15, gt=0, lt=1)
    """A punished token is trusted to fall this far."""
    top: int = Field(default=0, ge=0)
    """Take the distance over this many of the likeliest tokens as well; 0: of the chosen one against all others."""

    def measure(self, view: TokenView) -> tuple[Tensor, float, float]:
        """Divergence `[n]`, and what is trusted upwards and downwards."""
        found = top_tv(*listed(view)) if self.top else binary_tv(view.now, view.acted)
        return found, self.rise_probability, self.fall_probability


class BinaryKl(Config):
    """KL of the chosen token against all others."""

    kind: Literal["kl"]
    """Names this alternative."""
    rise_nats: float = Field(default=0.05, gt=0)
    """A praised token is trusted this far upwards."""
    fall_nats: float = Field(default=0.05, gt=0)
    """A punished token is trusted this far downwards."""
    top: int = Field(default=0, ge=0)
    """Take the distance over this many of the likeliest tokens as well; 0: of the chosen one against all others."""

    def measure(self, view: TokenView) -> tuple[Tensor, float, float]:
        """Divergence `[n]`, and what is trusted upwards and downwards."""
        found = top_kl(*listed(view)) if self.top else binary_kl(view.now, view.acted)
        return found, self.rise_nats, self.fall_nats


class DppoAlgorithm(Penalties):
    """How far tokens are trusted."""

    trust: Annotated[BinaryTv | BinaryKl, Field(discriminator="kind")] = BinaryTv()
    """The divergence and its thresholds."""
    ratio_cap: float | None = Field(default=None, gt=0)
    """Largest weight of a token; unset: none, because truncation is biased."""
    scale: Scale = "none"
    """What centred scores are divided by: the group's standard deviation, the batch's, or nothing."""


def all_tokens(config: TextRun) -> None:
    """A divergence over the likeliest tokens needs them all."""
    assert isinstance(config, Dppo)
    if config.algorithm.trust.top:
        untruncated(config)


class Dppo(TextRl):
    """Divergence proximal policy optimisation."""

    requires = (groups, all_tokens)
    algorithm: DppoAlgorithm = DppoAlgorithm()
    """Trust region and penalties."""

    def denominator(self) -> Literal["self", "recomputed", "recorded"]:
        """The paper's anchor, unless another one is asked for: whoever acted."""
        asked: Denominator = self.learner.ratio.denominator
        anchor: Denominator = "recorded" if asked == "auto" else asked
        return denominator_of(
            self.learner.ratio.model_copy(update={"denominator": anchor}),
            updates_per_rollout=self.learner.optimizer_steps(1),
            stale=self.rollout.collecting.steps > 0,
        )


def listed(view: TokenView) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What divergences over the likeliest tokens are made of; both policies are the trainer's, which knows them all."""
    assert view.among is not None
    assert view.likeliest is not None
    chosen_too = (view.likeliest.ids == view.chosen[:, None]).any(dim=1)
    return view.now, view.start, view.among, view.likeliest.logp, chosen_too


def method(config: Dppo, policies: Policies) -> Method:
    chosen = config.algorithm

    def objective(view: TokenView) -> Terms:
        divergence, rise, fall = chosen.trust.measure(view)
        keep = trusted(view.now, view.then, view.advantage, divergence, most_rising=rise, most_falling=fall)
        return dppo(view.now, view.then, view.advantage, keep, ratio_cap=chosen.ratio_cap)

    loss = Loss(
        objective=objective,
        scheme=partial(constant_length, length=config.rollout.max_tokens),
        proportional=True,
        likeliest=chosen.trust.top,
        start=chosen.trust.top > 0,
    )
    learner = by_gradient(config, policies, penalised(loss, chosen))
    return Method(credit=partial(group_relative, scale=chosen.scale), learner=learner)


ENTRY = text_entry(
    summary="a trust region in probability instead of a clip of the ratio",
    source="Rethinking the Trust Region in LLM Reinforcement Learning, 2602.04879, 2026",
    config=Dppo,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(dppo, trusted, binary_tv, kl_penalty), weights=(constant_length,)),
    limitation="tokens outside are dropped, not corrected; the likeliest tokens are the trainer's, not the engine's.",
    presets=("dppo_tv", "dppo_kl"),
)
