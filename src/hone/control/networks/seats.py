"""Policies of several seats: one network for each group of seats, critics that see the state of the whole match, and
tables of the information sets of a small game.

The seat is one-hot at the end of an observation. It selects the network, and is an input of it, so that seats which
share one may act differently.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from hone.control.networks.actor_critic import ActorCritic, ControlPolicy, PolicyOutput, logp_and_entropy
from hone.control.networks.mlp import Floats, Mlp, MlpConfig, PolicySpaces
from hone.control.networks.numpy_policies import Array, Flags, NumpyCategoricalPolicy, NumpyPolicy
from hone.control.rows import StepRows
from hone.core.ragged import Ints
from hone.core.random import key


class CentralActorCritic(ActorCritic):
    """An actor that reads its own observation, and a critic that reads the state of the whole match (MAPPO; Yu et al.,
    2022). In training, rows are the observation, then the state; who acts or deploys it gives the observation alone."""

    kind = "central_actor_critic"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, state_size: int) -> None:
        super().__init__(spaces, network, seed=seed, critic=False)
        self.state_size = state_size
        self.central = Mlp(state_size, 1, network, seed=seed, stream="critic")

    def evaluate_actions(self, seen: Tensor, chosen: Tensor, mask: Tensor | None = None) -> PolicyOutput:
        own = self.spaces.inputs.size
        outputs = self.actor(self.spaces.inputs.tensor(seen[:, :own]))
        logp, entropy = logp_and_entropy(self.spaces.actions, outputs, self.log_std, chosen, mask)
        return PolicyOutput(logp=logp, entropy=entropy, value=self.value(seen), mask=mask)

    def value(self, seen: Tensor) -> Tensor:
        own = self.spaces.inputs.size
        return self.central(seen[:, own:].to(self.spaces.inputs.tensor(seen[:1, :own]).dtype)).squeeze(-1)

    def extras(self) -> Mapping[str, Any]:
        return {"state_size": self.state_size}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, seed=0, state_size=int(extras["state_size"]))


class SeatPolicies(ControlPolicy):
    """An actor-critic for each group of seats; a row belongs to that of its seat. `state_size`: the critics read the
    state of the whole match, of so many numbers."""

    kind = "seat_policies"

    def __init__(
        self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, groups: Sequence[int], state_size: int = 0
    ) -> None:
        super().__init__(spaces, network)
        self.groups, self.state_size = tuple(groups), state_size
        self.policies = nn.ModuleList(
            CentralActorCritic(spaces, network, seed=own_seed, state_size=state_size)
            if state_size
            else ActorCritic(spaces, network, seed=own_seed)
            for own_seed in (key(seed, "seats", number) for number in range(max(groups) + 1))
        )

    def evaluate_actions(self, seen: Tensor, chosen: Tensor, mask: Tensor | None = None) -> PolicyOutput:
        """Log-probability, entropy and value of `chosen`, each by the network of its seat."""
        parts, place = self._parts(seen)
        outputs = [
            policy.evaluate_actions(seen[rows], chosen[rows], None if mask is None else mask[rows])
            for policy, rows in parts
        ]
        values = [output.value for output in outputs if output.value is not None]
        return PolicyOutput(
            logp=torch.cat([output.logp for output in outputs])[place],
            entropy=lambda: torch.cat([output.entropy() for output in outputs])[place],
            value=torch.cat(values)[place],
            mask=mask,
        )

    def evaluate_rows(self, rows: StepRows) -> PolicyOutput:
        """`evaluate_actions` of the decisions of a batch."""
        return self.evaluate_actions(rows.seen, rows.chosen, rows.mask)

    def value(self, seen: Tensor) -> Tensor:
        """Values `[n]`, each by the critic of its seat."""
        parts, place = self._parts(seen)
        return torch.cat([policy.value(seen[rows]) for policy, rows in parts])[place]

    def _parts(self, seen: Tensor) -> tuple[list[tuple[ActorCritic, Tensor]], Tensor]:
        """The rows `[k]` of each member, and the place `[n]` of each row when those of all members are joined."""
        size, seats = self.spaces.inputs.size, len(self.groups)
        group = torch.tensor(self.groups, device=seen.device)[seen[:, size - seats : size].argmax(dim=1)]
        rows = [torch.nonzero(group == number).squeeze(1) for number in range(len(self.policies))]
        return list(zip(self._members(), rows, strict=True)), torch.cat(rows).argsort()

    def numpy_policy(self) -> NumpyPolicy:
        members = [policy.numpy_policy() for policy in self._members()]
        return NumpySeatPolicies(members=members, groups=np.array(self.groups), size=self.spaces.inputs.size)

    def extras(self) -> Mapping[str, Any]:
        return {"groups": list(self.groups), "state_size": self.state_size}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        groups = [int(group) for group in extras["groups"]]
        return cls(spaces, network, seed=0, groups=groups, state_size=int(extras["state_size"]))

    def _members(self) -> list[ActorCritic]:
        for policy in self.policies:
            assert isinstance(policy, ActorCritic)
            policy.spaces = self.spaces  # with the moments by which observations are normalised
        return [policy for policy in self.policies if isinstance(policy, ActorCritic)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpySeatPolicies:
    """`SeatPolicies` in numpy."""

    members: Sequence[NumpyPolicy]
    groups: Ints
    """`[S]` member of each seat."""
    size: int
    """Numbers of an observation, which ends in the seat."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return self.members[0].noise(draws, shape)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        logp = np.zeros(len(seen), np.float32)
        own: list[tuple[Ints, Array]] = []
        for rows, member in self.parts(seen):
            chosen, logp[rows] = member.decide(seen[rows], noise[rows], None if mask is None else mask[rows])
            own.append((rows, chosen))
        return _in_order(own), logp

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        parts = self.parts(seen)
        return _in_order(
            [(rows, member.best(seen[rows], None if mask is None else mask[rows])) for rows, member in parts]
        )

    def parts(self, seen: Array) -> list[tuple[Ints, NumpyPolicy]]:
        """Rows of each member that has some."""
        group = self.groups[seen[:, self.size - len(self.groups) : self.size].argmax(axis=1)]
        parts = [(np.flatnonzero(group == number), member) for number, member in enumerate(self.members)]
        return [(rows, member) for rows, member in parts if len(rows)]


