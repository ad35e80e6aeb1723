"""A dialogue of a person with a policy: the person takes the world's side, or the user's.

Belongs here: who answers what. Reading and printing is `hone.cli.commands.evaluate`.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, cast

from pydantic import ValidationError

from hone.core.conversation import Message
from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.errors import ConfigError, DataError
from hone.core.generation import Request, SamplingParams
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.run.saved_config import config_tree, is_control, table_of
from hone.run.store.evaluations import AnswerRow
from hone.text.dialogues.config import PREFIX, DialogueTaskConfig
from hone.text.dialogues.environment import DialogueEnvironment
from hone.text.dialogues.hosted import WorldFaultError, WorldHost
from hone.text.evaluate.dialogues import (
    DialogueLimits,
    History,
    OpenedDialogue,
    TokenizerDialogue,
    dialogue_context,
    open_dialogue,
    prompt_text,
    said_turns,
)
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.evaluate.text_eval import user_code_limits
from hone.text.tasks.chat_rows import asked_row
from hone.text.tasks.conversation import ConversationLimits, ConversationLoop
from hone.text.tasks.dataset import Example
from hone.text.tasks.scored_rows import PromptContent
from hone.text.tasks.task import TaskConfig
from hone.text.tasks.world import Prompt

PlaySide: TypeAlias = Literal["world", "user"]
OWN_WORLD = "own"
"""Names the world of the run's own task."""


class _DialoguePlayer(Protocol):
    """The person."""

    def show(self, speaker: str, text: str) -> None:
        """Show a turn of `policy`, `environment` or `prompt`."""

    def reply(self, suggestion: str | None) -> str | None:
        """Ask for the person's turn; `suggestion` is what an empty one stands for. None ends the dialogue."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayRequest:
    """A policy, the world it plays in, and the person's side."""

    policy: Path
    run: Path | None
    """Run of the policy, whose task has the limits of turns and tokens."""
    world: str
    """`file.py:Class` or `package.module:Class`; `own`: that of the run's task."""
    side: PlaySide
    seed: int = 0
    """Chooses the row and the policy's draws."""
    temperature: float = 1.0
    """0 is greedy."""
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlaySettings:
    """Task and limits of the dialogue."""

    task: DialogueTaskConfig
    max_tokens: int
    stop: tuple[str, ...]
    context: int | None
    history: History


@dataclass(slots=True)
class _PersonHost:
    """Implements `WorldHost`: a person in the place of a world, beside the world itself."""

    own: WorldHost
    side: PlaySide
    player: _DialoguePlayer
    begins: bool
    """The world has to be begun, also where only its tools are asked."""

    def number(self) -> int:
        return self.own.number()

    def begin(self, dialogue: int, columns: Mapping[str, object], seed: int) -> "Future[WorldTurn]":
        return _settled(lambda: self._begun(dialogue, columns, seed))

    def answer(self, dialogue: int, said: PolicyTurn) -> "Future[WorldTurn]":
        return _settled(lambda: self._answered(dialogue, said))

    def end(self, dialogue: int) -> None:
        self.own.end(dialogue)

    def late_answers(self) -> int:
        return self.own.late_answers()

    def close(self) -> None:
        self.own.close()

    def _begun(self, dialogue: int, columns: Mapping[str, object], seed: int) -> WorldTurn:
        turn = self.own.begin(dialogue, columns, seed).result() if self.begins else WorldTurn()
        opening = columns["prompt"] if self.side == "user" or not turn.messages else list(turn.messages)
        self.player.show("prompt", prompt_text(cast("str | Sequence[Message]", opening)))
        return turn if self.side == "world" else WorldTurn()

    def _answered(self, dialogue: int, said: PolicyTurn) -> WorldTurn:
        self.player.show("policy", said.text)
        asks_tools = bool(said.calls) or said.fault is not None
        own = None
        if self.side == "world" or asks_tools:
            own = self.own.answer(dialogue, said).result()
        if own is not None and self.side == "user":
            self.player.show("environment", prompt_text(own.messages))
            return replace(own, reward=0.0, done=False)
        # An empty turn in the world's place is the world's own.
        typed = self.player.reply(None if own is None else prompt_text(own.messages))
        if typed is None:
            return WorldTurn(done=True)
        if own is not None and not typed:
            return own
        if own is None:
            return WorldTurn(messages=[{"role": "user", "content": typed}])
        # Terminals do not show how the world's words end, and the policy knows them with their ends.
        words = prompt_text(own.messages)
        end = words[len(words.rstrip()) :]
        return WorldTurn(messages=[{"role": "user", "content": typed.rstrip() + end}], reward=own.reward)


