"""Losses by their names in Tinker's protocol, each one of hone's own objectives, summed over the tokens of a row.

With l = log p(target), q the given `logprobs` and A the given `advantages`, both data, and r = exp(l - q):

    cross_entropy         -w l                                     targets and weights w may have K columns
    importance_sampling   -r A
    ppo                   -min(r A, clip(r, low, high) A)
    cispo                 -sg[clip(r, low, high)] A l
    dro                   -(A l - beta / 2 (l - q)^2)
    gspo                  -min(s A, clip(s, low, high) A)          s = sg[exp(mean of l - q)] p / sg[p], over the tokens
                                                                   that `sequence_ratio_mask` leaves, or all

`clip_low_threshold` and `clip_high_threshold` are absolute ratios. Source: the protocol's documentation
(tinker-docs.thinkingmachines.ai, losses) and the papers named in `hone.objectives`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hone.core.errors import DataError, did_you_mean
from hone.objectives.policy import cispo, clipped_surrogate, dro, importance_weighted, reinforce_loss
from hone.objectives.sequence import gspo_token
from hone.objectives.terms import LossTerms
from hone.text.training_service.messages import Datum

LOW, HIGH, BETA = "clip_low_threshold", "clip_high_threshold", "beta"
_READ: Final = ("target_tokens", "weights", "logprobs", "advantages", "sequence_ratio_mask", "mask")
"""Inputs that recipes send; a loss ignores those of others."""
_UNPUBLISHED: Final = {
    "stable_reinforce": "its formula is not published; use importance_sampling, ppo or cispo",
    "custom": "losses of your own run in the client: call forward_backward_custom",
}
Inputs: TypeAlias = Mapping[str, Tensor]
LossFn: TypeAlias = Callable[[Tensor, Inputs, Mapping[str, float]], LossTerms]
"""`(l [n], inputs [n] by name, options) -> terms [n]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLoss:
    """A loss under its name in the protocol."""

    terms: LossFn
    needs: tuple[str, ...] = ("logprobs", "advantages")
    options: Mapping[str, float] = field(default_factory=dict[str, float])
    """Keys of `loss_fn_config` with the values that they have if not given."""
    required: tuple[str, ...] = ()
    """Keys without a default."""

    def settings(self, name: str, given: Mapping[str, float | str]) -> dict[str, float]:
        """Options completed. Raises DataError with every unknown, missing or wrong one."""
        known = (*self.options, *self.required)
        faults = [
            f"{name} does not know loss_fn_config[{key!r}]{did_you_mean(key, known)}"
            for key in given
            if key not in known
        ]
        numbers = {key: value for key, value in given.items() if isinstance(value, float | int)}
        faults += [
            f"loss_fn_config[{key!r}] must be a finite number, got {value!r}"
            for key, value in given.items()
            if key not in numbers or not np.isfinite(numbers[key])
        ]
        faults += [f"{name} needs loss_fn_config[{key!r}], which has no published default" for key in self.required
                   if key not in given]  # fmt: skip
        result = {**self.options, **numbers}
        if not faults and LOW in result and not 0 <= result[LOW] <= 1 <= result[HIGH]:
            faults.append(f"{LOW} = {result[LOW]} and {HIGH} = {result[HIGH]} must be ratios around 1")
        if faults:
            raise DataError(*faults)
        return result

    def check(self, name: str, place: int, datum: Datum) -> list[str]:
        """Faults of a row: missing inputs, inputs of another kind, several targets where the loss takes one."""
        where = f"datum {place}: loss_fn_inputs"
        faults = [f"{where}[{key!r}] is missing; {name} needs it" for key in self.needs if key not in datum.inputs]
        for key, array in datum.inputs.items():
            if key not in _READ:
                faults.append(f"{where}[{key!r}] is not supported; known: {', '.join(_READ)}")
            elif key != "target_tokens" and array.dtype != np.float32 and key in (*self.needs, "weights"):
                faults.append(f"{where}[{key!r}] must be float32, got {array.dtype}")
        if "sequence_ratio_mask" in datum.inputs and not np.any(datum.inputs["sequence_ratio_mask"]):
            faults.append(f"{where}['sequence_ratio_mask'] leaves no token")
        if self.needs and datum.inputs["target_tokens"].ndim != 1:
            faults.append(f"{where}['target_tokens'] must be [N] for {name}; K columns are for cross_entropy")
        return faults

    def __call__(self, logp: Tensor, datum: Datum, options: Mapping[str, float]) -> Tensor:
        """`[]` the row's loss in nats, for `logp` `[N]` or `[N, K]` of its targets."""
        inputs = {
            key: torch.from_numpy(np.array(array, np.float32).reshape(-1)).to(logp.device)
            for key, array in datum.inputs.items()
            if key != "target_tokens" and key in _READ
        }
        terms = self.terms(logp.reshape(-1), inputs, options)
        return terms.weighted_sum(torch.ones_like(terms.loss))


def _gspo(logp: Tensor, inputs: Inputs, options: Mapping[str, float]) -> LossTerms:
    kept = torch.nonzero(inputs.get("sequence_ratio_mask", torch.ones_like(logp)))[:, 0]
    data = (logp[kept], inputs["logprobs"][kept], inputs["advantages"][kept], torch.zeros_like(kept))
    return gspo_token(*data, low=1 - options[LOW], high=options[HIGH] - 1)


LOSSES: Final[Mapping[str, ServedLoss]] = {
    "cross_entropy": ServedLoss(
        terms=lambda logp, inputs, _: reinforce_loss(logp, inputs.get("weights", torch.ones_like(logp))), needs=()
    ),
    "importance_sampling": ServedLoss(
        terms=lambda logp, inputs, _: importance_weighted(logp, inputs["logprobs"], inputs["advantages"])
    ),
    "ppo": ServedLoss(
        terms=lambda logp, inputs, options: clipped_surrogate(
            logp, inputs["logprobs"], inputs["advantages"], low=1 - options[LOW], high=options[HIGH] - 1
        ),
        options={LOW: 0.8, HIGH: 1.2},
    ),
    "cispo": ServedLoss(
        terms=lambda logp, inputs, options: cispo(
            logp, inputs["logprobs"], inputs["advantages"], ratio_floor=options[LOW], ratio_cap=options[HIGH]
        ),
        options={LOW: 0.0, HIGH: 4.0},
    ),
    "dro": ServedLoss(
        terms=lambda logp, inputs, options: dro(logp, inputs["logprobs"], inputs["advantages"], beta=options[BETA]),
        required=(BETA,),
    ),
    "gspo": ServedLoss(terms=_gspo, options={LOW: 1 - 3e-4, HIGH: 1 + 4e-4}),
}
"""The default widths of ppo and cispo are the service's, which differ from those of hone's recipes; GSPO's are the
paper's, since the service publishes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoss:
    """The loss of a row with its inputs, as a function of the log-probabilities of its targets."""

    name: str
    datum: Datum
    options: Mapping[str, float]

    def __call__(self, logp: Tensor) -> Tensor:
        return find_loss(self.name)(logp, self.datum, self.options)


def find_loss(name: str) -> ServedLoss:
    """The loss of a name. Raises DataError for an unknown one, and for one that has no published formula."""
    if name in _UNPUBLISHED:
        raise DataError(f"loss_fn {name!r} is not served: {_UNPUBLISHED[name]}")
    if name not in LOSSES:
        raise DataError(f"loss_fn {name!r} is not served{did_you_mean(name, list(LOSSES))}")
    return LOSSES[name]
