"""The scorer of answers by all rewards of a config: a weighted sum, each reward's own scores, a limit of missing ones.

Belongs here: rewards as members of one kind of interface, and the functions among them. Models and servers, which need
other parts of hone, implement `RewardMember` where they are wired.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hone.core.credit import Metrics
from hone.core.judging import DatasetRow, ScorerInput
from hone.core.state import State, substate
from hone.rewards.budget import UnscoredBudget
from hone.rewards.config import RewardsConfig
from hone.rewards.jobs import RewardBatch, RewardTicket
from hone.rewards.scores import RewardResult, RewardScores, combine_results
from hone.rewards.workers import RewardWorkerPool


class RewardMember(Protocol):
    """One reward, or all functions: scores answers in its own way."""

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> Sequence[str]:
        """Return warnings; raise HoneError where it cannot score the answers of a dataset with these columns and
        rows."""
        ...

    def write_protect(self, folder: Path) -> None:
        """Keep code of the user's from writing into a folder; called before the first answers."""
        ...

    def submit(self, answers: Sequence[ScorerInput]) -> Any:  # noqa: ANN401 - a ticket of its own kind
        """Begin to score the answers to one prompt; returns at once."""
        ...

    def notices(self) -> list[str]:
        """Notices for the user since the last call."""
        ...

    def results(self, tickets: Sequence[Any]) -> tuple[Sequence[Sequence[RewardResult]], Sequence[str]]:
        """Wait for all tickets: the results of each of its rewards in their order, and tracebacks of new errors."""
        ...

    def close(self) -> None:
        """Stop scoring, and end what it started."""
        ...


class MeasuredMember(RewardMember, Protocol):
    """A reward that measures itself, with a state that a resume needs."""

    def metrics(self) -> Metrics:
        """Metrics of its latest answers."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


@dataclass(frozen=True, slots=True)
class ScorerTicket:
    """Answers to one prompt that are being scored."""

    ids: Sequence[str]
    """Name of each answer's prompt."""
    members: Sequence[Any]
    """Each member's own ticket."""


@dataclass
class FunctionMember:
    """The functions of a config, in worker processes."""

    pool: RewardWorkerPool

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> Sequence[str]:
        self.pool.check({*columns, "messages", "tokens"}, rows)
        return self.pool.warnings

    def write_protect(self, folder: Path) -> None:
        self.pool.write_protect(folder)

    def notices(self) -> list[str]:
        notices, self.pool.notices = self.pool.notices, []
        return notices

    def submit(self, answers: Sequence[ScorerInput]) -> RewardTicket:
        return self.pool.submit(reward_batch(answers))

    def results(self, tickets: Sequence[RewardTicket]) -> tuple[list[list[RewardResult]], list[str]]:
        return self.pool.results(tickets)

    def close(self) -> None:
        self.pool.close()


@dataclass
class RewardScorer:
    """Scorer by all rewards of a config, with a limit of unscored answers."""

    config: RewardsConfig
    members: Sequence[tuple[Sequence[int], RewardMember]]
    """Members, and the places in `config.functions` of their rewards."""
    budget: UnscoredBudget
    pending_notes: list[str] = field(default_factory=list[str])
    measured: Mapping[str, MeasuredMember] = field(default_factory=dict[str, MeasuredMember])
    """The members that measure themselves (judges, several models), by the names of their scores."""

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> list[str]:
        """Return warnings; raise HoneError where a reward cannot score the answers of a dataset with these columns and
        rows."""
        return [warning for _, member in self.members for warning in member.check(columns, rows)]

    def write_protect(self, folder: Path) -> None:
        """Keep reward functions from writing into a folder; call it before the first answers."""
        for _, member in self.members:
            member.write_protect(folder)

    def submit(self, answers: Sequence[ScorerInput]) -> ScorerTicket:
        """Begin to score the answers to one prompt."""
        return ScorerTicket([one.id for one in answers], [member.submit(answers) for _, member in self.members])

    def gather(self, tickets: Sequence[ScorerTicket]) -> RewardScores:
        """Wait for the scores of all tickets, in their order."""
        columns: list[Sequence[RewardResult]] = [()] * len(self.config.functions)
        tracebacks: list[str] = []
        for number, (places, member) in enumerate(self.members):
            results, errors = member.results([ticket.members[number] for ticket in tickets])
            tracebacks.extend(errors)
            for place, column in zip(places, results, strict=True):
                columns[place] = column
        weights = [reward.weight for reward in self.config.functions]
        scores = combine_results(
            dict(zip(self.config.names, columns, strict=True)),
            weights,
            tracebacks=tracebacks,
            max_abs_score=self.config.max_abs_score,
            ids=[id_ for ticket in tickets for id_ in ticket.ids],
        )
        self.pending_notes.extend(
            f"a reward function failed; equal errors are not shown again: {text}" for text in tracebacks
        )
        self.budget.observe(scores)
        return scores

    def metrics(self) -> Metrics:
        """Metrics of the members that measure themselves."""
        return {key: value for member in self.measured.values() for key, value in member.metrics().items()}

    def state(self) -> State:
        judges: State = {name: member.state() for name, member in self.measured.items()}
        return {**self.budget.state(), **({"judges": judges} if judges else {})}

    def restore(self, state: State) -> None:
        self.budget.restore(state)
        for name, member in self.measured.items():
            member.restore(substate(substate(state, "judges"), name))

    def notes(self) -> list[str]:
        """Tracebacks of the reward functions' errors, each distinct one once, and notices of the members."""
        notes, self.pending_notes = self.pending_notes, []
        return [*notes, *(notice for _, member in self.members for notice in member.notices())]

    def close(self) -> None:
        """End processes and requests; scores not gathered by now are lost."""
        for _, member in self.members:
            member.close()


def reward_batch(answers: Sequence[ScorerInput]) -> RewardBatch:
    """The answers to one prompt, as functions and servers are sent them."""
    chat = not isinstance(answers[0].prompt, str)
    return RewardBatch(
        prompts=[answer.prompt for answer in answers],
        completions=[[{"role": "assistant", "content": one.text}] if chat else one.text for one in answers],
        columns={name: [answer.columns[name] for answer in answers] for name in answers[0].columns},
        groups=[0] * len(answers),  # all answers have the same prompt
        conversation={
            "messages": lambda: [list(answer.messages) for answer in answers],
            "tokens": lambda: [answer.tokens for answer in answers],
        },
        ids=[answer.id for answer in answers],
        turns=[answer.turns for answer in answers],
        unit="turn" if answers[0].steps is None else "step",
    )
