"""Actor-critics and Q-networks with a recurrent memory (a GRU or an LSTM).

Units in torch run over packed sequences, with gradients through time; their numpy forms for acting are
`numpy_memory.py`. No sequence crosses an episode's begin, so nothing is masked inside one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from hone.control.networks.actor_critic import (
    ActorCritic,
    ControlPolicy,
    PolicyOutput,
    logp_and_entropy,
    numpy_actor,
)
from hone.control.networks.encoders import acting_inputs, make_encoder
from hone.control.networks.encoding import RecurrentMemoryConfig, RecurrentUnitConfig
from hone.control.networks.mlp import Floats, Mlp, MlpConfig, ObservationInputs, PolicySpaces, orthogonal
from hone.control.networks.numpy_memory import NumpyGru, NumpyLstm, NumpyRecurrentPolicy, NumpyUnit
from hone.control.networks.numpy_policies import (
    BoltzmannLogits,
    NumpyCategoricalPolicy,
    NumpyGreedyPolicy,
    NumpyPolicy,
)
from hone.control.networks.packed_units import PackedUnit, cell_outputs
from hone.control.networks.q_networks import NumpyQNetwork, combine_streams
from hone.control.rows import SequenceRows, StepRows
from hone.core.ragged import Ints


class RecurrentUnit(nn.Module):
    """A GRU or an LSTM of one layer over packed sequences."""

    def __init__(self, kind: Literal["gru", "lstm"], inputs: int, units: int, *, seed: int, stream: str) -> None:
        super().__init__()
        self.kind, self.units = kind, units
        self.cell = nn.GRU(inputs, units) if kind == "gru" else nn.LSTM(inputs, units)
        with torch.no_grad():
            for name, parameter in self.cell.named_parameters():
                if parameter.dim() == 1:
                    parameter.zero_()
                else:
                    weight = orthogonal(*parameter.shape, seed=seed, stream=f"{stream}/{name}")
                    parameter.copy_(torch.from_numpy(weight))
                if name == "bias_ih_l0" and kind == "lstm":
                    parameter[units : 2 * units] = 1.0  # open to the past at first (Jozefowicz et al., 2015)

    @property
    def state_size(self) -> int:
        """Numbers of a state: the output, and an LSTM's cells."""
        return self.units if self.kind == "gru" else 2 * self.units

    def forward(self, x: PackedSequence, state: Tensor) -> tuple[Tensor, Tensor]:
        """Packed inputs and states `[S, state_size]` before them -> packed outputs `[N, units]`, states after them."""
        if x.data.device.type != "cpu":
            return cell_outputs(self.kind, self.cell, x, state)
        return PackedUnit.apply(self.kind, x.batch_sizes, self.cell, x.data, state, *self.cell.parameters())

    def to_numpy(self) -> "NumpyUnit":
        """Numpy form for acting; on a CPU it shares memory."""
        weights = {name: tensor.detach().cpu().numpy() for name, tensor in self.cell.named_parameters()}
        made = NumpyGru if self.kind == "gru" else NumpyLstm
        return made(
            input_weight=weights["weight_ih_l0"].T,
            state_weight=weights["weight_hh_l0"].T,
            input_bias=weights["bias_ih_l0"],
            state_bias=weights["bias_hh_l0"],
        )


@dataclass(frozen=True, slots=True)
class PackedOrder:
    """Order in which the decisions of sequences of given lengths are packed: longest first, step by step."""

    sequences: Ints
    """`[S]` sequences, longest first."""
    decisions: Ints
    """`[N]` decision at each packed place."""
    places: Ints
    """`[N]` packed place of each decision."""
    batch_sizes: Tensor
    """`[longest]` sequences that have a decision at each step."""

    @classmethod
    def of(cls, lengths: Ints) -> Self:
        """The order for sequences of `lengths` `[S]`, each at least 1, that stand one after another."""
        order = np.argsort(-lengths, kind="stable")
        step = np.arange(int(lengths.max(initial=0)))
        there = step[:, None] < lengths[order][None]
        starts = np.cumsum(lengths) - lengths
        decisions = (step[:, None] + starts[order][None])[there]
        places = np.empty_like(decisions)
        places[decisions] = np.arange(len(decisions))
        return cls(order, decisions, places, torch.from_numpy(there.sum(axis=1)))


