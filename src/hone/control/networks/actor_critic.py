"""Torch policies for control, which give distributions over actions with gradient: actor-critics and a Q-network.

Their numpy form for acting is `numpy_policies.py`, their folder on disk `checkpoint.py`; losses are in `objectives`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hone.control.networks.box_gaussian import entropy_shift, to_gaussian
from hone.control.networks.encoders import acting_inputs, make_encoder
from hone.control.networks.factored import HeadDistributions, NumpyFactoredPolicy, joint_logp_and_entropy
from hone.control.networks.mlp import (
    Actions,
    BoxActions,
    DiscreteActions,
    FactoredActions,
    Floats,
    Mlp,
    MlpConfig,
    NumpyMlp,
    ObservationInputs,
    PolicySpaces,
)
from hone.control.networks.numpy_memory import with_frames
from hone.control.networks.numpy_policies import (
    LOG_STD_RANGE,
    LOG_TWO_PI,
    Array,
    BoxNetworkPolicy,
    Flags,
    NumpyCategoricalPolicy,
    NumpyGaussianPolicy,
    NumpyGreedyPolicy,
    NumpyPolicy,
    NumpySquashedGaussianPolicy,
    scale_to_box,
)
from hone.control.rows import StepRows
from hone.core.errors import ConfigError
from hone.core.state import State, array, number
from hone.learner.share import SharedStatistics


class ControlPolicy(SharedStatistics):
    """A small policy network. A subclass names its `kind`, and is listed in `checkpoint.py`."""

    kind: ClassVar[str]
    """Its name on disk."""
    team_size: int = 1
    """Seats whose observations, one after another, make a row of training."""
    state_size: int = 0
    """Numbers of the state of the whole environment that a critic or mixer reads after an observation."""

    def __init__(self, spaces: PolicySpaces, network: MlpConfig) -> None:
        super().__init__()
        self.spaces, self.network = spaces, network
        self.encoder: nn.Module | None = None
        """Encoder of the observations; None: the networks read them as numbers, or each has its own."""

    def encode(self, seen: Tensor) -> Tensor:
        """`[n, *observation]` -> numbers `[n, inputs]` that the networks read."""
        return _encode_with(self.encoder, self.spaces.inputs, seen)

    def encode_frozen(self, seen: Tensor) -> Tensor:
        """`encode` without a gradient of the encoder."""
        x = self.encode(seen)
        return x if self.encoder is None else x.detach()

    @property
    def acting_inputs(self) -> ObservationInputs:
        """Inputs of a numpy policy; they share the weights of the encoder."""
        return acting_inputs(self.spaces.inputs, self.encoder)

    def target_encoders(self) -> list[tuple[nn.Module, nn.Module]]:
        """Target and online encoder that the critics train and the actor reads; none where each network has its own."""
        return []

    @abstractmethod
    def numpy_policy(self) -> NumpyPolicy:
        """Numpy policy with these weights; on a CPU it shares their memory."""

    def statistics(self) -> State:
        """Mean, scale and limit by which observations are normalised."""
        inputs = self.spaces.inputs
        if not inputs.has_scale:
            return {}
        return {"mean": np.array(inputs.mean), "scale": np.array(inputs.scale), "limit": float(inputs.limit)}

    def take_statistics(self, given: State) -> None:
        mean, scale = (tuple(array(given, name).tolist()) for name in ("mean", "scale"))
        inputs = replace(self.spaces.inputs, mean=mean, scale=scale, limit=number(given, "limit"))
        self.spaces = replace(self.spaces, inputs=inputs)

    def action_indices(self, chosen: Tensor) -> Tensor:
        """Environment actions `[n]` -> indices 0 .. choices - 1."""
        return chosen - self.spaces.choices.start if self.spaces.choices.start else chosen

    def extras(self) -> Mapping[str, Any]:
        """Constructor arguments besides spaces and network, as plain JSON."""
        return {}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        """A policy of this kind with arbitrary weights, for loading. Raises KeyError, TypeError, ValueError."""
        del extras
        return cls(spaces, network, seed=0)  # pyright: ignore[reportCallIssue] - every subclass takes a seed


def _encode_with(encoder: nn.Module | None, inputs: ObservationInputs, seen: Tensor) -> Tensor:
    """`[n, *observation]` -> numbers `[n, inputs]`, by `encoder` where there is one."""
    x = inputs.tensor(seen)
    return x if encoder is None else encoder(x)


def _encoder_pairs(target: nn.Module | None, online: nn.Module | None) -> list[tuple[nn.Module, nn.Module]]:
    """Both in a list; an empty one without encoders that learn."""
    if target is None or online is None or not list(online.parameters()):
        return []
    return [(target, online)]


def _encoder_and_target(inputs: ObservationInputs, *, seed: int) -> tuple[nn.Module | None, nn.Module | None]:
    """An encoder, and a target network of it with the same weights; None where observations are read as they are."""
    encoder, target = (make_encoder(inputs, seed=seed, stream="encoder") for _ in range(2))
    return encoder, None if target is None else target.requires_grad_(requires_grad=False)


class ActorCritic(ControlPolicy):
    """A categorical policy over choices or a Gaussian over a box (`box_gaussian.py`), and a state value: two networks
    of the same shape, over one encoder of the observations where they are images.

    The Gaussian's log standard deviation is one parameter per action dimension, the same in every state. Without
    `critic` it is a policy alone.
    """

    kind = "actor_critic"

    def __init__(
        self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, critic: bool = True, features: int | None = None
    ) -> None:
        """`features`: numbers that both networks read, where something stands between the inputs and them."""
        super().__init__(spaces, network)
        actions, size = spaces.actions, spaces.inputs.size if features is None else features
        self.encoder = make_encoder(spaces.inputs, seed=seed, stream="encoder")
        outputs, deviations = actions.outputs, actions.gaussian_size
        self.actor = Mlp(size, outputs, network, seed=seed, stream="actor", gain=0.01)
        self.critic = Mlp(size, 1, network, seed=seed, stream="critic") if critic else None
        self.log_std = nn.Parameter(torch.zeros(deviations)) if deviations else None

    def evaluate_actions(self, seen: Tensor, chosen: Tensor, mask: Tensor | None = None) -> "PolicyOutput":
        """Log-probability and entropy of `chosen` under the current policy, and the value; illegal choices of `mask`
        `[n, choices]` have probability 0."""
        x = self.encode(seen)
        logp, entropy = logp_and_entropy(self.spaces.actions, self.actor(x), self.log_std, chosen, mask)
        return PolicyOutput(
            logp=logp,
            entropy=entropy,
            value=None if self.critic is None else self.critic(x).squeeze(-1),
            mask=mask if isinstance(self.spaces.actions, DiscreteActions) else None,
        )

    def evaluate_rows(self, rows: StepRows) -> "PolicyOutput":
        """`evaluate_actions` of the decisions of a batch."""
        return self.evaluate_actions(rows.seen, rows.chosen, rows.mask)

    def value(self, seen: Tensor) -> Tensor:
        """State values `[n]`."""
        assert self.critic is not None, "this policy was made without a critic"
        return self.critic(self.encode(seen)).squeeze(-1)

    def numpy_policy(self) -> NumpyPolicy:
        head = numpy_actor(self.acting_inputs, self.spaces.actions, self.actor.to_numpy(), self.log_std)
        return with_frames(head, self.spaces.inputs)

    def extras(self) -> Mapping[str, Any]:
        return {"critic": self.critic is not None}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, critic=bool(extras["critic"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutput:
    """Output of a policy for given decisions."""

    logp: Tensor
    """`[n]` nats: log-probability (density) of the actions."""
    entropy: Callable[[], Tensor]
    """Computes the entropy `[n]` in nats, on demand: many losses do not need it."""
    value: Tensor | None
    """`[n]` state values; None without a critic."""
    mask: Tensor | None = None
    """`[n, choices]` legal choices; None: all."""


def entropy_metrics(nats: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """The entropy `[n]` in nats and, where masks `[n, choices]` leave more choices in one state than in another, its
    share of the largest possible one: H / log(legal choices), 1 where only one is legal."""
    if mask is None:
        return {"policy/entropy_nats": nats}
    most = mask.sum(dim=1).to(nats.dtype).log()
    return {"policy/entropy_nats": nats, "policy/entropy_share": torch.where(most > 0, nats / most, 1.0)}


class SoftActorCritic(ControlPolicy):
    """A tanh-squashed Gaussian, two critics with target networks, and a temperature (Haarnoja et al., 2018).

    Images are read by one encoder, which the critics train and the actor takes as it is (SAC-AE, Yarats et al., 2021).
    """

    kind = "soft_actor_critic"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int) -> None:
        super().__init__(spaces, network)
        if not isinstance(spaces.actions, BoxActions) or not spaces.actions.is_finite:
            raise ConfigError(f"a squashed Gaussian needs a box of actions with finite bounds, got {spaces.actions}")
        size, actions = spaces.inputs.size, spaces.actions.size
        self.encoder, self.target_encoder = _encoder_and_target(spaces.inputs, seed=seed)
        self.actor = Mlp(size, 2 * actions, network, seed=seed, stream="actor", gain=0.01)
        self.critics = nn.ModuleList(Mlp(size + actions, 1, network, seed=seed, stream=f"critic{i}") for i in (1, 2))
        self.targets = nn.ModuleList(Mlp(size + actions, 1, network, seed=seed, stream=f"critic{i}") for i in (1, 2))
        self.targets.requires_grad_(requires_grad=False)
        self.log_temperature = nn.Parameter(torch.zeros(1))
        self.register_buffer("middle", torch.from_numpy(spaces.actions.middle), persistent=False)
        self.register_buffer("reach", torch.from_numpy(spaces.actions.reach), persistent=False)

    @property
    def action_size(self) -> int:
        """Dimensions of an action."""
        return self.get_buffer("reach").numel()

    def to_unit_box(self, chosen: Tensor) -> Tensor:
        """Environment actions `[n, *action]` -> `[n, actions]` in [-1, 1], the scale of critics and densities."""
        middle, reach = self.get_buffer("middle"), self.get_buffer("reach")
        return (chosen.reshape(len(chosen), -1) - middle) / reach

    def sample_actions(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparametrised actions `[n, actions]` in [-1, 1] and their log-density there `[n]` nats."""
        mean, log_std = self._outputs(seen)
        return squashed_gaussian(mean, log_std, mean + log_std.exp() * noise)

    def q_values(self, seen: Tensor, unit: Tensor, *, frozen: bool = False) -> tuple[Tensor, Tensor]:
        """Both critics' values `[n]`; `frozen` lets gradients through to the actions only."""
        features = self.encode_frozen(seen) if frozen else self.encode(seen)
        x = torch.cat((features, unit), dim=1)
        first, second = (critic.forward_frozen(x) if frozen else critic(x) for critic in as_mlps(self.critics))
        return first.squeeze(-1), second.squeeze(-1)

    @torch.no_grad()
    def min_target_q_values(self, seen: Tensor, unit: Tensor) -> Tensor:
        """Minimum of the target critics' values `[n]`."""
        x = torch.cat((_encode_with(self.target_encoder, self.spaces.inputs, seen), unit), dim=1)
        first, second = (critic(x) for critic in as_mlps(self.targets))
        return torch.minimum(first, second).squeeze(-1)

    def numpy_policy(self) -> NumpyPolicy:
        return NumpySquashedGaussianPolicy(
            network=self.actor.to_numpy(), inputs=self.acting_inputs, actions=self.spaces.box
        )

    def target_encoders(self) -> list[tuple[nn.Module, nn.Module]]:
        return _encoder_pairs(self.target_encoder, self.encoder)

    def _outputs(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(self.encode_frozen(seen)).chunk(2, dim=1)
        return mean, log_std.clamp(*LOG_STD_RANGE)


class QNetworkPolicy(ControlPolicy):
    """Q-network over discrete actions with a target network; acts greedily."""

    kind = "action_values"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int) -> None:
        super().__init__(spaces, network)
        self.values = Mlp(spaces.inputs.size, spaces.choices.count, network, seed=seed, stream="values")
        self.target = Mlp(spaces.inputs.size, spaces.choices.count, network, seed=seed, stream="values")
        self.target.requires_grad_(requires_grad=False)

    def q_values(self, seen: Tensor) -> Tensor:
        """`[n, choices]`"""
        return self.values(self.spaces.inputs.tensor(seen))

    @torch.no_grad()
    def target_q_values(self, seen: Tensor) -> Tensor:
        """`[n, choices]` of the target network."""
        return self.target(self.spaces.inputs.tensor(seen))

    def numpy_policy(self) -> NumpyGreedyPolicy:
        return NumpyGreedyPolicy(network=self.values.to_numpy(), inputs=self.spaces.inputs, actions=self.spaces.choices)


