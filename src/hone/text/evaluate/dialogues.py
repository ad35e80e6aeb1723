"""Dialogue tasks, wired: the world in its processes, its rows, the tokenizer's view of tools, and the environment.

Belongs here: what training and evaluation share, nudges for a second answer included.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Message, Turn
from hone.core.dialogue import WorldTurn
from hone.core.errors import ConfigError, DataError, UserCodeError
from hone.models.language.tokenizers import Tokenizer
from hone.rewards.config import RewardsConfig, RewardWorld, UserCodeConfig
from hone.text.dialogues.config import OPENENV, PREFIX, DialogueTaskConfig, dialogue_examples
from hone.text.dialogues.environment import Bridge, DialogueEnvironment, DialogueRules
from hone.text.dialogues.hosted import WorldDescription, WorldFaultError, WorldSpec
from hone.text.dialogues.hosts import ProcessHost, ThreadHost
from hone.text.tasks.chat_rows import asks_in_chat, row_tokenizer
from hone.text.tasks.conversation import Conversation, NudgeEnvironment
from hone.text.tasks.dataset import ExampleDataset
from hone.text.tasks.task import TaskConfig, is_captured
from hone.text.tasks.world import Prompt
from hone.text.tools.described import with_tools
from hone.text.tools.formats import TOOL_FORMATS, check_round_trip

History: TypeAlias = Literal["append", "template"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueLimits:
    """Limits of the tokens of a dialogue."""

    max_tokens: int
    """Largest number of tokens of a turn of the policy."""
    context: int
    """Largest number of tokens of the whole dialogue."""
    history: History = "append"


@dataclass(slots=True)
class OpenedDialogue:
    """The world of a task; starts with its first use."""

    task: DialogueTaskConfig
    host: ProcessHost | ThreadHost
    _examples: ExampleDataset | None = None
    _opening: WorldTurn | None = None

    @property
    def description(self) -> WorldDescription:
        """What the world is like. Raises UserCodeError, ResourceError."""
        return self.host.describe()

    def examples(self) -> ExampleDataset:
        """Rows of the dialogues. Raises HoneError."""
        if self._examples is None:
            self._examples = dialogue_examples(self.task, self.host.rows)
        return self._examples

    def opening(self) -> WorldTurn:
        """What the world begins its first row's dialogue with. Raises UserCodeError for a world that fails there."""
        if self._opening is None:
            self._opening = self._try_first_row() if self.description.begins else WorldTurn()
        return self._opening

    def is_chat(self, tokenizer: Tokenizer | None = None) -> bool:
        """True if its dialogues are conversations, which a chat template renders: that of `tokenizer`, if plain prompts
        are asked in it. Raises as `opening`."""
        return has_chats(self.task, self.examples(), tokenizer) or bool(self.opening().messages)

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer whose chats are prepared about the tools."""
        functions = [one.as_function() for one in self.description.schemas]
        return with_tools(tokenizer, functions, TOOL_FORMATS[self.task.tool_format], describe=self.task.describes_tools)

    def check(self, tokenizer: Tokenizer, limits: DialogueLimits) -> list[str]:
        """Check that dialogues can be written with a tokenizer, and return warnings. Raises DataError for a chat
        template that rewrites earlier turns, ConfigError for tools without a format of calls, for a format that the
        template does not write and for a context without room for a turn, UserCodeError for a world that fails."""
        prepared = row_tokenizer(self.task, {}, self.tokenizer(tokenizer))
        messages = self.opening().messages
        size = len(prepared.apply_chat(messages)) if messages else 0
        if size + limits.max_tokens > limits.context:
            raise ConfigError(
                f"rollout.context = {limits.context} has no room for a turn: the prompt that the world begins with has "
                f"{size} tokens, and rollout.max_tokens = {limits.max_tokens}; raise the one, or lower the other"
            )
        schemas = self.description.schemas
        if schemas and self.task.tools is None:
            raise ConfigError(
                f"{self.task.world_spec.name} has the tools {', '.join(one.name for one in schemas)}, and nothing "
                'says how the policy writes calls: add [task.tools] format = "hermes", or another'
            )
        is_chat = self.is_chat(tokenizer)
        if self.task.tools is not None and is_chat:
            check_round_trip(TOOL_FORMATS[self.task.tools.format], schemas, prepared.render_chat)
        if is_chat:
            roles = (*(["user"] if self.task.has_world else []), *(["tool"] if self.task.tools is not None else []))
            prepared.check_chat_beginning(roles)
            if limits.history == "append":
                try:
                    prepared.check_chat_continuation(roles)
                except DataError as fault:
                    raise DataError(
                        *fault.messages,
                        'rollout.history = "template" follows such a template: dialogues go on in new rows',
                    ) from None
        return self.host.warnings

    def check_pay(self, rewards: RewardsConfig) -> None:
        """Raise ConfigError if nothing scores the dialogues: tools that pay nothing, and no other reward."""
        if not self.description.pays and all(isinstance(reward, RewardWorld) for reward in rewards.functions):
            raise ConfigError(
                f"{self.task.world_spec.name}: nothing scores these dialogues: tools pay nothing, and there is no "
                "other reward; name a reward function in rewards.functions, or give a tool class a method get_reward"
            )

    def environment(
        self,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        limits: DialogueLimits,
        *,
        seed: int,
        keeps_last_words: bool = False,
        one_seed: bool = False,
    ) -> DialogueEnvironment:
        """The other side of dialogues that begin with `prompts`; the rest as in `DialogueRules`."""
        rules = self.rules(limits, keeps_last_words=keeps_last_words, one_seed=one_seed)
        tokens = TokenizerDialogue(self.tokenizer(tokenizer), limits.history)
        return DialogueEnvironment(self.host, rules, tokens, prompts, seed=seed)

    def rules(self, limits: DialogueLimits, *, keeps_last_words: bool = False, one_seed: bool = False) -> DialogueRules:
        """Limits of its dialogues, and the form of their calls."""
        task, tools = self.task, self.task.tools
        return DialogueRules(
            turns=task.turns,
            context=limits.context,
            message_tokens=task.message_tokens,
            format=None if tools is None else TOOL_FORMATS[tools.format],
            schemas=self.description.schemas,
            begins=self.description.begins,
            pays=self.description.pays,
            keeps_last_words=keeps_last_words,
            one_seed=one_seed,
        )

    def write_protect(self, folder: Path) -> None:
        """Keep worlds from writing into a folder; call it before the first dialogue."""
        self.host.write_protect(folder)

    def close(self) -> None:
        self.host.close()

    def _try_first_row(self) -> WorldTurn:
        first, number = self.examples().rows[0], self.host.number()
        try:
            asked = self.host.begin(number, {**first.columns, "prompt": first.prompt}, 0)
            return asked.result()
        except WorldFaultError as fault:
            about = f"{self.task.world_spec.name}: begin failed on the first row (id {first.id}): {fault.reason}"
            raise UserCodeError(about, *filter(None, [fault.traceback])) from None
        finally:
            self.host.end(number)


def task_tokenizer(task: TaskConfig, tokenizer: Tokenizer, limits: UserCodeConfig) -> Tokenizer:
    """The tokenizer whose chats are told of the tools of a task whose rows are learnt. Raises UserCodeError."""
    if task.tools is None or not task.tools.use or task.is_captured:
        return tokenizer
    host = ProcessHost(WorldSpec(tools=task.tools.uses), limits)
    try:
        functions = [one.as_function() for one in host.describe().schemas]
    finally:
        host.close()
    return with_tools(tokenizer, functions, TOOL_FORMATS[task.tool_format], describe=task.describes_tools)


def open_dialogue(task: DialogueTaskConfig, limits: UserCodeConfig) -> OpenedDialogue | None:
    """The world and tools of a task, which start with their first use; None for prompts that are answered once."""
    if not task.is_dialogue:
        return None
    host = ThreadHost if task.runs_in_threads else ProcessHost
    return OpenedDialogue(task, host(task.world_spec, limits))


@dataclass(frozen=True, slots=True)
class TokenizerDialogue:
    """Implements `DialogueTokens` by a tokenizer and its chat template."""

    tokenizer: Tokenizer
    history: History

    def for_prompt(self, prompt: Prompt) -> "TokenizerDialogue":
        return replace(self, tokenizer=prompt.tokenizer(self.tokenizer))

    def prompt(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        return self.tokenizer.apply_chat(messages)

    def bridge(
        self, history: Sequence[Message], said: str, answer: NDArray[np.int32], new: Sequence[Message]
    ) -> Bridge:
        if self.history == "append":
            return Bridge(tokens=self.tokenizer.continue_chat(history, new, answer=answer))
        tokens, prompt = self.tokenizer.continue_or_rewrite_chat(history, new, said=said, answer=answer)
        return Bridge(tokens=tokens, prompt=prompt)

    def encode(self, text: str) -> NDArray[np.int32]:
        return self.tokenizer.encode(text)

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        return self.tokenizer.decode(ids)


def with_world_reward(given: object) -> object:
    """Values of a config with `task` and `rewards`; for dialogues, also those that agents hold, the world's rewards are
    among the rewards, with weight 1 if they do not name them."""
    if not isinstance(given, dict):
        return given
    values = cast("dict[str, object]", given)
    if not _asks_for_dialogues(values.get("task")):
        return values
    rewards = values.get("rewards") or {}
    table = rewards.model_dump() if isinstance(rewards, RewardsConfig) else rewards
    if not isinstance(table, dict):
        return values
    functions = cast("dict[str, object]", table).get("functions") or []
    if not isinstance(functions, list) or any(_kind_of(one) == "world" for one in cast("list[object]", functions)):
        return values
    return {**values, "rewards": {**table, "functions": [*functions, {"kind": "world"}]}}


def _asks_for_dialogues(task: object) -> bool:
    if isinstance(task, DialogueTaskConfig):
        return task.is_dialogue or task.is_captured
    table = cast("dict[str, object]", task) if isinstance(task, dict) else {}
    source = str(table.get("source", ""))
    return source.startswith((PREFIX, OPENENV)) or is_captured(source) or table.get("tools") is not None


def _kind_of(reward: object) -> object:
    if isinstance(reward, RewardWorld):
        return reward.kind
    return cast("dict[str, object]", reward).get("kind") if isinstance(reward, dict) else None


def dialogue_faults(
    task: DialogueTaskConfig, rewards: RewardsConfig, *, max_tokens: int, context: int | None, history: History
) -> list[str]:
    """Settings that do not go together, of a task with dialogues or without."""
    if task.is_captured:
        faults = ['history = "template": agents say in each request what the history is; leave it out']
        return faults * (history != "append")
    if not task.is_dialogue:
        faults = [f"context = {context}: for dialogues, and task names no world and no tools"] if context else []
        faults += ['history = "template": for dialogues, and task names no world and no tools'] * (history != "append")
        if not task.is_captured and any(isinstance(reward, RewardWorld) for reward in rewards.functions):
            faults.append('rewards.functions: kind = "world" needs a world in task.source, or task.tools')
        return faults
    faults = []
    if context is not None and max_tokens > context:
        faults.append(
            f"max_tokens = {max_tokens} is above context = {context}: a dialogue of task.turns = {task.turns} turns "
            "has no room for one; raise context, or lower max_tokens"
        )
    if rewards.step_end:
        faults.append(f"rewards.step_end = {rewards.step_end!r}: dialogues have turns, not steps; leave it out")
    return faults


def dialogue_context(asked: int | None, most: int) -> int:
    """Most tokens of a dialogue: as a config asks for, else as many as the model has positions. Raises DataError."""
    if asked is not None and asked > most:
        raise DataError(f"rollout.context = {asked} is beyond the model's {most} positions; lower it")
    return most if asked is None else asked


# ----------------------------------------------------------------------------------------------------- dialogue answers


def said_turns(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Turns of the messages after a prompt: texts of the policy, and of the environment between and after them."""
    return tuple(("policy" if one["role"] == "assistant" else "environment", str(one["content"])) for one in messages)


