"""Config of the prompts: a reasoning-gym task by name, a file, or agents that call the policy by an address."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, cast
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, model_validator

from hone.core.config import Config, is_loopback
from hone.core.errors import ConfigError, DataError, did_you_mean
from hone.rewards.config import AgentSessionsConfig
from hone.text.tasks.dataset import DatasetKind, ExampleDataset, read_examples
from hone.text.tasks.reasoning_gym import PREFIX, reasoning_gym_examples
from hone.text.tasks.scored_rows import PromptContent
from hone.text.tools.loading import ToolsConfig

# ------------------------------------------------------------------------------------------------------- agent sessions


VERIFIERS: Final = "verifiers:"
AGENTS: Final = "agents:"


def is_captured(source: str) -> bool:
    """True for a `task.source` whose dialogues are held by agents."""
    return source.startswith((VERIFIERS, AGENTS))


def agent_address(source: str) -> tuple[str, int]:
    """Host and port of `agents:HOST:PORT`. Raises ValueError, also for a host that other machines can reach."""
    try:
        parts = urlsplit(f"//{source.removeprefix(AGENTS)}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port is None:
        raise ValueError(f"source = {source!r}: expected {AGENTS}HOST:PORT, such as {AGENTS}127.0.0.1:8712")
    if not is_loopback(host):
        raise ValueError(
            f"source = {source!r}: {host} can be reached by other machines, and whoever asks there decides what is "
            f"learnt; listen at 127.0.0.1, and let agents of other machines in by a tunnel (ssh -R {port}:127.0.0.1:"
            f"{port})"
        )
    return host, port


# ----------------------------------------------------------------------------------------------------------------- task


_FIELD = re.compile(r"\{([A-Za-z_][\w.]*)\}")


class TaskConfig(Config):
    """Prompts and their columns."""

    source: str = Field(min_length=1)
    """`reasoning_gym:TASK`, or a `.jsonl`, `.json` or `.parquet` file. Agents that call the policy by an address: an
    environment of verifiers, `verifiers:NAME`, or `agents:HOST:PORT` for any (docs/howto/other_environments.md)."""
    size: int = Field(default=1000, ge=1)
    """Examples to make, for a reasoning-gym task, or most tasks of a verifiers environment; a file is read whole."""
    seed: int = Field(default=0, ge=0)
    """Seed of the examples of a reasoning-gym task."""
    options: dict[str, JsonValue] = {}
    """Options of the source: settings of a reasoning-gym task, arguments by name of a world's class for each dialogue,
    or the config of a verifiers environment, `{agent = {harness = {id = "null"}}}`."""
    distinct: bool = True
    """Make no question twice (reasoning-gym)."""
    template: str = "{prompt}"
    """Template of a plain-text prompt: `{prompt}`, or other columns by name, such as `{metadata.expression}`.
    A prompt of messages stays as it is."""
    chat: bool | None = None
    """Plain prompts are asked as a user's message of the tokenizer's chat template; unset: where it has one."""
    system: str = ""
    """System message before plain prompts, and of conversations that have none."""
    chat_template_kwargs: dict[str, JsonValue] = {}
    """Variables of the chat template, such as `enable_thinking`; a row's column `chat_template_kwargs` adds to them."""
    columns: dict[str, str] = {}
    """Columns of a file by the names that hone has for them: `{prompt = "question", answer = "target"}`."""
    on_bad_row: Literal["error", "drop"] = "error"
    """Treatment of invalid rows of a file, and of rows that repeat the `id` of an earlier row."""
    on_long_prompt: Literal["error", "drop", "truncate"] = "error"
    """Treatment of prompts that exceed the model's context; `truncate` keeps the last tokens."""
    tools: ToolsConfig | None = None
    """Tools that the policy may call; with prompts in place of a world, the first turn without a call ends a dialogue.
    Rows that are learnt are told of them, and nothing is run."""

    @property
    def is_captured(self) -> bool:
        """True if agents hold the dialogues, and their requests become the episodes."""
        return is_captured(self.source)

    @property
    def tool_format(self) -> str:
        """Name of the form of calls, which rows with tools have where the chat template describes none."""
        return "hermes" if self.tools is None else self.tools.format

    @property
    def describes_tools(self) -> bool | None:
        """As `tools.describe`."""
        return None if self.tools is None else self.tools.describe

    @property
    def takes_options(self) -> bool:
        """True for a source that `options` can be passed to."""
        return self.source.startswith((PREFIX, VERIFIERS))

    @property
    def is_generated(self) -> bool:
        """True for a reasoning-gym task, False for a file."""
        return self.source.startswith(PREFIX)

    @model_validator(mode="after")
    def _no_settings_for_files(self) -> "TaskConfig":
        if self.options and not self.takes_options:
            raise ValueError(
                f"options is for sources that make their rows, such as {PREFIX}TASK, but source is {self.source}"
            )
        if self.columns and (self.is_generated or self.is_captured):
            raise ValueError(f"columns names those of a file of rows, but source is {self.source}")
        if not _FIELD.search(self.template):
            raise ValueError("template must contain {prompt} or another column in braces")
        return self

    @model_validator(mode="after")
    def _chat_keys_fit(self) -> "TaskConfig":
        if self.system and self.chat is False:
            raise ValueError(
                "system is a message of a chat, and chat = false asks prompts as plain text; leave one out"
            )
        if fault := variable_fault(self.chat_template_kwargs):
            raise ValueError(f"chat_template_kwargs: {fault}")
        return self

    @model_validator(mode="after")
    def _agents_are_near(self) -> "TaskConfig":
        if self.source.startswith(AGENTS):
            agent_address(self.source)
        return self

    def require_agents(self, agents: AgentSessionsConfig | None) -> None:
        """Raise ValueError for `user_code.agents` beside a source that has none."""
        if agents is None:
            return
        if not self.is_captured:
            raise ValueError(
                f"user_code.agents is for the sources {VERIFIERS}NAME and {AGENTS}HOST:PORT, got {self.source}"
            )
        if self.source.startswith(AGENTS) and agents.python:
            raise ValueError(
                f"user_code.agents.python is for {VERIFIERS}NAME; agents that come of themselves need none"
            )

    def examples(self, *, need: DatasetKind = "prompt", exclude: Sequence[ExampleDataset] = ()) -> ExampleDataset:
        """Make or read them. Questions of `exclude` are left out of a made set, so that it is held out for real.

        Raises ConfigError or DataError.
        """
        if self.is_captured:
            raise ConfigError(
                f"task.source = {self.source!r}: sessions of agents are for the recipes that learn from scored answers "
                "as they are drawn, such as grpo; here a file or a reasoning-gym task is needed"
            )
        if self.source.startswith(PREFIX):
            return reasoning_gym_examples(
                self.source,
                size=self.size,
                seed=self.seed,
                config=self.options,
                distinct=self.distinct,
                exclude=exclude,
            )
        return read_examples(Path(self.source), need=need, columns=self.columns, on_bad_row=self.on_bad_row)

    def fill_template(self, prompt: PromptContent, columns: Mapping[str, object]) -> PromptContent:
        """The prompt in its template; conversations as they are. Raises DataError for a column that is not there."""
        if not isinstance(prompt, str):
            return prompt
        return _FIELD.sub(lambda found: _column(found[1], {"prompt": prompt, **columns}), self.template)


def variable_fault(variables: Mapping[str, object]) -> str:
    """Fault of a table of variables of a chat template; empty without one."""
    own = sorted({"messages", "tools", "add_generation_prompt", "self"}.intersection(variables))
    own += [name for name in variables if name.endswith("_token")]
    if not own:
        return ""
    return (
        f"{', '.join(own)}: what hone gives the chat template itself; leave it out (tools have a column of their own)"
    )


def _column(path: str, columns: Mapping[str, object]) -> str:
    """The text at `path`, such as `metadata.expression`."""
    place: object = columns
    for name in path.split("."):
        inside = cast("Mapping[str, object]", place) if isinstance(place, Mapping) else {}
        if name not in inside:
            raise DataError(f"task.template asks for {{{path}}}: no {name!r} there{did_you_mean(name, list(inside))}")
        place = inside[name]
    if place is None or (isinstance(place, float) and math.isnan(place)):
        raise DataError(
            f"task.template asks for {{{path}}}, which is null; fill it in, or leave it out of the template"
        )
    return str(place)
