"""Networks that a build for several ranks cuts over them.

Of the policy rank 0 keeps a whole copy, which acts, is evaluated and saved; the learner steps its sharded twin. A
critic and a frozen reference are nowhere whole.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.learner.parameter_store import ParameterStore
from hone.learner.ranked_build import Question
from hone.models.language.lora import LoraAdapter
from hone.models.language.tensor_parallel import TensorSplit, split_decoder
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.token_scorer import LanguageNetwork, TokenScorer
from hone.parallel.group import RankGroup
from hone.parallel.sharded_adapter import ShardedFactors, hold_part
from hone.parallel.sharded_parameters import ShardedParameters
from hone.parallel.sharding import DecoderNetwork, joined_parts, local_part, own_rows, reshard, shard


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedTwin:
    """A policy or scorer, and its twin that is trained: parameters cut over the ranks."""

    whole: LanguageNetwork
    sharded: LanguageNetwork
    split: TensorSplit | None = None
    """The cut of the twin's layers among the ranks of a tensor group."""

    def gather(self, group: RankGroup) -> None:
        """Copy the twin's weights into the whole network of rank 0, one parameter at a time."""
        with torch.no_grad():
            for name, whole, own in self._pairs():
                full = joined_parts(self.split, name, own.full_tensor()) if isinstance(own, DTensor) else own
                if group.is_driver:
                    whole.copy_(full)
            if group.is_driver:
                for whole, own in self._factor_pairs():
                    whole.copy_(own)
            for whole, own in zip(self.whole.buffers(), self.sharded.buffers(), strict=True):
                whole.copy_(own)  # the same on every rank: biases of experts

    def scatter(self, group: RankGroup) -> None:
        """Copy the weights of rank 0's whole network into the twin, one parameter at a time."""
        adapter = self.sharded.adapter
        merged = set[int]() if adapter is None else {id(weight) for weight in adapter.weights.values()}
        with torch.no_grad():
            for name, whole, own in self._pairs():
                if id(own) in merged:
                    continue
                shape = own.shape if self.split is None else self.split.shape(name, own.shape)
                full = whole.contiguous() if group.is_driver else torch.empty(shape, dtype=own.dtype, device=own.device)
                group.copy_from_driver([full])
                part = own_rows(self.split, name, full, group) if isinstance(own, DTensor) else full
                local_part(own.detach()).copy_(part)
            pairs = [(whole if group.is_driver else own, own) for whole, own in self._factor_pairs()]
            pairs += [(whole if group.is_driver else own, own) for whole, own in self._buffer_pairs()]
            for given, own in pairs:
                own.copy_(given)
            group.copy_from_driver([own for _, own in pairs])
            if adapter is not None:
                adapter.merge()

    def forget_whole(self) -> None:
        """Free the whole network's weights: only rank 0 acts."""
        for parameter in self.whole.parameters():
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
        self.whole.adapter = None

    def _pairs(self) -> Iterator[tuple[str, Tensor, nn.Parameter]]:
        """Name of each parameter that changes, the whole one and the twin's."""
        reshard(self.sharded)
        for (name, whole), own in zip(self.whole.named_parameters(), self.sharded.parameters(), strict=True):
            if own.requires_grad:
                yield name, whole.detach(), own

    def _factor_pairs(self) -> list[tuple[Tensor, Tensor]]:
        """A and B of both adapters; none without, or where the whole network was freed."""
        one, other = self.whole.adapter, self.sharded.adapter
        if other is None:
            return []
        own = [factor.detach() for _, factor in other.factors()]
        return list(zip(own if one is None else [factor.detach() for _, factor in one.factors()], own, strict=True))

    def _buffer_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.whole.buffers(), self.sharded.buffers(), strict=True))


def unbound_question(number: int, episodes: Episodes) -> NDArray[Any]:
    """Answer of ranks that have not yet begun."""
    raise AssertionError(f"question {number} about {len(episodes)} episodes while the job is built")


@dataclass(slots=True)
class ShardedBuild:
    """Networks that a build asked for. Implements `RankedBuild`."""

    group: RankGroup
    twins: list[ShardedTwin] = field(default_factory=list[ShardedTwin])
    stores: dict[int, ParameterStore] = field(default_factory=dict[int, ParameterStore])
    """Parameters of each network that was cut, by its identity."""
    networks: list[DecoderNetwork] = field(default_factory=list[DecoderNetwork])
    """Networks that were cut: twins, and those that no rank has whole."""
    questions: list[Question] = field(default_factory=list[Question])
    """Questions that all ranks answer together."""
    ask_ranks: Callable[[int, Episodes], NDArray[Any]] = unbound_question
    """Lets all ranks answer a question, in the driver."""

    def trained(self, policy: LanguageNetwork) -> LanguageNetwork:
        for twin in self.twins:
            if policy is twin.whole or policy is twin.sharded:
                return twin.sharded
        if id(policy) in self.stores:
            return policy
        if policy.adapter is not None:
            self._refuse_virtual("an adapter")
        # The tokenizer has no weights, and is the same object for both.
        sharded = deepcopy(policy, {id(policy.tokenizer): policy.tokenizer})
        split = self._cut(sharded, keep_gathered=True)
        self.twins.append(ShardedTwin(whole=policy, sharded=sharded, split=split))
        return sharded

    def share_out(self, network: DecoderNetwork) -> DecoderNetwork:
        self._cut(network, keep_gathered=False)
        return network

    def parameter_store(self, network: nn.Module) -> ParameterStore | None:
        if id(network) not in self.stores:
            self._refuse_virtual(type(network).__name__)
            return None
        return self.stores[id(network)]

    def question(self, ask: Question) -> Question:
        self.questions.append(ask)
        return partial(self._ask, len(self.questions) - 1)

    def _ask(self, number: int, episodes: Episodes) -> NDArray[Any]:
        return self.ask_ranks(number, episodes)

    def _cut(self, network: DecoderNetwork, *, keep_gathered: bool) -> TensorSplit | None:
        """Cut `network` in place, and make its parameter store; returns the cut of its layers, if there is one."""
        group, adapter = self.group, adapter_of(network)
        if network.decoder.config.experts is not None and group.tensor is not None:
            raise ConfigError(
                f"run.tensor = {group.meeting.tensor}: experts are not cut among ranks (expert parallelism is not "
                "built in); leave run.tensor out"
            )
        head = network.head_parameters() if adapter is not None and isinstance(network, TokenScorer) else {}
        split = None if group.tensor is None else split_decoder(network.decoder, group.tensor)
        learns = any(parameter.requires_grad for parameter in network.parameters())
        virtual = group.meeting.virtual if learns else 0
        sums = shard(network, group.data, virtual, whole=[*head.values()], keep_gathered=keep_gathered)
        self.networks.append(network)
        if adapter is not None:
            hold_part(adapter, split, group)
            self.stores[id(network)] = ShardedFactors(network, adapter, head, group.tensor)
        elif learns:
            self.stores[id(network)] = ShardedParameters(network, group, shares=sums, split=split)
        return split

    def _refuse_virtual(self, what: str) -> None:
        if self.group.meeting.virtual:
            raise ConfigError(
                f"run.virtual_ranks = {self.group.meeting.virtual}: this recipe trains {what}, whose gradients are "
                "added as they come; virtual ranks are for all weights of a language model; leave run.virtual_ranks out"
            )


def adapter_of(network: DecoderNetwork) -> LoraAdapter | None:
    """The adapter that is trained in place of a network's weights."""
    return network.adapter if isinstance(network, TokenPolicy | TokenScorer) else None