class MemoryActorCritic(ActorCritic):
    """An actor-critic behind recurrent units: one for the policy and one for the critic, over one encoder if any.

    Evaluates whole sequences of decisions (`SequenceRows`), each from the state before it.
    """

    kind = "memory_actor_critic"

    def __init__(
        self,
        spaces: PolicySpaces,
        network: MlpConfig,
        *,
        seed: int,
        memory: RecurrentMemoryConfig,
        critic: bool = True,
    ) -> None:
        super().__init__(spaces, network, seed=seed, critic=critic, features=memory.units)
        self.memory, size = memory, spaces.inputs.size
        streams = ("actor memory", "critic memory") if critic else ("actor memory",)
        self.units = nn.ModuleList(
            RecurrentUnit(memory.kind, size, memory.units, seed=seed, stream=stream) for stream in streams
        )

    @property
    def state_sizes(self) -> list[int]:
        """Numbers of each unit's state."""
        return [unit.state_size for unit in self._units()]

    def evaluate_rows(self, rows: StepRows) -> PolicyOutput:
        assert isinstance(rows, SequenceRows), "a policy with a memory reads sequences"
        features, _ = self.recall(rows.seen, rows.lengths, rows.state)
        logp, entropy = logp_and_entropy(
            self.spaces.actions, self.actor(features[0]), self.log_std, rows.chosen, rows.mask
        )
        value = None if self.critic is None else self.critic(features[1]).squeeze(-1)
        return PolicyOutput(logp=logp, entropy=entropy, value=value, mask=rows.mask)

    def recall(self, seen: Tensor, lengths: Ints, state: Tensor) -> tuple[list[Tensor], Tensor]:
        """Observations `[N, ...]` of sequences of `lengths` `[S]`, from states `[S, H]` -> each unit's outputs `[N,
        units]`, and the states after the sequences `[S, H]`."""
        order = PackedOrder.of(lengths)
        x = self.encode(seen)
        packed = PackedSequence(x[torch.from_numpy(order.decisions).to(x.device)], order.batch_sizes)
        place = torch.from_numpy(order.places).to(x.device)
        sorted_rows = torch.from_numpy(order.sequences).to(x.device)
        before = state.to(x.dtype)[sorted_rows].split(self.state_sizes, dim=1)
        outputs, states = zip(
            *(unit(packed, own) for unit, own in zip(self._units(), before, strict=True)), strict=True
        )
        after = torch.cat(states, dim=1)
        return [out[place] for out in outputs], torch.empty_like(after).index_copy(0, sorted_rows, after)

    def value(self, seen: Tensor) -> Tensor:
        """Not defined without states; `recall` has them."""
        del seen
        raise TypeError("values of a policy with a memory are those of sequences")

    def numpy_policy(self) -> "NumpyRecurrentPolicy":
        inputs = ObservationInputs(size=self.memory.units)
        head = numpy_actor(inputs, self.spaces.actions, self.actor.to_numpy(), self.log_std)
        units = [unit.to_numpy() for unit in self._units()]
        return NumpyRecurrentPolicy(head=head, inputs=self.acting_inputs, units=units, sizes=self.state_sizes)

    def extras(self) -> Mapping[str, Any]:
        return {**super().extras(), "memory": self.memory.model_dump(mode="json")}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        memory = RecurrentMemoryConfig.model_validate(extras["memory"])
        return cls(spaces, network, seed=0, critic=bool(extras["critic"]), memory=memory)

    def _units(self) -> list[RecurrentUnit]:
        return [unit for unit in self.units if isinstance(unit, RecurrentUnit)]


# ------------------------------------------------------------------------------------------------------- action values


