"""Warm start of a control run: weights by name and shape from another run's policy, and the moments that it saw.

Belongs here: `[run.init]` for networks of control. A resume is another thing: it goes on with the same run, to the bit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from hone.control.consolidation import CONSOLIDATION, Consolidation, consolidation_of, flat_weights
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.checkpoint import load_policy, require_same_gaussian
from hone.control.networks.mlp import ObservationInputs
from hone.control.normalise import NormalisedObservations, RescaledRewards
from hone.core.errors import ConfigError, DataError, did_you_mean
from hone.core.state import State, has_part, substate
from hone.learner.flat_parameters import FlatParameters
from hone.learner.gradient import GradientLearner
from hone.run.job import ConsolidationConfig, InitConfig
from hone.run.loop import Learner, Source, SourceWrapper
from hone.run.saved_config import is_control, policy_folder
from hone.run.store.checkpoints import Checkpoint, checkpoint_of
from hone.sources.asynchronous import AsyncSource

ASSUMED_OBSERVATIONS: Final = 10_000
"""Weight of a policy's normalisation where no checkpoint beside it says how many observations it is of."""
_TARGETS: Final = {"critics": ("targets", "slow_critics"), "values": ("target", "average"), "actor": ("slow_actor",)}
"""Networks -> copies that follow them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TransferReport:
    """Tensors of a policy, by their origin."""

    taken: Sequence[str]
    new: Sequence[str]
    """Name, shape and reason of each tensor that keeps its initial weights."""
    unused: Sequence[str]
    """Tensors of the other policy that this one has no place for."""

    def lines(self, folder: Path) -> list[str]:
        """Lines for the run's log."""
        lines = [f"run.init: {len(self.taken)} tensors from {folder}, {len(self.new)} new"]
        lines += [f"run.init: new: {name}" for name in self.new]
        return lines + ([f"run.init: not used: {', '.join(self.unused)}"] if self.unused else [])


def warm_start(
    policy: ControlPolicy,
    learner: Learner[Any],
    source: Source[Any],
    init: InitConfig,
    resumed: Path | None,
    *,
    consolidation: ConsolidationConfig | None = None,
) -> list[str]:
    """Begin with the weights and moments of `init.path`, freeze what `init.freeze` names, and hold the weights by
    `consolidation`; returns lines for the log. A run that is resumed from the policy in `resumed` only freezes and
    holds, and keeps that policy's normalisation.

    Raises ConfigError for unknown names and other spaces, DataError for a policy that cannot be read or has nothing in
    common with this one.
    """
    _freeze(policy, learner, init.freeze)
    if resumed is not None:
        _take_inputs(policy, load_policy(resumed).spaces.inputs)
        if consolidation is not None:  # the checkpoint has the rest
            weights = flat_weights(policy)
            _consolidate(learner, Consolidation(policy, consolidation.weight, fisher=0 * weights, anchor=weights))
        return []
    folder = policy_folder(Path(init.path))
    if not is_control(folder):
        raise ConfigError(f"run.init = {init.path!r}: {folder} is no control policy")
    other = load_policy(folder)
    ours, theirs = (_plain(one.spaces.inputs) for one in (policy, other))
    if ours != theirs:
        forms = [
            f"{one.size} states from {one.start}" if one.one_hot else f"{one.size} numbers" for one in (theirs, ours)
        ]
        raise ConfigError(f"run.init = {init.path!r}: that policy observes {forms[0]}, this run's {forms[1]}")
    report = transfer_weights(policy, other, init)
    if not _is_reset("log_std", init.reset):
        require_same_gaussian(policy, folder / "policy.json")
    checkpoint = checkpoint_of(folder)
    saved = None if checkpoint is None else Checkpoint(step=0, folder=checkpoint, score=None).state()
    lines = report.lines(folder) + _take_moments(
        policy, other, source, None if saved is None else substate(saved, "source")
    )
    if consolidation is not None:
        penalty = consolidation_of(policy, other, folder, init.path, consolidation, taken=report.taken)
        _consolidate(learner, penalty)
        counted = int((penalty.fisher > 0).sum())
        lines.append(f"run.init: {counted:,} of {len(penalty.fisher):,} weights are held where the policy needs them")
    return lines


def transfer_weights(policy: ControlPolicy, other: ControlPolicy, init: InitConfig) -> _TransferReport:
    """Copy into `policy` every tensor that `other` has under the same name and shape, but for `init.reset`.

    Raises ConfigError for a name in `reset` that no tensor has, and for a network that is reset without the copy that
    follows it; DataError where nothing is left to copy.
    """
    ours, theirs = policy.state_dict(), other.state_dict()
    _known_names(init.reset, ours, "run.init.reset")
    _require_targets(init.reset, policy)
    taken: dict[str, Tensor] = {}
    new: list[str] = []
    for name, tensor in ours.items():
        place = f"{name} {list(tensor.shape)}"
        if _is_reset(name, init.reset):
            new.append(f"{place}, reset")
        elif name not in theirs:
            new.append(f"{place}, not in the other policy")
        elif theirs[name].shape != tensor.shape:
            new.append(f"{place}, there {list(theirs[name].shape)}")
        else:
            taken[name] = theirs[name]
    if not taken:
        raise DataError(f"run.init = {init.path!r}: no tensor has a name and a shape in common with this policy", *new)
    policy.load_state_dict(taken, strict=False)
    return _TransferReport(taken=tuple(taken), new=new, unused=[name for name in theirs if name not in ours])