def play_dialogue(wanted: PlayRequest, player: _DialoguePlayer) -> AnswerRow:
    """Lead one dialogue of a person with a policy; returns it with its end. Raises ConfigError for a control policy, or
    a task without dialogues on the world's side; HoneError as training does for a world that fails at its start."""
    if is_control(wanted.policy):
        raise ConfigError(f"{wanted.policy} is a control policy, which writes no text")
    tree = {} if wanted.run is None else config_tree(wanted.run)
    own, rollout = table_of(tree, "evaluation"), table_of(tree, "rollout")
    limits = {**rollout, **own}
    known = own.get("task") or tree.get("task")
    task = dict(known) if isinstance(known, dict) else {}
    if wanted.world != OWN_WORLD:
        task = {name: task[name] for name in ("turns", "tools") if name in task}
        task["source"] = PREFIX + wanted.world.removeprefix(PREFIX)
    if "source" not in task:
        raise ConfigError(f"{wanted.policy} is not in a run, so its task is unknown; name a world: file.py:Class")
    try:
        config = DialogueTaskConfig.model_validate(task)
    except ValidationError as error:
        raise ConfigError(*(f"world {wanted.world}: {one['msg']}" for one in error.errors())) from None
    context, stop = limits.get("context"), limits.get("stop")
    settings = _PlaySettings(
        task=config,
        max_tokens=int(cast("int", limits.get("max_tokens") or 256)),
        stop=tuple(cast("list[str]", stop or [])),
        context=context if isinstance(context, int) else None,
        history=cast("History", limits.get("history") or "append"),
    )
    source = ModelSource(path=str(wanted.policy))
    policy = open_policy(source, seed=0, device=wanted.device, temperature=wanted.temperature or 1.0)
    dialogue = open_dialogue(settings.task, user_code_limits(wanted.run))
    if dialogue is None:
        raise ConfigError(
            f"{wanted.policy}: its task has neither a world nor tools; name a world: hone play file.py:Class"
        )
    try:
        return _play(wanted, settings, policy, dialogue, player)
    finally:
        dialogue.close()


def _play(
    wanted: PlayRequest, settings: _PlaySettings, policy: TokenPolicy, dialogue: OpenedDialogue, player: _DialoguePlayer
) -> AnswerRow:
    context = dialogue_context(settings.context, policy.decoder.config.max_positions)
    limits = DialogueLimits(max_tokens=settings.max_tokens, context=context, history=settings.history)
    tokenizer = dialogue.tokenizer(policy.tokenizer)
    rows = dialogue.examples().rows
    prompt = _prompt(wanted, settings.task, rows[wanted.seed % len(rows)], tokenizer, player)
    host = _PersonHost(dialogue.host, wanted.side, player, dialogue.description.begins)
    rules = replace(dialogue.rules(limits), begins=True, pays=wanted.side == "world")
    tokens = TokenizerDialogue(tokenizer, limits.history)
    environment = DialogueEnvironment(host, rules, tokens, [prompt], seed=wanted.seed)
    sampling = SamplingParams(
        max_tokens=settings.max_tokens,
        stop=settings.stop,
        greedy=wanted.temperature == 0,
        temperature=wanted.temperature or 1.0,
    )
    most = context - settings.max_tokens
    engine = make_engine(policy, slots=1, longest_prompt=most, max_tokens=settings.max_tokens, seed=wanted.seed)
    request = Request(id=f"{prompt.id}#0", prompt=prompt.tokens, samples=1, sampling=sampling)
    loop = ConversationLoop(
        engine,
        [request],
        policy.tokenizer.decode,
        environment=environment,
        limits=ConversationLimits(context=context, slots=1),
    )
    for _ in loop.finished_groups():
        pass
    # The dialogue with its end; an answer that was cut has not been shown
    conversation = loop.groups[0][0]
    outcome = conversation.outcome
    turns = said_turns(conversation.messages)
    if conversation.stop == "max_tokens":
        player.show(*turns[-1])
    scored = outcome is not None and outcome.rewards and not outcome.reason
    return AnswerRow(
        id=prompt.id,
        prompt=prompt_text(prompt.content),
        reference="",
        answer=turns[-1][1] if turns else "",
        score=sum(outcome.rewards) if outcome is not None and scored else None,
        turns=turns,
        stop=conversation.stop or "",
        fault="" if outcome is None else outcome.reason,
    )


def _prompt(
    wanted: PlayRequest, task: TaskConfig, row: Example, tokenizer: Tokenizer, player: _DialoguePlayer
) -> Prompt:
    """The row's prompt, or the person's first words on the user's side. Raises DataError for text without tokens."""
    content: PromptContent = row.prompt
    if wanted.side == "user":
        typed = player.reply(None)
        if not typed:
            raise DataError("a dialogue needs first words")
        content, task = typed, task.model_copy(update={"template": "{prompt}"})
    asked = asked_row(task, content, row.columns, tokenizer)
    content = task.fill_template(content, row.columns)
    return Prompt(id=row.id, content=content, tokens=asked.tokens, columns=row.columns, asked=asked)


def _settled(work: Callable[[], WorldTurn]) -> "Future[WorldTurn]":
    """The result of `work`, or the fault of the world that it raised."""
    future: Future[WorldTurn] = Future()
    try:
        future.set_result(work())
    except WorldFaultError as fault:
        future.set_exception(fault)
    return future