class RecurrentQNetwork(nn.Module):
    """Encoder of observations, if any, a recurrent unit, and hidden layers, whose outputs are the values or dueling
    streams of them."""

    def __init__(
        self, spaces: PolicySpaces, network: MlpConfig, memory: RecurrentUnitConfig, *, seed: int, dueling: bool
    ) -> None:
        super().__init__()
        self.dueling = dueling
        self.encoder = make_encoder(spaces.inputs, seed=seed, stream="values")
        self.unit = RecurrentUnit(memory.kind, spaces.inputs.size, memory.units, seed=seed, stream="values memory")
        self.head = Mlp(memory.units, spaces.choices.count + dueling, network, seed=seed, stream="values")

    def q_values(self, recalled: Tensor, mask: Tensor | None = None) -> Tensor:
        """Outputs of the unit `[n, units]` -> values `[n, choices]`; those of dueling streams depend on the masks
        `[n, choices]` of legal choices."""
        outputs = self.head(recalled)
        return combine_streams(outputs[:, :, None], mask).squeeze(2) if self.dueling else outputs

    def numpy_q_values(self) -> Callable[[Floats], Floats]:
        """`q_values` without masks in numpy, which does not change the order of the choices."""
        head = self.head.to_numpy()
        return NumpyQNetwork(network=head, size=1, dueling=True, atoms=None) if self.dueling else head

    def forward(self, x: Tensor, lengths: Ints, state: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs `[N, ...]` of sequences of `lengths` `[S]`, each at least 1, from states `[S, H]` -> values
        `[N, choices]`, and the states after the sequences `[S, H]`."""
        order = PackedOrder.of(lengths)
        x = x if self.encoder is None else self.encoder(x)
        decisions, places, rows = (
            torch.from_numpy(one).to(x.device) for one in (order.decisions, order.places, order.sequences)
        )
        outputs, after = self.unit(PackedSequence(x[decisions], order.batch_sizes), state[rows])
        return self.q_values(outputs[places], mask), torch.empty_like(after).index_copy(0, rows, after)


class RecurrentDqnPolicy(ControlPolicy):
    """Acts by the average of the weights; explores by the weights themselves, whose states the replay buffer keeps."""

    kind = "recurrent_values"

    def __init__(
        self,
        spaces: PolicySpaces,
        network: MlpConfig,
        *,
        seed: int,
        memory: RecurrentUnitConfig,
        dueling: bool = False,
    ) -> None:
        super().__init__(spaces, network)
        self.memory = memory
        self.values, self.target, self.average = (
            RecurrentQNetwork(spaces, network, memory, seed=seed, dueling=dueling) for _ in range(3)
        )
        for follower in (self.target, self.average):
            follower.requires_grad_(requires_grad=False)

    @property
    def state_sizes(self) -> list[int]:
        """Numbers of the unit's state."""
        return [self.values.unit.state_size]

    def epsilon_greedy_policy(self, epsilon: float = 0.0) -> NumpyPolicy:
        """Greedy policy with the current weights; with probability `epsilon` a random action."""
        head = NumpyGreedyPolicy(
            network=self.values.numpy_q_values(), inputs=self._recalled, actions=self.spaces.choices, epsilon=epsilon
        )
        return self._acting(self.values, head)

    def boltzmann_policy(self, temperature: float) -> NumpyPolicy:
        """Softmax of the current values over `temperature`."""
        logits = BoltzmannLogits(values=self.values.numpy_q_values(), temperature=temperature)
        head = NumpyCategoricalPolicy(network=logits, inputs=self._recalled, actions=self.spaces.choices)
        return self._acting(self.values, head)

    def numpy_policy(self) -> NumpyPolicy:
        network = self.average.numpy_q_values()
        head = NumpyGreedyPolicy(network=network, inputs=self._recalled, actions=self.spaces.choices)
        return self._acting(self.average, head)

    @property
    def _recalled(self) -> ObservationInputs:
        """Inputs of the hidden layers."""
        return ObservationInputs(size=self.memory.units)

    def _acting(self, network: RecurrentQNetwork, head: NumpyPolicy) -> NumpyRecurrentPolicy:
        inputs = acting_inputs(self.spaces.inputs, network.encoder)
        return NumpyRecurrentPolicy(
            head=head, inputs=inputs, units=[network.unit.to_numpy()], sizes=[network.unit.state_size]
        )

    def extras(self) -> Mapping[str, Any]:
        return {"memory": self.memory.model_dump(mode="json"), "dueling": self.values.dueling}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        memory = RecurrentUnitConfig.model_validate(extras["memory"])
        return cls(spaces, network, seed=0, memory=memory, dueling=bool(extras.get("dueling", False)))