def _require_targets(reset: Sequence[str], policy: ControlPolicy) -> None:
    modules = {name for name, _ in policy.named_children()}
    faults = [
        f"run.init.reset names {network}, and not its copy {copy}, which would keep the old weights: name both"
        for network, copies in _TARGETS.items()
        for copy in copies
        if network in reset and copy in modules and copy not in reset
    ]
    if faults:
        raise ConfigError(*faults)


def _plain(inputs: ObservationInputs) -> ObservationInputs:
    encoder = None if inputs.encoder is None else replace(inputs.encoder, module="")  # its file is another copy
    return replace(inputs, mean=(), scale=(), limit=0.0, encoder=encoder)


# ------------------------------------------------------------------------------------------------------------ freezing


def _freeze(policy: ControlPolicy, learner: Learner[Any], names: Sequence[str]) -> None:
    """Keep the parameters that `names` are or contain. Raises ConfigError."""
    if not names:
        return
    parameters = dict(policy.named_parameters())
    _known_names(names, parameters, "run.init.freeze")
    learner = _adam_learner(learner, "run.init.freeze")
    if any(phase.optimizer.weight_decay for phase in learner.phases):
        raise ConfigError(
            "run.init.freeze with learner.weight_decay > 0: the decay would move frozen weights; set it to 0"
        )
    frozen = [parameter for name, parameter in parameters.items() if _is_reset(name, names)]
    for phase in learner.phases:
        assert isinstance(phase.parameters, FlatParameters)
        phase.parameters.freeze(frozen)


def _consolidate(learner: Learner[Any], penalty: Consolidation) -> None:
    learner = _adam_learner(learner, "consolidation")
    learner.penalise = penalty.add_gradient
    learner.extra_state = {**learner.extra_state, CONSOLIDATION: penalty}


def _adam_learner(learner: Learner[Any], key: str) -> GradientLearner[Any, Any]:
    """The learner. Raises ConfigError for one that `key` of the config cannot reach."""
    flat = isinstance(learner, GradientLearner) and all(
        isinstance(phase.parameters, FlatParameters) for phase in learner.phases
    )
    if not flat:
        raise ConfigError(
            f"{key}: this recipe's learner moves all parameters along one direction; leave it out, or take a "
            "recipe with Adam alone (ppo, a2c, sac, td3, dqn, iql ...)"
        )
    assert isinstance(learner, GradientLearner)
    return learner


def _is_reset(name: str, prefixes: Sequence[str]) -> bool:
    """True for a tensor that a prefix names, or that is inside a module which it names."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _known_names(names: Sequence[str], tensors: Sequence[str] | dict[str, Any], key: str) -> None:
    known = {prefix for tensor in tensors for prefix in _prefixes(tensor)}
    faults = [
        f"{key}: this policy has no part {name!r}{did_you_mean(name, sorted(known))}"
        for name in names
        if name not in known
    ]
    if faults:
        modules = ", ".join(sorted({tensor.partition(".")[0] for tensor in tensors}))
        raise ConfigError(*faults, f"its parts are {modules}")


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


# ------------------------------------------------------------------------------------------------------------- moments


def _take_inputs(policy: ControlPolicy, inputs: ObservationInputs) -> None:
    policy.spaces = replace(policy.spaces, inputs=inputs)


def _take_moments(policy: ControlPolicy, other: ControlPolicy, source: Source[Any], saved: "State | None") -> list[str]:
    """Normalise observations as the other policy did, and go on from there where the source counts further."""
    inputs, lines = other.spaces.inputs, list[str]()
    _take_inputs(policy, inputs)
    for wrapper in _wrappers(source):
        if isinstance(wrapper, NormalisedObservations):
            seen = None if saved is None else _part(saved, "seen")
            if seen is not None:
                wrapper.moments.restore(seen)
            elif inputs.mean:
                mean, scale = np.array(inputs.mean), np.array(inputs.scale)
                count = np.array([float(ASSUMED_OBSERVATIONS)])
                wrapper.moments.restore({"count": count, "mean": mean, "squares": np.square(scale) * count})
            else:
                lines.append(
                    "run.init: normalise.observations is on, and the other policy read plain observations: its weights "
                    "now read other inputs"
                )
                continue
            lines.append(f"run.init: observations are normalised by {wrapper.moments.count:,.0f} earlier ones")
        elif isinstance(wrapper, RescaledRewards) and saved is not None and (paid := _part(saved, "paid")) is not None:
            wrapper.return_scale.moments.restore(substate(paid, "moments"))
            lines.append(f"run.init: rewards are divided by {wrapper.return_scale.scale:.4g}, as they were at last")
    return lines


def _wrappers(source: Source[Any]) -> Iterator[Source[Any]]:
    """A source and those that it wraps, from the outermost inwards."""
    yield source
    while isinstance(source, SourceWrapper | AsyncSource):
        source = source.source
        yield source


def _part(state: State, name: str) -> "State | None":
    """A part of a source's state or of that of a source within it; None without it."""
    while True:
        if has_part(state, name):
            return substate(state, name)
        if not has_part(state, "source"):
            return None
        state = substate(state, "source")