def _in_order(parts: Sequence[tuple[Ints, Array]]) -> Array:
    """Actions `[n, *action]` of rows that several members decided."""
    rows = np.concatenate([rows for rows, _ in parts])
    return np.concatenate([chosen for _, chosen in parts])[np.argsort(rows)]


# --------------------------------------------------------------------------------------------------------------- search


class PolicyValueNetwork(ControlPolicy):
    """One network for the logits of numbered actions and the value of a position, in [-1, 1], for the seat that is to
    move: what a tree search asks (AlphaZero; Silver et al., 2018)."""

    kind = "policy_value"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int) -> None:
        super().__init__(spaces, network)
        self.body = Mlp(spaces.inputs.size, spaces.choices.count + 1, network, seed=seed, stream="policy_value")

    def outputs(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `[n, choices]` and values `[n]`."""
        both = self.body(self.spaces.inputs.tensor(seen))
        return both[:, :-1], torch.tanh(both[:, -1])

    def numpy_policy(self) -> "NumpyPolicyValue":
        body = self.body.to_numpy()
        return NumpyPolicyValue(
            network=lambda seen: body(seen)[:, :-1], both=body, inputs=self.spaces.inputs, actions=self.spaces.choices
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyPolicyValue(NumpyCategoricalPolicy):
    """`PolicyValueNetwork` in numpy; without a search it is the policy of its logits."""

    both: Callable[[Floats], Floats]
    """Logits and the value before its tanh, `[n, choices + 1]`."""

    def evaluate(self, seen: Floats) -> tuple[Floats, Floats]:
        """Logits `[n, choices]` and values `[n]`."""
        both = self.both(self.inputs.array(seen))
        return both[:, :-1], np.tanh(both[:, -1])


# --------------------------------------------------------------------------------------------------------------- tables


class InformationSetPolicy(ControlPolicy):
    """Probabilities of the actions in every information set of a small game; elsewhere all actions are alike."""

    kind = "information_sets"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, count: int) -> None:
        """`count`: number of information sets."""
        super().__init__(spaces, network)
        self.rows: Tensor
        self.probabilities: Tensor
        self.register_buffer("rows", torch.zeros(count, spaces.inputs.size))
        self.register_buffer("probabilities", torch.ones(count, spaces.choices.count, dtype=torch.float64))

    def numpy_policy(self) -> NumpyCategoricalPolicy:
        rows = self.rows.numpy()
        with np.errstate(divide="ignore"):
            logits = np.log(self.probabilities.numpy()).astype(np.float32)
        places = {row.tobytes(): place for place, row in enumerate(rows)}
        unknown = np.zeros(logits.shape[1], np.float32)

        def read(seen: Floats) -> Floats:
            known = (places.get(np.ascontiguousarray(row).tobytes()) for row in seen)
            return np.stack([unknown if place is None else logits[place] for place in known])

        return NumpyCategoricalPolicy(network=read, inputs=self.spaces.inputs, actions=self.spaces.choices)

    def extras(self) -> Mapping[str, Any]:
        return {"count": len(self.rows)}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        return cls(spaces, network, count=int(extras["count"]))
