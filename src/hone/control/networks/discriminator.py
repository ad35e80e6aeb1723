"""An actor-critic with a GAIL discriminator that scores its resemblance to an expert (Ho and Ermon, 2016).

The discriminator of pairs (observation, action) and its input encoding. Its normalisation statistics are buffers of the
policy, and change only in `update_statistics`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.intrinsic_reward import TorchMoments
from hone.control.networks.mlp import DiscreteActions, FactoredActions, Mlp, MlpConfig, PolicySpaces


class Discriminator(nn.Module):
    """Logit that a pair is the expert's and not the policy's: log D - log(1 - D).

    Discrete states and actions are encoded one-hot; numbers are standardised by running statistics of both sides.
    Actions of a box are clipped to its bounds, as the environment does: unclipped Gaussian samples would identify the
    policy.
    """

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int) -> None:
        super().__init__()
        self.inputs = replace(spaces.inputs, mean=(), scale=(), limit=0.0)  # raw: it has its own statistics
        self.actions = spaces.actions
        numbers = 0 if self.inputs.one_hot else self.inputs.size
        marks = self.inputs.size - numbers
        if isinstance(self.actions, DiscreteActions):
            marks += self.actions.count
        else:
            assert not isinstance(self.actions, FactoredActions)  # no recipe of it reads several factors
            numbers += self.actions.size
            self.register_buffer("low", torch.tensor(self.actions.low), persistent=False)
            self.register_buffer("high", torch.tensor(self.actions.high), persistent=False)
        self.moments = TorchMoments(numbers) if numbers else None
        self.network = Mlp(numbers + marks, 1, network, seed=seed, stream="discriminator")

    def encode_pairs(self, seen: Tensor, chosen: Tensor) -> Tensor:
        """`[n, *observation]`, `[n, *action]` -> network inputs `[n, size]`, without gradient."""
        numbers, marks = self._continuous_and_one_hot(seen, chosen)
        whitened = numbers if self.moments is None else self.moments.normalise(numbers)
        return torch.cat((whitened, marks), dim=1).to(self.network.layer_parameters[0][0].dtype)

    def update_statistics(self, seen: Tensor, chosen: Tensor) -> None:
        """Add pairs to the normalisation statistics."""
        if self.moments is not None:
            self.moments.update(self._continuous_and_one_hot(seen, chosen)[0])

    def logit(self, pairs: Tensor) -> Tensor:
        """`[n, size]` -> `[n]`."""
        return self.network(pairs).squeeze(-1)

    def logit_gradient(self, pairs: Tensor) -> Tensor:
        """Gradient of each logit with respect to its own pair `[n, size]`, differentiable in the weights."""
        at = pairs.detach().requires_grad_()
        return torch.autograd.grad(self.logit(at).sum(), at, create_graph=True)[0]

    def _continuous_and_one_hot(self, seen: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Continuous inputs `[n, d]` and one-hot inputs `[n, k]`; one of them may be of width 0."""
        state = self.inputs.tensor(seen)
        nothing = state.new_zeros(len(state), 0)
        numbers, marks = (nothing, state) if self.inputs.one_hot else (state, nothing)
        if isinstance(self.actions, DiscreteActions):
            action = F.one_hot(chosen.long() - self.actions.start, self.actions.count).to(state.dtype)
            return numbers, torch.cat((marks, action), dim=1)
        felt = chosen.reshape(len(chosen), -1).clamp(self.get_buffer("low"), self.get_buffer("high"))
        return torch.cat((numbers, felt.to(state.dtype)), dim=1), marks


class AdversarialActorCritic(ActorCritic):
    """An actor, a critic of the discriminator's rewards, and the discriminator."""

    kind = "adversarial_actor_critic"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, discriminator: MlpConfig) -> None:
        super().__init__(spaces, network, seed=seed)
        self.discriminator = Discriminator(spaces, discriminator, seed=seed)
        self.discriminator_network = discriminator

    def policy_parameters(self) -> list[nn.Parameter]:
        """All parameters but the discriminator's."""
        assert self.critic is not None
        own = [*self.actor.parameters(), *self.critic.parameters()]
        return own if self.log_std is None else [*own, self.log_std]

    def extras(self) -> Mapping[str, Any]:
        return {"discriminator": self.discriminator_network.model_dump()}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, discriminator=MlpConfig.model_validate(extras["discriminator"]))