def numpy_actor(
    inputs: ObservationInputs, actions: Actions, network: Callable[[Floats], Floats], log_std: Tensor | None
) -> NumpyCategoricalPolicy | NumpyGaussianPolicy | NumpyFactoredPolicy:
    """Numpy policy with `network` for logits of choices, for the mean of a Gaussian over a box, or for both."""
    if isinstance(actions, DiscreteActions):
        return NumpyCategoricalPolicy(network=network, inputs=inputs, actions=actions)
    if isinstance(actions, FactoredActions):
        deviations = np.zeros(0, np.float32) if log_std is None else log_std.detach().cpu().numpy()
        return NumpyFactoredPolicy(network=network, inputs=inputs, actions=actions, log_std=deviations)
    assert log_std is not None
    return NumpyGaussianPolicy(network=network, inputs=inputs, actions=actions, log_std=log_std.detach().cpu().numpy())


def logp_and_entropy(
    actions: Actions,
    outputs: Tensor,
    log_std: Tensor | None,
    chosen: Tensor,
    mask: Tensor | None = None,
) -> tuple[Tensor, Callable[[], Tensor]]:
    """Log-probability (density) of the environment's actions `chosen` `[n, *action]` and, on demand, entropy, under the
    policy with these network outputs and masks `[n, choices]`: `[n]` nats each."""
    if isinstance(actions, DiscreteActions):
        return categorical(outputs, chosen - actions.start if actions.start else chosen, mask)
    if isinstance(actions, FactoredActions):
        kinds = HeadDistributions(categorical=categorical, box_gaussian=box_gaussian)
        return joint_logp_and_entropy(actions, outputs, log_std, chosen, mask, kinds)
    assert log_std is not None
    return box_gaussian(outputs, log_std, chosen.reshape(outputs.shape), actions)


