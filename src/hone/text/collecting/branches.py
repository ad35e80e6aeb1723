"""Branches of demonstrations: at each state of an expert's dialogue the policy tries other actions (early experience).

Zhang et al. (2025, 2510.08558) collect what alternative actions at an expert's states lead to. Here each of them is a
dialogue that begins with the expert's turns, goes on with a turn of the policy, and is led to its end by it. A world
answers the same turns alike, so that a branch needs no copy of it.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.generation import Completion, GenerationSession, Request
from hone.core.state import State
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer, answer_end
from hone.sources.live import LiveSource
from hone.text.live import LiveText
from hone.text.tasks.dataset import Example, ExampleDataset
from hone.text.tasks.world import Prompt, TextWorld

Tokens = NDArray[np.int32]
_SHOWN = 3


@dataclass
class _ExpertSession:
    """Implements `GenerationSession`: a session whose first turns are an expert's.

    Sample 0 of a request is the expert's dialogue. Of its state t (before the turn t) there are `branches` samples,
    from 1 + t * branches on: their first t turns are the expert's, and all others are drawn. An expert who has no
    further turn says nothing, which ends the dialogue.
    """

    session: GenerationSession
    experts: Mapping[str, Sequence[Tokens]]
    """Tokens of each turn of the expert, by the id of the prompt."""
    branches: int
    _ready: deque[Completion] = field(default_factory=deque[Completion])

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        drawn: list[Request] = []
        for request in requests:
            samples = range(request.first_sample, request.first_sample + request.samples)
            own = [sample for sample in samples if not self._is_experts(sample, request.turn)]
            if own:  # the samples that are drawn at a turn are neighbours
                drawn.append(replace(request, first_sample=own[0], samples=len(own)))
            self._ready += [self._said(request, sample) for sample in samples if sample not in own]
        if drawn:
            self.session.submit(drawn, round=round)

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        if self._ready:
            return self._ready.popleft()
        return self.session.next_completion(request_ids, wake=wake)

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        self._ready = deque(one for one in self._ready if request_ids is not None and one.request_id not in request_ids)
        self.session.cancel(request_ids)

    def reset_stats(self) -> None:
        self.session.reset_stats()

    def _is_experts(self, sample: int, turn: int) -> bool:
        return sample == 0 or turn < (sample - 1) // self.branches

    def _said(self, request: Request, sample: int) -> Completion:
        turns = self.experts[request.id.rpartition("#")[0]]
        tokens = turns[request.turn] if request.turn < len(turns) else np.zeros(0, np.int32)
        nobody = np.full(len(tokens), np.nan, np.float32)
        return Completion(
            request_id=request.id,
            sample_index=sample,
            tokens=tokens,
            logp=nobody,
            sampled_logp=nobody,
            version=np.zeros(len(tokens), np.int32),
            finish_reason="stop" if len(tokens) else "length",
            turn=request.turn,
        )


@dataclass
class _BranchedDialogues:
    """Environment of demonstrations and their branches. Implements `RolloutEnvironment`."""

    world: TextWorld
    experts: Mapping[str, Sequence[Tokens]]
    branches: int

    def rollout(self, session: GenerationSession) -> Episodes:
        """Lead the dialogues of a step, row by row: the expert's, then its branches from the first state on."""
        return self.world.rollout(_ExpertSession(session, self.experts, self.branches))

    def state(self) -> State:
        return self.world.state()

    def restore(self, state: State) -> None:
        self.world.restore(state)


def branching_source(
    live: LiveText, examples: ExampleDataset, tokenizer: Tokenizer, column: str, branches: int
) -> LiveSource[TokenPolicy]:
    """Source of demonstrations in `column` and their branches. Raises DataError for rows without a demonstration."""
    world = live.world
    experts = _encode_turns(_expert_turns(examples, column), world.prompts, tokenizer, world.sampling.stop)
    world.samples_of = lambda prompt: 1 + branches * len(experts[prompt.id])
    return LiveSource(_BranchedDialogues(world, experts, branches), live.actor, actor_metrics=live.metrics)


def _expert_turns(examples: ExampleDataset, column: str) -> dict[str, list[str]]:
    """The expert's turns of each row. Raises DataError that names the rows without any."""
    if column not in examples.column_names():
        known = ", ".join(sorted(examples.column_names())) or "none"
        raise DataError(f"collect.expert = {column!r}: {examples.source} has no such column; it has {known}")

    def has_turns(example: Example) -> bool:
        turns = example.columns[column]
        return isinstance(turns, list) and bool(turns) and all(isinstance(one, str) and one for one in turns)

    wrong = [example for example in examples.rows if not has_turns(example)]
    if wrong:
        shown = "; ".join(f"row {one.row} (id {one.id}) has {one.columns[column]!r}" for one in wrong[:_SHOWN])
        raise DataError(
            f"{examples.source}: collect.expert = {column!r} is a list of texts, one for each turn, in every row; "
            f"{len(wrong)} rows have none: {shown}"
        )
    return {example.id: list(cast("list[str]", example.columns[column])) for example in examples.rows}


def _encode_turns(
    turns: Mapping[str, Sequence[str]], prompts: Sequence[Prompt], tokenizer: Tokenizer, stop: Sequence[str]
) -> dict[str, list[Tokens]]:
    """Tokens of the expert's turns by prompt; the token that ends answers ends a turn that no stop string ends."""
    known = {prompt.id for prompt in prompts}
    end = answer_end(tokenizer, is_chat=any(not isinstance(prompt.turns, str) for prompt in prompts))

    def encode(text: str) -> Tokens:
        tokens = tokenizer.encode(text)
        ended = any(text.endswith(one) for one in stop)
        return tokens if ended else np.append(tokens, np.int32(end)).astype(np.int32)

    return {name: [encode(text) for text in own] for name, own in turns.items() if name in known}