def prompt_text(prompt: str | Sequence[Message]) -> str:
    """A prompt for display: its text, or its messages, one below the other."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(str(one["content"]) if len(prompt) == 1 else f"{one['role']}: {one['content']}" for one in prompt)


# -------------------------------------------------------------------------------------------------------- second answer
@dataclass(frozen=True, slots=True)
class SecondAnswer:
    """A nudge: a user's message in a conversation, or plain text after an answer in plain text."""

    nudge: str
    right_from: float = 1.0
    """Least score of a right answer, for the shares of answers that became right and wrong."""

    def environment(self, tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> NudgeEnvironment:
        """The environment of conversations that begin with `prompts`. Raises DataError for a nudge that the model
        cannot read, and for a chat template that rewrites earlier messages."""
        self.tokens_between(tokenizer, is_chat=any(not isinstance(prompt.turns, str) for prompt in prompts))
        by_id = {prompt.id: prompt for prompt in prompts}

        def tokens(conversation: Conversation) -> NDArray[np.int32]:
            prompt = by_id[conversation.request.id.rpartition("#")[0]]
            answer = conversation.transcript.answers[-1].tokens
            return self._tokens(prompt.tokenizer(tokenizer), prompt.turns, answer)

        return NudgeEnvironment(self.nudge, tokens)

    def further_tokens(self, task: TaskConfig, examples: ExampleDataset, tokenizer: Tokenizer, max_tokens: int) -> int:
        """Most tokens of a conversation after its first answer. Raises as `environment`, and DataError for rows whose
        variables of the chat template cannot be used."""
        if not has_chats(task, examples, tokenizer):
            return self.tokens_between(tokenizer, is_chat=False) + max_tokens
        by_row = examples.apply(lambda row: row_tokenizer(task, row.columns, tokenizer))
        by_variables = {str(one.variables): one for one in by_row}
        return max(self.tokens_between(one, is_chat=True) for one in by_variables.values()) + max_tokens

    def tokens_between(self, tokenizer: Tokenizer, *, is_chat: bool) -> int:
        """Number of tokens between the two answers. Raises as `environment`."""
        try:
            plain = tokenizer.encode(self.nudge)
        except DataError as fault:
            raise DataError(f"algorithm.correction.nudge: {fault}") from None
        if not is_chat:
            return len(plain)
        tokenizer.check_chat_continuation()
        return len(self._tokens(tokenizer, [{"role": "user", "content": "a question"}], np.zeros(0, np.int32)))

    def _tokens(
        self, tokenizer: Tokenizer, history: str | Sequence[Message], answer: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        if isinstance(history, str):
            return tokenizer.encode(self.nudge)
        return tokenizer.continue_chat(list(history), [{"role": "user", "content": self.nudge}], answer=answer)


def has_chats(task: TaskConfig, examples: ExampleDataset, tokenizer: Tokenizer | None = None) -> bool:
    """True if a prompt is a conversation, or is asked in one: by the chat template of `tokenizer`, or as the task says
    whatever the tokenizer is."""
    if any(example.is_conversation for example in examples.rows):
        return True
    asks = bool(task.system or task.chat) if tokenizer is None else asks_in_chat(task, tokenizer)
    return asks and any(example.prompt for example in examples.rows)
