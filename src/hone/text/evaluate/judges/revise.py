"""Constitutional revision of answers: criticism by a principle, then a revised answer (Bai et al., 2022, section 3).

A revised answer and its draft are a preference pair, without any person: the first half of RLAIF. The second half is a
judge as a reward.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from hone.core.conversation import Message
from hone.core.random import generator
from hone.rewards.judges.config import RevisionConfig
from hone.rewards.judges.questions import (
    SYSTEM,
    JudgeReply,
    JudgeRequest,
    TextField,
    VerdictError,
    describe_format,
    fence,
    nonce_of,
    prompt_text,
    read_verdict,
)
from hone.text.evaluate.judges.client import JudgeClient, JudgeFault, open_client

CRITICISE = (
    "Criticise the answer to the prompt by this principle: {principle}\n\nSay in a few sentences in which way the "
    "answer breaks the principle, or that it keeps it."
)
REVISE = (
    "Revise the answer to the prompt so that it keeps this principle: {principle}\n\nUse the criticism as far as it is "
    "right, and keep everything else of the answer."
)
REVISION = TextField("revision")


@dataclass(frozen=True, slots=True, kw_only=True)
class _RevisionRound:
    """One round: the principle, the criticism, and the answer after it."""

    principle: str
    criticism: str
    revised: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRevision:
    """An answer and its revisions."""

    id: str
    """Name of the answer; principles are drawn by it."""
    prompt: str | Sequence[Message]
    answer: str
    """The draft."""
    rounds: tuple[_RevisionRound, ...] = ()
    fault: str = ""
    """Why a round is missing; the answer then stays as the rounds before left it."""

    @property
    def revised(self) -> str:
        return self.rounds[-1].revised if self.rounds else self.answer

    def preference_row(self) -> dict[str, object] | None:
        """The revised answer as `chosen` and the draft as `rejected`, as a row of TRL's preference format; None where
        both are the same text."""
        if self.revised.strip() == self.answer.strip():
            return None
        return {"prompt": self.prompt, "chosen": self.revised, "rejected": self.answer}


class AnswerReviser:
    """Revises answers by a constitution; all answers of a call are asked about together."""

    def __init__(self, config: RevisionConfig, client: JudgeClient) -> None:
        self.config, self.client = config, client

    def check(self) -> Sequence[str]:
        """Return warnings; raise HoneError where the model cannot be asked."""
        return self.client.backend.check()

    def revise(self, drafts: Sequence[AnswerRevision]) -> list[AnswerRevision]:
        """Return the drafts with their rounds. Raises LostResourceError where the budget is spent."""
        revisions = list(drafts)
        for number in range(self.config.rounds):
            principles = [self._principle(draft, number) for draft in revisions]
            criticisms = self._replies(
                [
                    None if draft.fault else self._request(draft, CRITICISE.format(principle=principle), {})
                    for draft, principle in zip(revisions, principles, strict=True)
                ]
            )
            asked = [
                None
                if not isinstance(criticism, JudgeReply)
                else replace(
                    self._request(draft, REVISE.format(principle=principle), {"criticism": criticism.text}),
                    fields=(REVISION,),
                )
                for draft, principle, criticism in zip(revisions, principles, criticisms, strict=True)
            ]
            revised = self._replies(asked)
            revisions = [
                _with_round(draft, principle, criticism, reply)
                for draft, principle, criticism, reply in zip(revisions, principles, criticisms, revised, strict=True)
            ]
        return revisions

    def close(self) -> None:
        self.client.close()

    def _principle(self, draft: AnswerRevision, number: int) -> str:
        count = len(self.config.principles)
        return self.config.principles[
            int(generator(self.config.seed, "constitution", draft.id, number).integers(count))
        ]

    def _request(self, draft: AnswerRevision, task: str, more: dict[str, str]) -> JudgeRequest:
        parts = {"prompt": prompt_text(draft.prompt), "answer": draft.revised, **more}
        nonce = nonce_of(parts)
        form = describe_format((REVISION,), "json") if more else ""
        fenced = [fence(name, text, nonce) for name, text in parts.items()]
        return JudgeRequest(
            instructions=SYSTEM.format(nonce=nonce),
            question="\n\n".join(part for part in (*fenced, task, form) if part),
            temperature=self.config.temperature,
            max_tokens=self.config.max_tokens,
        )

    def _replies(self, requests: Sequence[JudgeRequest | None]) -> list[JudgeReply | str]:
        """The reply to each request, or why there is none."""
        futures = [None if request is None else self.client.ask(request) for request in requests]
        self.client.finish()
        return ["" if future is None else _reply(future) for future in futures]


def open_reviser(config: RevisionConfig, *, device: str = "cpu") -> AnswerReviser:
    """The reviser of a config, wired; it asks and loads nothing yet. Raises ConfigError for an address that cannot be
    one, or a key that the environment lacks."""
    client = open_client("revise", config.by, config.budget, cache=config.cache, device=device)
    return AnswerReviser(config, client)


def _reply(future: "Future[JudgeReply]") -> JudgeReply | str:
    try:
        return future.result()
    except JudgeFault as fault:
        return fault.reason


def _with_round(
    draft: AnswerRevision, principle: str, criticism: JudgeReply | str, reply: JudgeReply | str
) -> AnswerRevision:
    if draft.fault:
        return draft
    if not isinstance(criticism, JudgeReply):
        return replace(draft, fault=criticism)
    if not isinstance(reply, JudgeReply):
        return replace(draft, fault=reply)
    try:
        revised = str(read_verdict(reply.text, (REVISION,), "json")[REVISION.name])
    except VerdictError as error:
        return replace(draft, fault=str(error))
    one = _RevisionRound(principle=principle, criticism=criticism.text, revised=revised)
    return replace(draft, rounds=(*draft.rounds, one))
