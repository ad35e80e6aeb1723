"""Divergences of a student from its teacher, as a config of recipes names them: on sampled tokens, or on k tokens."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.distill import forward_kl, generalised_jsd, reverse_kl, with_tail
from hone.objectives.terms import LossTerms
from hone.objectives.weights import PromptScheme, WeightingScheme
from hone.text.loss import TokenLossSpec, TokenView, likeliest_tokens
from hone.text.rows import TokenBatch


class SampledTokens(Config):
    """The reverse KL estimated on the sampled tokens, as an advantage of a policy gradient."""

    kind: Literal["sampled"] = "sampled"
    """Names this alternative."""


class _TopKDivergence(Config):
    """A divergence of the distributions themselves, over k tokens and the rest as one more."""

    likeliest_of: ClassVar[Literal["student", "teacher"]] = "student"
    """Policy that names the k tokens: the one by whose probabilities the divergence is weighted."""

    top_k: int = Field(default=64, ge=1)
    """Number of tokens that are compared one by one; all others count as one. The size of the vocabulary or more: the
    whole distribution."""


class ForwardKl(_TopKDivergence):
    """KL(teacher || student): the student covers everything that the teacher may write."""

    likeliest_of: ClassVar[Literal["student", "teacher"]] = "teacher"
    divergence: ClassVar[Callable[[Tensor, Tensor], LossTerms]] = staticmethod(forward_kl)
    """Log-probabilities of student and teacher `[n, k]` -> nats of each decision."""

    kind: Literal["forward_kl"]
    """Names this alternative."""


class ReverseKl(_TopKDivergence):
    """KL(student || teacher): the student avoids everything that the teacher would not write."""

    divergence: ClassVar[Callable[[Tensor, Tensor], LossTerms]] = staticmethod(reverse_kl)

    kind: Literal["reverse_kl"]
    """Names this alternative."""


class JensenShannon(_TopKDivergence):
    """The generalised Jensen-Shannon divergence between student and teacher (GKD)."""

    kind: Literal["jsd"]
    """Names this alternative."""
    mixture: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the teacher in the mixture that both are compared with, and of the teacher's own term."""

    def divergence(self, student: Tensor, teacher: Tensor) -> LossTerms:
        """Nats of each decision, of log-probabilities `[n, k]`."""
        return generalised_jsd(student, teacher, mixture=self.mixture)


DistillationDivergence: TypeAlias = Annotated[
    SampledTokens | ForwardKl | ReverseKl | JensenShannon, Field(discriminator="kind")
]


def _compared_tokens(
    policy: TokenPolicy, batch: TokenBatch, *, teacher: TokenPolicy, count: int, likeliest_of: str
) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens of the teacher or of the student `[n, K]`, and the teacher's log-probabilities of
    them."""
    ids, logp = likeliest_tokens(teacher if likeliest_of == "teacher" else policy, count, batch)
    if likeliest_of == "teacher":
        return ids, logp
    look = teacher.token_logprobs(batch.packed, batch.at, batch.chosen, extra_tokens=ids)
    assert look.extra_logp is not None
    return ids, look.extra_logp


def divergence_loss(
    chosen: ForwardKl | ReverseKl | JensenShannon,
    policy: TokenPolicy,
    teacher: TokenPolicy,
    scheme: WeightingScheme | PromptScheme,
    *,
    weight: float,
) -> TokenLossSpec:
    """The loss of a student on its own answers. Both see `vocab_size_used` tokens of the same tokenizer."""
    vocabulary = policy.vocab_size_used
    count = min(chosen.top_k, vocabulary)
    rest: Callable[[Tensor], Tensor] = with_tail if count < vocabulary else lambda logp: logp

    def objective(view: TokenView) -> LossTerms:
        """weight * divergence of each decision, on the k tokens and the mass of all others, if there are any."""
        assert view.top_k_logp is not None
        assert view.old_top_k is not None
        terms = chosen.divergence(rest(view.top_k_logp), rest(view.old_top_k.logp))
        return replace(terms, loss=weight * terms.loss)

    return TokenLossSpec(
        objective=objective,
        scheme=scheme,
        top_k=count,
        top_k_question=partial(_compared_tokens, teacher=teacher, count=count, likeliest_of=chosen.likeliest_of),
    )
