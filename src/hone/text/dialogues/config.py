"""Config of dialogue tasks: the world and its limits."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from hone.core.errors import ConfigError, DataError
from hone.process.user_files import check_reference
from hone.text.dialogues.hosted import WorldSpec
from hone.text.tasks.dataset import MAX_ROW_BYTES, Example, ExampleDataset, build_examples, read_examples
from hone.text.tasks.files import read_rows
from hone.text.tasks.scored_rows import BadRowError, checked_content
from hone.text.tasks.shapes import renamed_columns
from hone.text.tasks.task import TaskConfig

PREFIX: Final = "dialogue:"
"""Beginning of a `task.source` that names a world."""
OPENENV: Final = "openenv:"
"""Beginning of a `task.source` that names an OpenEnv server."""
OPENENV_WORLD: Final = "hone.text.adapters.openenv:OpenEnvWorld"
OWN_WORLDS: Final = "hone.text.games."
"""Beginning of the name of a world that is hone's own code."""
OWN_TOOLS: Final = "hone:"
"""Beginning of the name of a tool that is hone's own code."""
DEFAULT_TURNS: Final = 8
DEFAULT_MESSAGE_TOKENS: Final = 1024


class DialogueTaskConfig(TaskConfig):
    """Prompts, or dialogues with a world."""

    source: str = Field(min_length=1)
    """`reasoning_gym:TASK`, a `.jsonl`, `.json` or `.parquet` file, or a world: `dialogue:file.py:Class`,
    `dialogue:module:Class`, or an OpenEnv server, `openenv:http://127.0.0.1:8000`. Agents that call the policy by an
    address: `verifiers:NAME`, an environment of verifiers, or `agents:HOST:PORT` for any
    (docs/howto/other_environments.md)."""
    rows: str | None = None
    """File with the rows of a world's dialogues; unset: those that its class brings, else `size` rows, which hold a
    number as `seed`."""
    turns: int = Field(default=DEFAULT_TURNS, ge=1)
    """Most turns of the policy in a dialogue."""
    message_tokens: int = Field(default=DEFAULT_MESSAGE_TOKENS, ge=8)
    """Longest message of a world during a dialogue, and longest result of a tool; a longer one is cut in the middle,
    and says so."""

    @property
    def is_dialogue(self) -> bool:
        """True if answers are answered."""
        return self.has_world or (self.tools is not None and not self.is_captured)

    @property
    def has_world(self) -> bool:
        """True if a world answers."""
        return self.source.startswith((PREFIX, OPENENV))

    @property
    def server(self) -> str | None:
        """Address of an OpenEnv server; None for other tasks."""
        return self.source.removeprefix(OPENENV) if self.source.startswith(OPENENV) else None

    @property
    def runs_in_threads(self) -> bool:
        """True where all code of the dialogues is hone's own: threads of the trainer run it. Other code could take the
        trainer down, and a session with a server of tools belongs to one dialogue: each then has a process."""
        world, tools = self.world_spec.reference, self.tools
        own = world is None or world == OPENENV_WORLD or world.startswith(OWN_WORLDS)
        if tools is None:
            return own
        return own and tools.reward is None and all(name.startswith(OWN_TOOLS) for name in tools.use)

    @property
    def takes_options(self) -> bool:
        return super().takes_options or self.has_world

    @property
    def is_generated(self) -> bool:
        return super().is_generated or (self.has_world and self.rows is None)

    @property
    def world_spec(self) -> WorldSpec:
        reference = self.source.removeprefix(PREFIX) if self.has_world else None
        server = {} if self.server is None else {"address": self.server}
        return WorldSpec(
            reference=reference if self.server is None else OPENENV_WORLD,
            options={**server, **self.options},
            tools=() if self.tools is None else self.tools.uses,
            reward=None if self.tools is None else self.tools.reward,
        )

    @model_validator(mode="after")
    def _dialogue_keys_fit(self) -> "DialogueTaskConfig":
        keys = {
            "turns": self.turns != DEFAULT_TURNS,
            "message_tokens": self.message_tokens != DEFAULT_MESSAGE_TOKENS,
        }
        wrong = ["rows"] if self.rows is not None and not self.has_world else []
        wrong += [name for name, is_set in keys.items() if is_set and not self.is_dialogue]
        if wrong:
            named = ", ".join(f"task.{name}" for name in wrong)
            raise ValueError(f"{named}: for dialogues; name a world in task.source, as {PREFIX}file.py:Class")
        if self.is_captured and self.tools is not None and self.tools.model_fields_set - {"format", "describe"}:
            raise ValueError(
                "task.tools: agents bring tools of their own; only task.tools.format and describe are for them"
            )
        if self.is_dialogue and self.tools is not None and not self.tools.use and not self.has_world:
            raise ValueError("task.tools.use is empty, and there is no world to hand calls to; name a tool")
        return self

    @model_validator(mode="after")
    def _server_has_an_address(self) -> "DialogueTaskConfig":
        parts = urlsplit(self.server or "http://localhost")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"source = {self.source!r}: expected {OPENENV}http://HOST:PORT")
        return self

    @model_validator(mode="after")
    def _world_is_one(self) -> "DialogueTaskConfig":
        reference = self.world_spec.reference
        if reference is not None:
            try:
                check_reference(reference, kind="world")
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return self


# ----------------------------------------------------------------------------------------------------------------- rows


def dialogue_examples(
    task: DialogueTaskConfig, rows_of: Callable[[int, int], list[dict[str, object]] | None]
) -> ExampleDataset:
    """Rows of a task's dialogues; a prompt is empty where the world begins with messages of its own. A task with tools
    and no world has its prompts' rows. Raises DataError, UserCodeError."""
    if not task.has_world:
        return task.examples()
    if task.rows is not None:
        path = Path(task.rows)
        file_rows, names = renamed_columns(read_rows(path, max_row_bytes=MAX_ROW_BYTES), task.columns, str(path))
        if not {"prompt", "messages", "text"}.isdisjoint(names):
            return read_examples(path, need="prompt", columns=task.columns, on_bad_row=task.on_bad_row)
        return _built([row.columns for row in file_rows], str(path), [row.number for row in file_rows])
    rows = rows_of(task.size, task.seed)
    if rows is None:
        rows = [{"seed": task.seed * task.size + number} for number in range(task.size)]
    return _built(rows, task.source, range(1, len(rows) + 1))


def _built(rows: Sequence[Mapping[str, object]], source: str, numbers: Sequence[int]) -> ExampleDataset:
    """Examples of rows. Raises DataError with the numbers of those that cannot be used."""
    faults: list[str] = []
    drafts: list[Example] = []
    names = list(dict.fromkeys(name for row in rows for name in row))
    for number, row in zip(numbers, rows, strict=True):
        try:
            prompt = checked_content(row["prompt"], "prompt") if row.get("prompt") is not None else ""
        except BadRowError as fault:
            faults.append(f"{source}: row {number}: {fault}")
            continue
        columns = {name: row.get(name) for name in names if name not in ("prompt", "id")}
        identity = str(row.get("id", ""))
        drafts.append(Example(id=identity, prompt=prompt, completion=None, columns=columns, row=number, source=source))
    if faults:
        raise DataError(*faults[:5], *([f"{source}: ... and {len(faults) - 5} more faults"] if len(faults) > 5 else []))
    return build_examples(drafts, source=source, ids_given="id" in names)