def as_mlps(modules: nn.ModuleList) -> list[Mlp]:
    """The modules of a list, typed as `Mlp`."""
    return [module for module in modules if isinstance(module, Mlp)]


def categorical(logits: Tensor, chosen: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Callable[[], Tensor]]:
    """Log-probability of `chosen` `[n]` and, on demand, entropy under softmax(`logits` `[n, k]`): `[n]` nats each.

    Illegal choices of `mask` `[n, k]` have the logit -inf, so probability 0 and no gradient; the entropy is that of the
    legal ones (Huang & Ontanon, 2022)."""
    if mask is None:
        logp = F.log_softmax(logits, dim=1)
        return -F.nll_loss(logp, chosen, reduction="none"), lambda: torch.special.entr(logp.exp()).sum(dim=1)
    legal = F.log_softmax(logits.masked_fill(~mask, -math.inf), dim=1)

    def entropy() -> Tensor:
        return -(legal.exp() * legal.masked_fill(~mask, 0.0)).sum(dim=1)  # 0 log 0 = 0, with a finite gradient

    return -F.nll_loss(legal, chosen, reduction="none"), entropy


def gaussian(mean: Tensor, log_std: Tensor, chosen: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """Log density of `chosen` `[n, a]` and, on demand, entropy under N(mean, exp(log_std)^2): `[n]` nats each."""
    size = mean.shape[1]
    scaled = (chosen - mean) * torch.exp(-log_std)
    logp = -0.5 * scaled.square().sum(dim=1) - log_std.sum() - 0.5 * LOG_TWO_PI * size
    return logp, lambda: (log_std.sum() + 0.5 * (1.0 + LOG_TWO_PI) * size).expand(len(mean))


def box_gaussian(
    mean: Tensor, log_std: Tensor, chosen: Tensor, actions: BoxActions
) -> tuple[Tensor, Callable[[], Tensor]]:
    """Log density of the environment's actions `chosen` `[n, a]` and, on demand, entropy of the Gaussian policy over
    their box, in its form (`box_gaussian.py`): `[n]` nats each, of actions in the environment's units."""
    samples, volume = to_gaussian(chosen, actions)
    logp, entropy = gaussian(mean, log_std, samples)
    if volume is None:
        return logp, entropy

    def shifted() -> Tensor:
        shift = entropy_shift(mean, log_std, actions)
        return entropy() if shift is None else entropy() + shift

    return logp - volume, shifted


def squashed_gaussian(mean: Tensor, log_std: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(`raw` `[n, a]`), and its log density `[n]` where raw ~ N(mean, exp(log_std)^2)."""
    scaled = (raw - mean) * torch.exp(-log_std)
    # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)), which neither overflows nor cancels
    slope = 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))
    return torch.tanh(raw), (-0.5 * scaled.square() - log_std - 0.5 * LOG_TWO_PI - slope).sum(dim=1)


@torch.no_grad()
def polyak_update(target: Iterable[Tensor], online: Iterable[Tensor], *, tau: float) -> None:
    """Polyak averaging, target += tau * (online - target), in one pass over all parameters."""
    torch._foreach_lerp_(list(target), list(online), tau)  # pyright: ignore[reportPrivateImportUsage] - the fused form


# -------------------------------------------------------------------------------------------------------- deterministic
# A deterministic policy for a box of actions, with critics and target networks of both (DDPG, TD3, TD3+BC).
#
# The networks, and the numpy form that adds exploration noise.


class DeterministicActorCritic(ControlPolicy):
    """tanh of a network, scaled to the box; `critics` values of observation and action; target networks of all.

    Two critics are TD3's (Fujimoto et al., 2018), one is DDPG's (Lillicrap et al., 2016). Images are read by one
    encoder, which the critics train and the actor takes as it is.
    """

    kind = "deterministic_actor_critic"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, critics: int = 2) -> None:
        super().__init__(spaces, network)
        if not isinstance(spaces.actions, BoxActions) or not spaces.actions.is_finite:
            raise ConfigError(f"a deterministic policy needs a box of actions with finite bounds, got {spaces.actions}")
        size, actions = spaces.inputs.size, spaces.actions.size
        streams = [f"critic{number}" for number in range(1, critics + 1)]
        self.encoder, self.slow_encoder = _encoder_and_target(spaces.inputs, seed=seed)
        self.actor = Mlp(size, actions, network, seed=seed, stream="actor", gain=0.01)
        self.critics = nn.ModuleList(Mlp(size + actions, 1, network, seed=seed, stream=name) for name in streams)
        self.slow_actor = Mlp(size, actions, network, seed=seed, stream="actor", gain=0.01)
        self.slow_critics = nn.ModuleList(Mlp(size + actions, 1, network, seed=seed, stream=name) for name in streams)
        for slow in (self.slow_actor, self.slow_critics):
            slow.requires_grad_(requires_grad=False)
        self.register_buffer("middle", torch.from_numpy(spaces.actions.middle), persistent=False)
        self.register_buffer("reach", torch.from_numpy(spaces.actions.reach), persistent=False)

    @property
    def action_size(self) -> int:
        """Dimensions of an action."""
        return self.get_buffer("reach").numel()

    def to_unit_box(self, chosen: Tensor) -> Tensor:
        """Environment actions `[n, *action]` -> `[n, actions]` in [-1, 1], the scale of the critics."""
        return (chosen.reshape(len(chosen), -1) - self.get_buffer("middle")) / self.get_buffer("reach")

    def actions_of(self, seen: Tensor) -> Tensor:
        """Actions `[n, actions]` in [-1, 1]."""
        return torch.tanh(self.actor(self.encode_frozen(seen)))

    @torch.no_grad()
    def target_actions(self, seen: Tensor) -> Tensor:
        """Actions `[n, actions]` in [-1, 1] of the target network."""
        return torch.tanh(self.slow_actor(_encode_with(self.slow_encoder, self.spaces.inputs, seen)))

    def q_values(self, seen: Tensor, unit: Tensor) -> list[Tensor]:
        """Each critic's values `[n]`."""
        x = torch.cat((self.encode(seen), unit), dim=1)
        return [critic(x).squeeze(-1) for critic in as_mlps(self.critics)]

    def first_q_value(self, seen: Tensor, unit: Tensor) -> Tensor:
        """The first critic's values `[n]`; gradients reach the actions only."""
        x = torch.cat((self.encode_frozen(seen), unit), dim=1)
        return as_mlps(self.critics)[0].forward_frozen(x).squeeze(-1)

    @torch.no_grad()
    def target_q_values(self, seen: Tensor, unit: Tensor) -> list[Tensor]:
        """Each target critic's values `[n]`."""
        x = torch.cat((_encode_with(self.slow_encoder, self.spaces.inputs, seen), unit), dim=1)
        return [critic(x).squeeze(-1) for critic in as_mlps(self.slow_critics)]

    def numpy_policy(self) -> "NumpyDeterministicPolicy":
        return NumpyDeterministicPolicy(
            network=self.actor.to_numpy(), inputs=self.acting_inputs, actions=self.spaces.box
        )

    def target_encoders(self) -> list[tuple[nn.Module, nn.Module]]:
        return _encoder_pairs(self.slow_encoder, self.encoder)

    def extras(self) -> Mapping[str, Any]:
        return {"critics": len(self.critics)}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, critics=int(extras["critics"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyDeterministicPolicy(BoxNetworkPolicy):
    """tanh of the outputs, scaled to the box; exploration noise is added before the scaling."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Zeros: without added noise it does not explore."""
        del draws
        return np.zeros((*shape, self.actions.size), np.float32)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        """`noise` `[n, actions]` is added on the scale [-1, 1], and clipped there: the action has no density."""
        del mask
        unit = np.clip(np.tanh(self.network(self.inputs.array(seen))) + noise, -1.0, 1.0)
        return scale_to_box(unit, self.actions), np.full(len(unit), math.nan, np.float32)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        del mask
        return scale_to_box(np.tanh(self.network(self.inputs.array(seen))), self.actions)


# ---------------------------------------------------------------------------------------------------------- candidates
# A policy over candidates: one network scores each row of an observation, and a softmax over the scores chooses. The
# same weights read every candidate, so their order and number do not matter to it.


class ChoiceScorer(ActorCritic):
    """Scores `[n, choices]` of observations `[n, choices * numbers]`, a row of numbers for each choice; the critic, if
    any, reads all rows at once."""

    kind = "choice_scorer"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, critic: bool = True) -> None:
        super().__init__(spaces, network, seed=seed, critic=critic)
        size, choices = spaces.inputs.size, spaces.choices.count
        if size % choices or self.encoder is not None:
            raise ConfigError(f"observations of {size} numbers are no rows for {choices} choices")
        self.row = size // choices
        self.actor = Mlp(self.row, 1, network, seed=seed, stream="actor", gain=0.01)

    def scores(self, x: Tensor) -> Tensor:
        """`[n, choices * numbers]` -> `[n, choices]`."""
        return self.actor(x.reshape(-1, self.row)).reshape(-1, self.spaces.choices.count)

    def evaluate_actions(self, seen: Tensor, chosen: Tensor, mask: Tensor | None = None) -> PolicyOutput:
        x = self.encode(seen)
        logp, entropy = categorical(self.scores(x), self.action_indices(chosen), mask)
        value = None if self.critic is None else self.critic(x).squeeze(-1)
        return PolicyOutput(logp=logp, entropy=entropy, value=value, mask=mask)

    def numpy_policy(self) -> NumpyPolicy:
        network = _NumpyChoiceScorer(network=self.actor.to_numpy(), row=self.row)
        return NumpyCategoricalPolicy(network=network, inputs=self.acting_inputs, actions=self.spaces.choices)

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, critic=bool(extras["critic"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumpyChoiceScorer:
    """The network of a `ChoiceScorer` in numpy."""

    network: NumpyMlp
    row: int
    """Numbers of a candidate."""

    def __call__(self, x: Floats) -> Floats:
        """`[n, choices * numbers]` -> `[n, choices]`."""
        return self.network(x.reshape(-1, self.row)).reshape(len(x), -1)
