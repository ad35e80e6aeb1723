"""Intrinsic rewards for exploration (RND, ICM, hash counts), and an actor-critic with a second value for them.

Networks and statistics are part of the policy: saved with it, and not changed by an evaluation.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor, nn
from torch.nn import functional as F

from hone.control.networks.actor_critic import ControlPolicy, PolicyOutput, logp_and_entropy, numpy_actor
from hone.control.networks.box_gaussian import to_unit
from hone.control.networks.mlp import DiscreteActions, FactoredActions, Mlp, MlpConfig, PolicySpaces
from hone.control.networks.numpy_policies import NumpyPolicy
from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.core.random import generator

_CLIP_DEVIATIONS = 5.0
"""Bound of normalised observations (Burda et al., 2018)."""


class RndConfig(Config):
    """Random network distillation: the bonus is the error of a predictor of a fixed random network."""

    kind: Literal["rnd"] = "rnd"
    """Selects this alternative."""
    hidden: list[Annotated[int, Field(ge=1)]] = Field(default=[64])
    """Hidden layers of the random network; the predictor has one more."""
    features: int = Field(default=32, ge=1)
    """Outputs of the random network."""
    scale: float = Field(default=20.0, gt=0)
    """Scale of the random outputs: the larger, the longer the predictor takes, and the longer the bonus lasts."""


class IcmConfig(Config):
    """Intrinsic curiosity: the bonus is the prediction error in features that identify the action."""

    kind: Literal["icm"] = "icm"
    """Selects this alternative."""
    hidden: list[Annotated[int, Field(ge=1)]] = Field(default=[64])
    """Hidden layers of the encoder, the inverse and the forward model."""
    features: int = Field(default=64, ge=1)
    """Dimensions of the encoding."""
    forward_share: float = Field(default=0.9, ge=0, le=1)
    """Weight of the forward loss; the rest is the inverse loss, which trains the encoder. The paper has 0.2; a slowly
    changing encoder gives a more stable bonus.
    """


class HashCountConfig(Config):
    """Hash counts: the bonus is 1 / sqrt(number of visits with the same code)."""

    kind: Literal["counts"] = "counts"
    """Selects this alternative."""
    bits: int = Field(default=16, ge=1, le=24)
    """Bits of the code; the table has 2^bits entries."""


NoveltyConfig: TypeAlias = Annotated[RndConfig | IcmConfig | HashCountConfig, Field(discriminator="kind")]


class TorchMoments(nn.Module):
    """Running mean and variance of rows `[n, size]` (Chan, Golub & LeVeque, 1979)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("spread", torch.zeros(size, dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows: Tensor, *, keep: float = 1.0) -> None:
        """Add `rows`; earlier rows keep the weight `keep`."""
        count, mean, spread = (self.get_buffer(name) for name in ("count", "mean", "spread"))
        count *= keep
        spread *= keep
        wide = rows.to(torch.float64)
        away = wide.mean(dim=0) - mean
        total = count + len(rows)
        spread += (wide - wide.mean(dim=0)).square().sum(dim=0) + away.square() * (count * len(rows) / total)
        mean += away * (len(rows) / total)
        count += len(rows)

    def std(self) -> Tensor:
        """`[size]` population standard deviation so far; 1 before the first update."""
        count, spread = self.get_buffer("count"), self.get_buffer("spread")
        return (spread / count).sqrt() if count > 0 else torch.ones_like(spread)

    def normalise(self, rows: Tensor) -> Tensor:
        """`[n, size]` minus the mean, divided by the standard deviation, clipped."""
        mean, deviation = self.get_buffer("mean"), self.std()
        return ((rows - mean) / (deviation + 1e-8)).clamp(-_CLIP_DEVIATIONS, _CLIP_DEVIATIONS).to(rows.dtype)


class _IntrinsicReward(nn.Module, ABC):
    """A bonus for each step that falls with repeated visits."""

    def __init__(self, spaces: PolicySpaces) -> None:
        super().__init__()
        self.spaces = spaces
        self.seen_so_far = None if spaces.inputs.one_hot else TorchMoments(spaces.inputs.size)
        self.register_buffer("unit", torch.ones(()), persistent=False)  # has the dtype of the networks

    @abstractmethod
    def bonus(self, seen: Tensor, chosen: Tensor, after: Tensor) -> Tensor:
        """Bonus `[n]` of each step, without gradient."""

    @abstractmethod
    def loss(self, seen: Tensor, chosen: Tensor, after: Tensor) -> Tensor:
        """Loss `[n]` of the trained networks; not called without parameters."""

    def update(self, after: Tensor) -> None:
        """Add the visited observations to statistics and counts."""
        if self.seen_so_far is not None:
            self.seen_so_far.update(self.spaces.inputs.tensor(after))

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Parameters trained by gradient."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def _read(self, seen: Tensor) -> Tensor:
        flat = self.spaces.inputs.tensor(seen).to(self.get_buffer("unit").dtype)
        return flat if self.seen_so_far is None else self.seen_so_far.normalise(flat)


class RandomNetworkDistillation(_IntrinsicReward):
    """mean over features of (predictor(s') - random(s'))^2 (RND: Burda et al., 2018, 1810.12894)."""

    def __init__(self, spaces: PolicySpaces, config: RndConfig, *, seed: int) -> None:
        super().__init__(spaces)
        size = spaces.inputs.size
        fixed = MlpConfig(hidden=config.hidden, activation="relu")
        learnt = MlpConfig(hidden=[*config.hidden, config.hidden[-1] if config.hidden else 64], activation="relu")
        self.random = Mlp(size, config.features, fixed, seed=seed, stream="random", gain=config.scale)
        self.random.requires_grad_(requires_grad=False)
        self.predictor = Mlp(size, config.features, learnt, seed=seed, stream="predictor")

    @torch.no_grad()
    def bonus(self, seen: Tensor, chosen: Tensor, after: Tensor) -> Tensor:
        return self.loss(seen, chosen, after)

    def loss(self, seen: Tensor, chosen: Tensor, after: Tensor) -> Tensor:
        del seen, chosen
        x = self._read(after)
        with torch.no_grad():
            wanted = self.random(x)
        return (self.predictor(x) - wanted).square().mean(dim=1)


class IntrinsicCuriosity(_IntrinsicReward):
    """1/2 |forward(phi(s), a) - phi(s')|^2 (ICM: Pathak et al., 2017, 1705.05363).

    phi is trained to predict a from phi(s) and phi(s'), so that it ignores changes that the agent cannot influence. The
    forward loss has no gradient in phi, which could otherwise become constant.
    """

    def __init__(self, spaces: PolicySpaces, config: IcmConfig, *, seed: int) -> None:
        super().__init__(spaces)
        actions, size, wide = spaces.actions, spaces.inputs.size, config.features
        network = MlpConfig(hidden=config.hidden, activation="relu")
        count = actions.count if isinstance(actions, DiscreteActions) else actions.size
        self.forward_share = config.forward_share
        self.encoder = Mlp(size, wide, network, seed=seed, stream="encoder")
        self.inverse = Mlp(2 * wide, count, network, seed=seed, stream="inverse")
        self.ahead = Mlp(wide + count, wide, network, seed=seed, stream="ahead")

    @torch.no_grad()
    def bonus(self, seen: Tensor, chosen: Tensor, after: Tensor) -> Tensor:
        now, then = self.encoder(self._read(seen)), self.encoder(self._read(after))
        return self._error(now, self._action(chosen, now), then)

    def loss(self, seen: Tensor, chosen: Tensor, after: Tensor) -> Tensor:
        now, then = self.encoder(self._read(seen)), self.encoder(self._read(after))
        metrics, action = self.inverse(torch.cat((now, then), dim=1)), self._action(chosen, now)
        if isinstance(self.spaces.actions, DiscreteActions):
            wrong = -(F.log_softmax(metrics, dim=1) * action).sum(dim=1)
        else:
            wrong = 0.5 * (metrics - action).square().sum(dim=1)
        foreseen = self._error(now.detach(), action, then.detach())
        return (1.0 - self.forward_share) * wrong + self.forward_share * foreseen

    def _error(self, now: Tensor, action: Tensor, then: Tensor) -> Tensor:
        return 0.5 * (self.ahead(torch.cat((now, action), dim=1)) - then).square().sum(dim=1)

    def _action(self, chosen: Tensor, like: Tensor) -> Tensor:
        actions = self.spaces.actions
        if isinstance(actions, DiscreteActions):
            return F.one_hot(chosen.long() - actions.start, actions.count).to(like.dtype)
        return to_unit(chosen.reshape(len(chosen), -1).to(like.dtype), self.spaces.box)


class HashCounts(_IntrinsicReward):
    """1 / sqrt(n(code(s'))), code by the signs of random projections (SimHash: Tang et al., 2017, 1611.04717)."""

    def __init__(self, spaces: PolicySpaces, config: HashCountConfig, *, seed: int) -> None:
        super().__init__(spaces)
        draws = generator(seed, "weights", "hash").standard_normal((spaces.inputs.size, config.bits))
        self.register_buffer("projection", torch.from_numpy(draws.astype("float32")))
        self.register_buffer("place", 2 ** torch.arange(config.bits))
        self.register_buffer("counts", torch.zeros(2**config.bits, dtype=torch.int64))

    @torch.no_grad()
    def bonus(self, seen: Tensor, chosen: Tensor, after: Tensor) -> Tensor:
        del seen, chosen
        result = self.get_buffer("counts")[self._codes(after)]
        return result.clamp(min=1).to(torch.float32).rsqrt()

    def loss(self, seen: Tensor, chosen: Tensor, after: Tensor) -> Tensor:
        del seen, chosen, after
        raise AssertionError("counts are not learnt by a gradient")

    @torch.no_grad()
    def update(self, after: Tensor) -> None:
        super().update(after)
        counts = self.get_buffer("counts")
        counts += torch.bincount(self._codes(after), minlength=len(counts))

    def _codes(self, after: Tensor) -> Tensor:
        """`[n]`."""
        x = self._read(after)
        return ((x @ self.get_buffer("projection").to(x.dtype) > 0) * self.get_buffer("place")).sum(dim=1)


class CuriousActorCritic(ControlPolicy):
    """An actor, a critic of extrinsic rewards, a critic of intrinsic rewards, and the intrinsic reward.

    `lanes`: environments that are stepped together; the running intrinsic return of each is part of the policy, because
    the bonus is divided by its standard deviation.
    """

    kind = "curious_actor_critic"

    def __init__(
        self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, novelty: NoveltyConfig, lanes: int
    ) -> None:
        super().__init__(spaces, network)
        actions, size = spaces.actions, spaces.inputs.size
        if isinstance(actions, FactoredActions):
            raise ConfigError(f"a measure of novelty reads actions of one factor, got {actions}; take ppo")
        outputs = actions.count if isinstance(actions, DiscreteActions) else actions.size
        self.actor = Mlp(size, outputs, network, seed=seed, stream="actor", gain=0.01)
        self.critic = Mlp(size, 1, network, seed=seed, stream="critic")
        self.novelty_critic = Mlp(size, 1, network, seed=seed, stream="novelty_critic")
        self.log_std = None if isinstance(actions, DiscreteActions) else nn.Parameter(torch.zeros(actions.size))
        self.novelty_config = novelty
        match novelty:
            case RndConfig():
                self.novelty = RandomNetworkDistillation(spaces, novelty, seed=seed)
            case IcmConfig():
                self.novelty = IntrinsicCuriosity(spaces, novelty, seed=seed)
            case HashCountConfig():
                self.novelty = HashCounts(spaces, novelty, seed=seed)
        self.returns = TorchMoments(1)
        self.register_buffer("running", torch.zeros(lanes, dtype=torch.float64))

    def evaluate_actions(self, seen: Tensor, chosen: Tensor, mask: Tensor | None = None) -> PolicyOutput:
        """Log-probability and entropy of `chosen` under the current policy; `value` is the extrinsic one."""
        x = self.spaces.inputs.tensor(seen)
        logp, entropy = logp_and_entropy(self.spaces.actions, self.actor(x), self.log_std, chosen, mask)
        return PolicyOutput(logp=logp, entropy=entropy, value=self.critic(x).squeeze(-1), mask=mask)

    def values(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Extrinsic `[n]` and intrinsic `[n]` values."""
        x = self.spaces.inputs.tensor(seen)
        return self.critic(x).squeeze(-1), self.novelty_critic(x).squeeze(-1)

    def policy_parameters(self) -> list[nn.Parameter]:
        """All parameters but the intrinsic reward's."""
        modules = [self.actor, self.critic, self.novelty_critic]
        result = [parameter for module in modules for parameter in module.parameters()]
        return result if self.log_std is None else [*result, self.log_std]

    def numpy_policy(self) -> NumpyPolicy:
        return numpy_actor(self.spaces.inputs, self.spaces.actions, self.actor.to_numpy(), self.log_std)

    def extras(self) -> Mapping[str, Any]:
        return {"novelty": self.novelty_config.model_dump(), "lanes": len(self.get_buffer("running"))}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        novelty: NoveltyConfig = TypeAdapter(NoveltyConfig).validate_python(extras["novelty"])
        return cls(spaces, network, seed=0, novelty=novelty, lanes=int(extras["lanes"]))
